"""The page of many runs: what it holds, and how it works in a browser."""

from __future__ import annotations

import html
import itertools
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from compare_runs import predictions, run_of
from conftest import results_of
from samples import FACTS, config_for, folder_of, rewrite_results
from task_runs import task_run

from dist_eval.compare.compared_run import Run
from dist_eval.compare.comparing import compare_pairs
from dist_eval.compare.tables import p_words
from dist_eval.data.dataset import read_texts
from dist_eval.data.problem_types import SINGLE_LABEL
from dist_eval.report.differences import differing_options
from dist_eval.report.layout import Contents
from dist_eval.report.runs_page import write_runs
from dist_eval.results.run import CompleteRun
from dist_eval.runs.outcome import read_outcome
from dist_eval.runs.overview import groups_on_same_data, metrics_to_show

EXAMPLES = 80
HOSTILE = '<b onclick="window.ran=1">and a name that is rather long'


def with_changes(folder: Path, **sections: dict[str, Any]) -> Path:
    """Changes sections of a run's results."""
    results = results_of(folder)
    for name, changes in sections.items():
        results[name] |= changes
    rewrite_results(folder, results)
    return folder


def tuned(folder: Path, like: Path) -> Path:
    """Writes a complete tuning of one epoch."""
    header = {name: results_of(like)[name] for name in ("schema_version", "started", "finished", "environment")}
    epoch = {"epoch": 1, "loss": 0.5, "updates": 3, "seconds": 1.0, "metrics": {"accuracy": 0.875}}
    best = {"epoch": 1, "metric": "accuracy", "value": 0.875}
    sections = {"data": FACTS["data"], "evaluation_data": FACTS["data"], "model": FACTS["model"], "swarm": None}
    folder.mkdir()
    (folder / "tuning.json").write_text(
        json.dumps(
            {**header, "config": {}, "status": "complete", "error": None, "epochs": [epoch], "best": best, **sections}
        )
    )
    return folder


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three runs on the same data, of which one has a page; a copy on other data; all other kinds of folders."""
    top = tmp_path_factory.mktemp("runs")
    skills = {"a": 0.5, HOSTILE: 2.5, "c": 1.0}
    for seed, (name, skill) in enumerate(skills.items()):
        run_of(top / name, predictions(skill, seed, EXAMPLES))
    data = {"source": "/somewhere/reviews.csv", "examples": EXAMPLES}
    for name in skills:
        with_changes(top / name, data=data, coverage={"expected": EXAMPLES, "seen": EXAMPLES})
    with_changes(top / "c", config={"checkpoint": "/x/other/tuned", "compression": "float16"})
    (top / "c" / "report.html").touch()
    shutil.copytree(top / "a", top / "elsewhere")
    with_changes(top / "elsewhere", data={"text_digest": "else", "source": "other.csv", "column_digests": {}})
    for number in (1, 2):
        right = np.arange(12) % (number + 1) > 0
        task_run(top / f"task{number}", {"words": {"acc": right.astype(float).tolist()}}, {})
    tuned(top / "tuned", like=top / "a")
    stopped = folder_of(config_for(top / "stopped"))
    stopped.open()
    stopped.close()
    stopped.stop("/somewhere/reviews.csv is gone", rank=0, host="here", coverage=None)
    (top / "damaged").mkdir()
    (top / "damaged" / "results.json").write_text("{")
    return top


@pytest.fixture(scope="module")
def page(runs: Path) -> Path:
    return write_runs(sorted(runs.iterdir()), runs.parent / f"{runs.name}.html")


def words(source: str) -> str:
    """Returns the text of a piece of HTML."""
    return " ".join(html.unescape(re.sub("<[^>]*>", " ", source)).split())


def rows_of(source: str, number: int = 0) -> list[list[str]]:
    """Returns the words of each cell of the body of a table of the page."""
    body = re.findall("<tbody>(.*?)</tbody>", source, re.DOTALL)[number]
    rows = re.findall("<tr.*?</tr>", body, re.DOTALL)
    return [[words(cell) for cell in re.findall("<t[hd].*?</t[hd]>", row, re.DOTALL)] for row in rows]


def pairs_of(source: str) -> dict[tuple[str, ...], str]:
    """Returns the section of each pair of runs, by the names of both."""
    sections = re.findall('<details class="pair".*?</details>', source, re.DOTALL)
    names = [re.findall(r"<(?:b|span) dir=\"auto\">(.*?)</", one)[:2] for one in sections]
    return {tuple(map(html.unescape, reversed(both))): one for both, one in zip(names, sections, strict=True)}


def test_runs_on_the_same_data_are_in_one_table_the_best_first(runs: Path, page: Path) -> None:
    source = page.read_text()
    titles = [words(one) for one in re.findall("<h2.*?</h2>", source)]
    assert titles == ["reviews.csv", "other.csv", "Tasks of the lm-evaluation-harness", "Tuned", "Without results"]
    assert "single label classification, 80 examples; digest of texts and labels texts" in source
    rows = rows_of(source)
    assert [row[0] for row in rows] == [HOSTILE, "c", "a"]
    results = results_of(runs / "c")
    interval = results["intervals"]["accuracy"]
    assert rows[1][1] == f"{results['metrics']['accuracy']:.4f} {interval['low']:.4f} to {interval['high']:.4f}"
    assert re.findall('<tr data-run.*?<a href=.([^"]*)', source, re.DOTALL) == [f"{runs.name}/c/report.html"]
    assert "A run without a link has no page of its own: dist-eval report RUN writes it." in source


def test_options_are_those_that_differ(page: Path) -> None:
    source = page.read_text()
    heads = re.findall("The options that differ</caption>\n *<thead>(.*?)</thead>", source)
    assert words(heads[0]) == "run compression checkpoint"
    assert rows_of(source, 1) == [[HOSTILE, "none", "tuned"], ["c", "float16", "other/tuned"], ["a", "none", "tuned"]]


def test_pairs_are_compared_as_one_family(runs: Path, page: Path) -> None:
    names = [HOSTILE, "a", "c"]
    loaded = {name: Run.load(runs / name) for name in names}
    found = pairs_of(page.read_text())
    expected = list(itertools.combinations(names, 2))
    assert [*found] == [*expected, ("task1", "task2")], "nothing is compared with a run on other data"
    comparisons = compare_pairs([(loaded[one], loaded[other]) for one, other in expected])
    for both, one in zip(expected, comparisons, strict=True):
        rows = {row[0]: row[1:] for row in rows_of(found[both])}
        assert list(rows) == list(one.differences)
        for name, cells in rows.items():
            assert cells[0].startswith(f"{loaded[both[0]].metrics[name]:.4}"[:5])
            assert cells[3] == p_words(one.differences[name].p_value, one.differences[name])
            assert cells[4].split(" (")[0] == p_words(one.corrected[name], one.differences[name])
        text = words(found[both])
        assert f"by Holm's procedure for 3 pairs {p_words(one.test_corrected)}." in text
        assert f"All {one.changes.changed.sum()}, those that one of them gets right" in text
        changed = loaded[both[0]].predictions.index[one.changes.changed]
        assert sorted(re.findall(r"#(\d+)", text), key=int) == [str(index) for index in changed]
        assert text.count(" gained") == one.changes.improved.sum() and text.count(" lost") == one.changes.worsened.sum()


def test_documents_of_tasks_are_compared(page: Path) -> None:
    text = words(pairs_of(page.read_text())["task1", "task2"])
    assert "words acc 0.5000 0.6667 +0.1667" in text
    assert "words #2 true choice 0 first choice 1 second choice 0 gained" in text
    assert "All 6." in text and text.count(" gained") == 4 and text.count(" lost") == 2


def test_what_has_no_results_is_named_with_the_reason_and_no_directories(runs: Path, page: Path) -> None:
    source = page.read_text()
    reasons = dict(zip(*(map(words, re.findall(f"<{tag}.*?</{tag}>", source)) for tag in ("dt", "dd")), strict=True))
    assert reasons["stopped"] == "incomplete, reviews.csv is gone; running the same command again resumes it"
    assert reasons["damaged"].startswith("failed, damaged/results.json cannot be read")
    assert ["tuned", "accuracy 0.8750", "1 of 1", "0.5000", "test.csv, 5", "test.csv, 5"] in [
        row[:-1] for number in range(source.count("<tbody>")) for row in rows_of(source, number)
    ]
    assert str(runs) not in source and "/somewhere" not in source and "/x/" not in source


def test_of_too_many_pairs_those_with_the_first_run_are_compared(runs: Path, tmp_path: Path) -> None:
    folders = [runs / name for name in ("c", "a", HOSTILE)]
    source = write_runs(folders, tmp_path / "page.html", Contents(most=4), most_pairs=2).read_text()
    assert list(pairs_of(source)) == [("c", "a"), ("c", HOSTILE)]
    assert "Of 3 runs, each is compared with c, the first one that was named" in source
    assert [one.count('class="mistake"') for one in pairs_of(source).values()] == [2, 2]
    assert re.search(r"2 of \d+, those that one of them gets right", source)
    assert not pairs_of(write_runs(folders, tmp_path / "page.html", most_pairs=0).read_text())


def test_a_pair_that_cannot_be_compared_says_why(runs: Path, tmp_path: Path) -> None:
    for name in ("a", "c", HOSTILE):
        shutil.copytree(runs / name, tmp_path / name)
    (tmp_path / "a" / "predictions.parquet").unlink()
    source = write_runs([tmp_path / name for name in ("a", "c", HOSTILE)], tmp_path / "page.html").read_text()
    found = pairs_of(source)
    assert "not compared a/predictions.parquet is missing" in words(found["a", "c"])
    assert "accuracy" in words(found["c", HOSTILE])
    assert str(tmp_path) not in source


def test_texts_are_added_on_request(tmp_path: Path) -> None:
    lines = "".join(f"<b>text {number}</b> and more,{number % 3}\n" for number in range(20))
    (tmp_path / "data.csv").write_text("text,label\n" + lines)
    names = ["neg", "neutral", "pos"]
    columns = {"text_columns": ["text"], "label_column": "label", "label_names": names}
    _, digest = read_texts(str(tmp_path / "data.csv"), [], problem=SINGLE_LABEL, **columns)
    for seed in range(2):
        run_of(tmp_path / f"run{seed}", predictions(1.0, seed, 20), text_digest=digest, source="data.csv")
    folders = [tmp_path / f"run{seed}" for seed in range(2)]
    contents = Contents(texts=True, dataset=str(tmp_path / "data.csv"), longest=12)
    source = write_runs(folders, tmp_path / "page.html", contents).read_text()
    [(_, section)] = pairs_of(source).items()
    assert re.findall(r"#(\d+)", words(section)) == re.findall(r"<b>text (\d+)", words(section).replace("</b", " "))
    assert " […]" in section and "and more" not in section and "--texts adds" not in section


def test_equal_input_gives_equal_bytes(runs: Path, page: Path) -> None:
    assert write_runs(sorted(runs.iterdir()), page.with_name("again.html")).read_bytes() == page.read_bytes()


def test_options_of_paths_that_end_alike_and_weights_of_the_same_model_are_told_apart(runs: Path) -> None:
    one = CompleteRun.model_validate(results_of(runs / "a"))

    def other(weights: str = "w", **options: Any) -> CompleteRun:
        model = one.model.model_copy(update={"weights_digest": weights})
        return one.model_copy(update={"config": {**one.config, **options}, "model": model})

    assert differing_options([one, other(output="elsewhere")]) == {}
    assert differing_options([one, other("0123456789")]) == {"digest of the weights": ["w", "01234567"]}
    assert differing_options([other(checkpoint="/x/a/best"), other("v", checkpoint="/x/b/best")]) == {
        "checkpoint": ["a/best", "b/best"]
    }
    assert differing_options([one, other(slice_by=["length", "source"], strict=True)]) == {
        "strict": ["no", "yes"],
        "slice_by": ["–", "length, source"],
    }


def test_a_prompt_makes_no_other_data(runs: Path) -> None:
    outcomes = [read_outcome(runs / name) for name in ("a", "c", "elsewhere", "task1", "stopped")]
    assert [len(group) for group in groups_on_same_data(outcomes)] == [2, 1, 1]
    first, other = (group[0][1] for group in groups_on_same_data(outcomes)[:2])
    assert metrics_to_show([first], ["log_loss"]) == ["log_loss"]
    prompt = {"template": "{text}", "words": ["a"], "tokens": [[1]], "length_normalization": "none"}
    prompted = other.model_dump() | {"data": {**FACTS["data"], "text_digest": "with the prompt"}}
    prompted["model"]["prompt"] = {**prompt, "few_shot_rows": [], "few_shot_digest": None}
    outcomes[1] = type(outcomes[0])(Path("p"), "complete", results=CompleteRun.model_validate(prompted))
    assert [len(group) for group in groups_on_same_data(outcomes)] == [2, 1, 1]


DESKTOP, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}


@pytest.fixture
def visit(browser: Any, page: Path, request: pytest.FixtureRequest) -> Iterator[Any]:
    context = browser.new_context(**{"viewport": DESKTOP, **getattr(request, "param", {})})
    visited = context.new_page()
    visited.complaints = []
    visited.on("request", lambda request: visited.complaints.append(request.url))
    visited.on("console", lambda message: visited.complaints.append(message.text))
    visited.on("pageerror", lambda error: visited.complaints.append(str(error)))
    visited.goto(page.as_uri())
    yield visited
    assert visited.complaints == [page.as_uri()]
    context.close()


def test_runs_are_sorted_and_chosen(visit: Any) -> None:
    def column(number: int) -> list[str]:
        return visit.locator(f"#data-1 table >> nth=0 >> tbody tr > :nth-child({number})").all_inner_texts()

    for name, is_up in (("loss", True), ("loss", False), ("run", True)):
        visit.get_by_role("button", name=name, exact=True).first.click()
        shown = column(7 if name == "loss" else 1)
        assert shown == sorted(shown, reverse=not is_up), name
    boxes = {name: visit.get_by_label(f"Choose {name}", exact=True) for name in ("a", "c", HOSTILE, "elsewhere")}
    visible = visit.locator("#data-1 .pair:visible .names")
    boxes["c"].check()
    assert visible.count() == 2
    boxes["a"].check()
    assert visible.all_inner_texts() == ["c against a"]
    assert visit.get_by_text("c minus a").is_visible(), "it is open"
    assert visit.locator("#chosen-words").inner_text() == "c and a: side by side under Pairs."
    boxes[HOSTILE].check()
    assert not boxes["c"].is_checked(), "two are chosen"
    boxes["elsewhere"].check()
    assert "on other data: they cannot be compared" in visit.locator("#chosen-words").inner_text()
    visit.click("#clear")
    assert visible.count() == 3
    assert not visit.locator(".chosen").is_visible()
    assert visit.evaluate("window.ran") is None


def test_two_runs_that_were_not_compared_stand_side_by_side(runs: Path, visit: Any, tmp_path: Path) -> None:
    written = write_runs([runs / name for name in ("c", "a", HOSTILE)], tmp_path / "few.html", most_pairs=2)
    visit.goto(written.as_uri())
    visit.complaints.pop()
    for name in ("a", HOSTILE):
        visit.get_by_label(f"Choose {name}", exact=True).check()
    assert visit.locator(".untested tbody th").all_inner_texts() == [HOSTILE, "a"] * 2
    visit.click("#clear")
    assert visit.locator(".untested table").count() == 0


@pytest.mark.parametrize("visit", [{"viewport": PHONE}], indirect=True)
def test_it_fits_on_a_phone_and_on_paper_and_is_read_without_scripts(visit: Any, browser: Any, page: Path) -> None:
    assert visit.evaluate("document.documentElement.scrollWidth") == PHONE["width"]
    visit.emulate_media(media="print")
    visit.set_viewport_size({"width": 718, "height": 1000})
    assert visit.evaluate("document.documentElement.scrollWidth") == 718
    assert not visit.locator("nav, .choose").first.is_visible()
    context = browser.new_context(java_script_enabled=False)
    plain = context.new_page()
    plain.goto(page.as_uri())
    assert plain.locator(".pair").count() == 4
    assert plain.locator("input:visible, button:visible").count() == 0
    context.close()


@pytest.mark.parametrize("visit", [{}, pytest.param({"color_scheme": "dark"}, marks=pytest.mark.slow)], indirect=True)
def test_everybody_can_read_it(visit: Any, runs: Path, tmp_path: Path) -> None:
    """axe-core's rules for WCAG 2.2 A and AA: contrast, labels, structure, keyboard."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    visit.goto(write_runs(sorted(runs.iterdir()), tmp_path / "page.html", Contents(most=4)).as_uri())
    visit.complaints.pop()
    visit.get_by_label("Choose a", exact=True).check()
    visit.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    # no rule judges the contrast of text on a gradient, the hint that a table scrolls
    visit.evaluate("document.querySelectorAll('.wide').forEach((one) => { one.style.background = 'none'; })")
    rules = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]}
    found = axe.run(visit, options=rules).response
    assert [(one["id"], one["nodes"][0]["html"][:200]) for one in found["violations"]] == []
    assert "color-contrast" in {one["id"] for one in found["passes"]}
