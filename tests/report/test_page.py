"""The page in a browser: it shows what the run holds, runs nothing of the data's, and can be read by everybody."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import results_of
from report_runs import synthetic_run
from task_runs import task_run

from dist_eval.errors import DataError
from dist_eval.report.document import ReportOptions
from dist_eval.report.html import render_summary
from dist_eval.report.page import describe_run, report_on, write_report
from dist_eval.report.text import render_text
from dist_eval.runs.reading import read_run
from dist_eval.summary.__main__ import main as summary

PHONE, DESKTOP = {"width": 360, "height": 740}, {"width": 1100, "height": 900}
PLOTS = {"single": 2, "multi": 1, "regression": 1, "many": 2, "sliced": 2, "labels": 1, "hostile": 2}
"""Of each kind of run."""


class Visit:
    """A page that is looked at: nothing is fetched but what was opened, and nothing complained of."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.opened: list[str] = []
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self._viewport = page.viewport_size
        self._listeners = {
            "request": lambda request: self.requests.append(request.url),
            "console": lambda message: self.complaints.append(message.text),
            "pageerror": lambda error: self.complaints.append(str(error)),
        }
        for event, listener in self._listeners.items():
            page.on(event, listener)

    def open(self, path: Path) -> Any:
        self.opened.append(path.as_uri())
        self.page.goto(path.as_uri())
        return self.page

    def end(self) -> None:
        """Leaves the page as a new one would be."""
        for event, listener in self._listeners.items():
            self.page.remove_listener(event, listener)
        self.page.set_viewport_size(self._viewport)
        self.page.emulate_media(media="null")
        self.page.goto("about:blank")
        assert (self.requests, self.complaints) == (self.opened, [])


@pytest.fixture
def visit(tabs: Any, request: pytest.FixtureRequest) -> Iterator[Visit]:
    visit = Visit(tabs(**{"viewport": DESKTOP, **getattr(request, "param", {})}))
    yield visit
    visit.end()


@pytest.fixture(scope="session")
def pages(runs: Any) -> Any:
    return type(runs)(lambda kind: write_report(runs[kind]))


class Ids(HTMLParser):
    """The ids of a page's elements."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.found: list[str | None] = []
        self.feed(page.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [value for name, value in attrs if name == "id"]


def test_ids_are_unique(pages: Any, hostile_run: Path, runs: Any, tmp_path: Path) -> None:
    tasks = write_report(task_run(tmp_path / "tasks", {"words": {"acc": [1.0, 0.0]}}, {}))
    shown = [str(runs[kind]) for kind in ("multi", "sliced")]
    assert summary([*shown, "--options", "--write", str(tmp_path / "runs.html")]) == 0
    for page in (pages["multi"], pages["sliced"], hostile_run / "report.html", tasks, tmp_path / "runs.html"):
        found = Ids(page).found
        assert len(found) == len(set(found)) > 5, page


def test_a_notebook_shows_the_tables_of_the_terminal(runs: Any, hostile_run: Path) -> None:
    run = read_run(runs["single"])
    page = render_summary(describe_run(runs["single"], results=run))
    assert page.count("<table") == render_text(describe_run(runs["single"])).count("\n\n")
    assert f'<th dir="auto" scope="row">mcc</th><td class="n">{run.metrics["mcc"]:.4f} <span>[' in page
    assert f"<p>{run.coverage.seen} of {run.coverage.seen} examples, each exactly once" in page
    assert not re.search("<(script|img|style|link|b)\\b", render_summary(describe_run(hostile_run)))


def indices(page: Any) -> list[int]:
    return [int(text.removeprefix("#")) for text in page.locator("#list .position").all_inner_texts()]


def test_hostile_texts_and_names_are_shown_and_do_not_run(hostile_run: Path, visit: Visit) -> None:
    page = visit.open(hostile_run / "report.html")
    results = results_of(hostile_run)
    texts = page.evaluate("JSON.parse(document.getElementById('data').textContent).rows.map((row) => row[4])")
    assert len(texts) == 98 - np.trace(results["confusion_matrix"]["matrix"])
    page.fill("#search", "window.ran")
    shown = page.locator("#list .text").all_inner_texts()
    assert any(text.startswith('<script>window.ran = "script"</script>') for text in shown)
    assert any(text.startswith("</script><script>") for text in shown)
    assert page.locator("#by-class tbody th").all_inner_texts() == results["confusion_matrix"]["labels"]
    assert page.locator("h1").inner_text() == "<i>run"
    page.hover("#by-class tbody th >> nth=0")
    assert page.evaluate("window.ran") is None
    assert page.locator("#list :is(script, img, svg, b, i)").count() == 0


def test_the_policy_stops_what_is_not_the_pages_own(hostile_run: Path, visit: Visit, tmp_path: Path) -> None:
    source = (hostile_run / "report.html").read_text()
    (tmp_path / "page.html").write_text(
        source.replace("</main>", "<script>window.ran = 1</script><p onclick='1'></main>")
    )
    page = visit.open(tmp_path / "page.html")
    assert page.evaluate("window.ran") is None
    assert any("Content Security Policy" in words for words in visit.complaints)
    visit.complaints.clear()
    assert page.locator("#where").inner_text(), "its own script runs"


def test_mistakes_are_the_runs_the_most_confident_first(
    pages: dict[str, Path], runs: dict[str, Path], visit: Visit
) -> None:
    import pandas as pd

    page, table = visit.open(pages["single"]), pd.read_parquet(runs["single"] / "predictions.parquet")
    wrong = table[table["label"] != table["prediction"]]
    sure = wrong.apply(lambda row: row["probabilities"][row["prediction"]], axis=1)
    expected = wrong.loc[sure.sort_values(ascending=False, kind="stable").index, "index"].tolist()
    assert indices(page) == expected[:25]
    found = indices(page)
    while not page.locator("#next").is_disabled():
        page.click("#next")
        found += indices(page)
    assert found == expected
    assert (
        page.locator("#where").inner_text() == f"{25 * (len(expected) // 25) + 1} to {len(expected)} of {len(expected)}"
    )
    page.click("#previous")
    assert len(indices(page)) == 25


def test_mistakes_can_be_searched_and_filtered(pages: dict[str, Path], visit: Visit) -> None:
    page = visit.open(pages["single"])
    everything = page.evaluate("JSON.parse(document.getElementById('data').textContent).rows")
    page.fill("#search", "#11")
    assert set(indices(page)) == {int(row[0][1:]) for row in everything if row[0].startswith("#11")}
    page.fill("#search", "no such text")
    assert indices(page) == []
    assert page.locator("#where").inner_text() == "Nothing found"
    page.click("#reset")
    page.select_option("#filter-label", "neutral")
    assert set(page.locator("#list .label").all_inner_texts()) == {"neutral"}
    show = page.locator("button.show").first
    words = show.get_attribute("aria-label")
    show.focus()
    page.keyboard.press("Enter")
    pairs = zip(*(page.locator(f"#list .{name}").all_inner_texts() for name in ("label", "prediction")), strict=True)
    [(label, prediction)] = set(pairs)
    assert words == f"Show mistakes: {label} taken for {prediction}"


class Marks:
    """What intervals of a table are shown as, and the notes below it."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def cell(
        self, value: float | None, interval: dict[str, Any], undefined: str | None = None, form: str = ".4f"
    ) -> str:
        shown = "-" if value is None else f"{value:{form}}"
        if interval["low"] is not None:
            return f"{shown} [{interval['low']:{form}}, {interval['high']:{form}}]"
        words = undefined or interval["reason"]
        if words not in self.notes:
            self.notes.append(words)
        return f"{shown} ({self.notes.index(words) + 1})"

    def lines(self) -> list[str]:
        return [f"({number}) {words}" for number, words in enumerate(self.notes, 1)]


@pytest.mark.parametrize("kind", ["single", "sliced"])
def test_metrics_and_confusions_are_those_of_the_results(
    pages: dict[str, Path], runs: dict[str, Path], visit: Visit, kind: str
) -> None:
    page, results = visit.open(pages[kind]), results_of(runs[kind])
    marks = Marks()
    for name, cell in rows_of(page.locator("#metrics table").first):
        assert cell == marks.cell(
            results["metrics"][name], results["intervals"][name], form="#.4g" if "loss" in name else ".4f"
        )
    names, matrix = results["confusion_matrix"]["labels"], np.asarray(results["confusion_matrix"]["matrix"])
    for label, prediction, count, share in rows_of(page.locator("#confusion table")):
        row, column = names.index(label), names.index(prediction)
        assert int(count) == matrix[row, column]
        assert share.startswith(f"{100 * matrix[row, column] / matrix[row].sum():.1f}%")
    interval = results["intervals"]["accuracy"]
    assert f"[{interval['low']:.4f}, {interval['high']:.4f}]" in page.locator(".cards").inner_text()


def notes_of(table: Any) -> list[str]:
    return table.locator("xpath=../following-sibling::*[1][contains(@class, 'notes')]/p").all_inner_texts()


def open_details(page: Any) -> None:
    page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")


def rows_of(table: Any) -> list[list[str]]:
    cells = "(rows) => rows.map((row) => [...row.querySelectorAll('th, td')].map((cell) => cell.innerText))"
    return [[" ".join(cell.split()) for cell in row] for row in table.locator("tbody tr").evaluate_all(cells)]


def bin_rows(bins: list[dict[str, Any]]) -> list[list[str]]:
    marks = Marks()
    return [
        [
            f"{one['low']:.2f} to {one['high']:.2f}",
            str(one["n"]),
            f"{one['mean_confidence']:.4f}",
            marks.cell(one["accuracy"], one["interval"]),
        ]
        for one in bins
        if one["n"]
    ]


def test_calibration_is_that_of_the_results(pages: dict[str, Path], runs: dict[str, Path], visit: Visit) -> None:
    page, results = visit.open(pages["sliced"]), results_of(runs["sliced"])
    metrics, bins = page.locator("#calibration table").all()
    marks = Marks()
    for row, name in zip(rows_of(metrics), ("ece", "brier"), strict=True):
        assert row == [name, marks.cell(results["calibration"][name], results["intervals"][name])]
    assert notes_of(metrics) == marks.lines() != []
    assert rows_of(bins) == bin_rows(results["calibration"]["bins"])


@pytest.mark.slow
def test_each_label_has_a_calibration(pages: dict[str, Path], runs: dict[str, Path], visit: Visit) -> None:
    page, results = visit.open(pages["labels"]), results_of(runs["labels"])
    labels = results["calibration"]["per_label"]
    open_details(page)
    _, summary, *tables = page.locator("#calibration table").all()
    assert [rows_of(table) for table in tables] == [bin_rows(one["bins"]) for one in labels]
    assert rows_of(summary) == [[one["label"], f"{one['ece']:.4f}", f"{one['brier']:.4f}"] for one in labels]


def has_values(slices: list[dict[str, Any]], figure: str) -> bool:
    return any(one["metrics"][figure] is not None for one in slices)


@pytest.mark.parametrize("kind", ["sliced", "labels"])
def test_slices_are_those_of_the_results(
    pages: dict[str, Path], runs: dict[str, Path], visit: Visit, kind: str
) -> None:
    page, results = visit.open(pages[kind]), results_of(runs[kind])
    tables = {table.locator("caption").inner_text(): table for table in page.locator("#slices table").all()}
    by = list(dict.fromkeys(one["by"] for one in results["slices"]))
    assert list(tables) == [f"By {name}" for name in by]
    for name in by:
        expected, marks = [], Marks()
        slices = [one for one in results["slices"] if one["by"] == name]
        figures = [figure for figure in list(slices[0]["metrics"])[:2] if has_values(slices, figure)]
        for one in slices:
            row = [one["value"] or "(empty)" if one["value"] is not None else "(missing)", str(one["n"])]
            for figure in figures:
                value, why = one["metrics"][figure], one["undefined"].get(figure)
                row.append(marks.cell(value, one["intervals"][figure], why))
            expected.append(row)
        table = tables[f"By {name}"]
        assert rows_of(table) == expected
        assert notes_of(table)[: len(marks.notes)] == marks.lines()
    if kind == "sliced":
        values = [one["value"] for one in results["slices"] if one["by"] == "source"]
        assert {"news", "<b>blog</b>", "", None, "only once"} <= set(values)
        assert "groups of 'document' are resampled as clusters" in page.locator("#metrics").inner_text()


@pytest.mark.parametrize(
    "kind", ["single", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("multi", "many", "regression"))]
)
def test_metrics_of_classes_are_those_of_the_results_with_their_intervals(
    pages: dict[str, Path], runs: dict[str, Path], visit: Visit, kind: str
) -> None:
    page, results = visit.open(pages[kind]), results_of(runs[kind])
    open_details(page)
    marks, expected = Marks(), []
    for row in results["per_class"]:
        cells = [row["label"]]
        for name, interval in row["intervals"].items():
            form = "#.4g" if name in ("mae", "mse", "rmse") else ".4f"
            cells.append(marks.cell(row[name], interval, form=form))
        expected.append([*cells, *([str(row["support"])] if "support" in row else [])])
    [section] = page.locator("section[id^=by-]").all()
    assert rows_of(section.locator("table")) == expected
    assert section.locator(".note").all_inner_texts() == marks.lines()
    assert bool(marks.notes) == (kind in ("many", "regression"))


def test_sections_that_are_not_there_are_left_out(pages: dict[str, Path], visit: Visit) -> None:
    page = visit.open(pages["regression"])
    assert page.locator("#calibration, #slices").count() == 0
    links = page.locator("nav a").evaluate_all("(links) => links.map((link) => link.getAttribute('href'))")
    assert "#calibration" not in links
    assert all(page.locator(link).count() == 1 for link in links)


def test_slow_ranks_are_marked(pages: dict[str, Path], visit: Visit) -> None:
    rows = rows_of(visit.open(pages["single"]).locator("#ranks-and-servers table").first)
    assert [row[0] for row in rows if row[6] == "100% (slow)"] == ["2"]
    assert [row[6] for row in rows[:2]] == ["50%", "50%"]


PAPER = {"width": 718, "height": 1000}
"""Between the margins of an A4 page, as Chromium sets them (1 cm)."""

BOXES = "(all) => all.map((one) => ({text: one.textContent.slice(0, 60), ...one.getBoundingClientRect().toJSON()}))"


@pytest.mark.parametrize("kind", PLOTS)
@pytest.mark.parametrize("visit", [{"viewport": PHONE}], indirect=True)
def test_all_of_it_is_seen_on_a_phone_and_on_paper(
    pages: dict[str, Path], hostile_run: Path, visit: Visit, kind: str
) -> None:
    page = visit.open(hostile_run / "report.html" if kind == "hostile" else pages[kind])
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"], "no sideways scrolling"
    intervals = page.locator("#metrics table").first.locator("td > span:visible").evaluate_all(BOXES)
    assert len(intervals) > 5
    assert [one for one in intervals if one["text"] and not 0 <= one["left"] < one["right"] <= PHONE["width"]] == []
    plots = page.locator("img.plot")
    sizes = plots.evaluate_all("(all) => all.map((one) => [one.complete, one.naturalWidth, one.alt.length > 20])")
    assert len(sizes) == PLOTS[kind]
    assert all(is_loaded and width > 100 and is_described for is_loaded, width, is_described in sizes)
    open_details(page)
    page.emulate_media(media="print")
    page.set_viewport_size(PAPER)
    boxes = page.locator("table, img").evaluate_all(BOXES)
    assert len(boxes) > 3
    assert [one for one in boxes if one["right"] > PAPER["width"] + 1] == []


def lightness(page: Any, what: str) -> float:
    color = page.evaluate(f"getComputedStyle(document.body)['{what}']")
    return sum(map(int, re.findall(r"\d+", color)[:3])) / 3


@pytest.mark.parametrize("visit", [{"color_scheme": "dark"}], indirect=True)
def test_dark_is_dark_and_print_is_light(pages: dict[str, Path], visit: Visit) -> None:
    page = visit.open(pages["single"])
    assert lightness(page, "backgroundColor") < 60 < 200 < lightness(page, "color")
    page.emulate_media(media="print")
    assert lightness(page, "backgroundColor") == 255
    assert not page.locator("nav").is_visible()
    assert not page.locator(".filters").is_visible()
    assert page.locator("#list .mistake").first.is_visible()


@pytest.mark.parametrize(
    ("kind", "visit"),
    [
        ("single", {}),
        pytest.param("labels", {}, marks=pytest.mark.slow),
        pytest.param("regression", {}, marks=pytest.mark.slow),
        ("sliced", {"color_scheme": "dark"}),
    ],
    indirect=["visit"],
)
def test_everybody_can_read_it(pages: dict[str, Path], visit: Visit, kind: str) -> None:
    """axe-core's rules for WCAG 2.2 A and AA: contrast, labels, structure, keyboard."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    page = visit.open(pages[kind])
    open_details(page)
    # no rule judges the contrast of text on a gradient, the hint that a table scrolls
    page.evaluate("document.querySelectorAll('.wide').forEach((one) => { one.style.background = 'none'; })")
    rules = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]}
    found = axe.run(page, options=rules).response
    assert [(one["id"], one["nodes"][0]["html"][:200]) for one in found["violations"]] == []
    assert "color-contrast" in {one["id"] for one in found["passes"]}


def test_without_scripts_the_first_mistakes_are_there(pages: dict[str, Path], browser: Any) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(pages["single"].as_uri())
    assert page.locator("#list .mistake").count() == 25
    assert not page.locator("#search").is_visible()
    context.close()


@pytest.mark.slow
def test_many_thousand_mistakes_do_not_choke_a_browser(tmp_path: Path, visit: Visit) -> None:
    folder = synthetic_run(tmp_path / "large", ["yes", "no"], 5_000, skill=-1.0)
    page = visit.open(write_report(folder))
    assert (folder / "report.html").stat().st_size < 1 << 20
    assert page.evaluate("document.querySelectorAll('*').length") < 5000
    note = page.locator("#mistakes > p").first.inner_text()
    total = int(note.split()[0])
    assert total > 3_500
    assert "1000 of them, including up to 250 of each of the most frequent confusions, are in this file" in note
    assert page.locator("#where").inner_text() == "1 to 25 of 1000"


@pytest.mark.slow
def test_each_confusion_that_is_listed_has_mistakes_to_show(
    runs: dict[str, Path], tmp_path: Path, visit: Visit
) -> None:
    page = visit.open(write_report(runs["many"], ReportOptions(most=100), tmp_path / "page.html"))
    rows = page.evaluate("JSON.parse(document.getElementById('data').textContent).rows")
    assert len(rows) == 100
    pairs = rows_of(page.locator("#confusion table"))
    assert len(pairs) == 20
    for (label, prediction, count, _), button in zip(pairs, page.locator("button.show").all(), strict=True):
        button.click()
        here = sum(row[1:3] == [label, prediction] for row in rows)
        assert here >= 2
        left = f"; {here} of {count} are in this file" if here < int(count) else ""
        assert page.locator("#where").inner_text() == f"1 to {here} of {here}{left}"
    few = visit.open(write_report(runs["many"], ReportOptions(most=3), tmp_path / "page.html"))
    button = few.locator("button.show").last
    button.click()
    count = rows_of(few.locator("#confusion table"))[-1][2]
    assert few.locator("#where").inner_text() == f"Nothing found; 0 of {count} are in this file"
    few.click("#reset")
    assert few.locator("#where").inner_text() == "1 to 3 of 3"


@pytest.mark.parametrize("kind", ["multi", "regression", "sliced"])
def test_equal_input_gives_equal_bytes(
    runs: dict[str, Path], pages: dict[str, Path], tmp_path: Path, kind: str
) -> None:
    assert write_report(runs[kind], path=tmp_path / "again").read_bytes() == pages[kind].read_bytes()


def test_a_shareable_page_contains_no_directories_or_host_names(
    runs: dict[str, Path], pages: dict[str, Path], hostile_run: Path, visit: Visit
) -> None:
    results = results_of(runs["sliced"])
    assert results["data"]["source"].startswith("/") and results["model"]["base"].startswith("/")
    assert results["data"]["is_path"] and results["model"]["base_is_path"]
    assert str(runs["sliced"].parent) not in pages["sliced"].read_text()
    facts = visit.open(pages["sliced"]).locator("#run dd").all_inner_texts()
    assert [fact for fact in facts if fact.startswith("/")] == []
    assert {"base", "tuned", "digits.jsonl"} <= set(facts)
    assert {"local: in each rank's own process", "document", "source, score, length", "1 on 1 host"} <= set(facts)
    hosts = "#ranks-and-servers tbody tr td:nth-child(2)"
    assert visit.page.locator(hosts).first.inner_text() == "host 1"
    page = visit.open(hostile_run / "report.html")
    assert page.locator(hosts).first.inner_text() == results_of(hostile_run)["ranks"][0]["host"], "it has texts"


def test_texts_are_shown_only_on_request_and_truncated(hostile_run: Path, tmp_path: Path) -> None:
    without = write_report(hostile_run, path=tmp_path / "without").read_text()
    assert "window.ran = " not in without
    assert "Their texts are not in this file" in without
    cut = write_report(hostile_run, ReportOptions(texts=True, longest=40), tmp_path / "cut").read_text()
    assert "long " * 8 + " [\\u2026]" in cut and "long " * 9 not in cut
    assert "Texts are cut after 40 characters." in cut
    few = write_report(hostile_run, ReportOptions(most=3), tmp_path / "few").read_text()
    assert "The first 3 are in this file" in few


def test_a_dataset_that_changed_since_is_refused(hostile_run: Path, tmp_path: Path) -> None:
    changed = tmp_path / "changed.csv"
    shutil.copy(hostile_run.with_name("<i>run-inputs") / "data.csv", changed)
    assert (
        "window.ran = "
        in write_report(hostile_run, ReportOptions(texts=True, dataset=str(changed)), tmp_path / "p").read_text()
    )
    changed.write_text(changed.read_text().replace(" 17,", " 18,"))
    with pytest.raises(DataError, match=r"is not what .* was evaluated on: its texts or labels differ"):
        write_report(hostile_run, ReportOptions(texts=True, dataset=str(changed)), tmp_path / "p")


def test_new_results_do_not_stand_beside_an_old_page(
    runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(runs["multi"], folder)
    report_on(folder, "numbers")
    assert (folder / "report.html").exists()
    report_on(folder, "texts")
    assert not (folder / "report.html").exists()
    assert "could not be written (There is no file test.csv." in capsys.readouterr().err
    report_on(folder, "numbers")
    report_on(folder, "none")
    assert not (folder / "report.html").exists()
