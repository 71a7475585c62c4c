"""The summary of many runs: it contains every run, and its exit status is that of the worst."""

from __future__ import annotations

import csv
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from conftest import results_of
from samples import FACTS, METRICS, PREDICTIONS, opened, rewrite_results, sections
from task_runs import task_run

from dist_eval.analysis.options import AnalysisOptions, analyse
from dist_eval.compare.__main__ import main as compare
from dist_eval.metrics.computing import compute_metrics
from dist_eval.metrics.metric_loading import synthetic_predictions
from dist_eval.petals.base_model.problem_types import REGRESSION
from dist_eval.report.__main__ import main as report
from dist_eval.results.run import CompleteRun
from dist_eval.results.tuning import TUNING
from dist_eval.runs.digests import with_digests
from dist_eval.runs.evaluation_folder import EvaluationFolder
from dist_eval.runs.reading import read_run
from dist_eval.summary.__main__ import main
from dist_eval.summary.document import differing_options, on_same_data
from dist_eval.tables import format_count


def run(folder: Path) -> EvaluationFolder:
    made = opened(folder)
    made.close()
    return made


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    run(tmp_path / "good").complete(PREDICTIONS, sections())
    counts = {"expected": 5, "seen": 3, "duplicates": 0, "missing": 2, "failed": 0}
    run(tmp_path / "stopped").stop("this rank got SIGTERM", rank=0, host="here", coverage=counts)
    run(tmp_path / "wrong").fail("no column 'a|b'", rank=0, host="here")
    return tmp_path


@pytest.mark.parametrize(
    ("names", "status"), [(["good"], 0), (["good", "stopped"], 75), (["stopped", "wrong"], 1), (["good", "never"], 1)]
)
def test_its_status_is_that_of_the_worst(
    names: list[str], status: int, runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(runs)
    assert main(names) == status
    printed = capsys.readouterr().out
    complete = names.count("good")
    assert f"{complete} of {format_count(len(names), 'run is', 'runs are')} complete" in printed
    assert all(re.search(f"^{name} ", printed, re.MULTILINE) for name in names)


def test_the_table_shows_figures_and_why_a_run_is_not_complete(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(runs)
    assert main(["good", "stopped", "wrong"]) == 1
    header, good, stopped, wrong, *below = capsys.readouterr().out.splitlines()
    interval = FACTS["intervals"]["accuracy"]
    assert header.split() == ["run", "status", "examples", "accuracy", "balanced_accuracy", "f1_macro", "mcc", "loss"]
    assert good.split()[1:4] == ["complete", "5", "0.8000"]
    assert f"0.8000 [{interval['low']:.4f}, {interval['high']:.4f}]" in good
    assert stopped.split()[1:] == ["incomplete", "3", "of", "5", *"-----"]
    assert wrong.split()[1:] == ["failed", "-", *"-----"]
    assert "stopped: incomplete, this rank got SIGTERM; running the same command again resumes it" in below
    assert "wrong: failed, no column 'a|b'" in below


def test_files_say_what_the_table_says(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [runs / f"summary.{kind}" for kind in ("csv", "json", "md")]
    words = [str(runs / "good"), str(runs / "wrong"), "--metric", "accuracy", "log_loss", "--write", *map(str, paths)]
    assert main(words) == 1
    with paths[0].open(newline="") as file:
        in_csv = list(csv.DictReader(file))
    in_json = json.loads(paths[1].read_text())
    assert [{k: "" if v is None else str(v) for k, v in row.items()} for row in in_json] == in_csv
    assert in_json[0]["accuracy"] == METRICS.values["accuracy"]
    assert in_json[0]["log_loss_low"] == FACTS["intervals"]["log_loss"]["low"]
    assert [row["exit_status"] for row in in_json] == [0, 1]
    assert in_json[1]["accuracy"] is None
    markdown = paths[2].read_text().splitlines()
    assert markdown[2] == "1 of 2 runs are complete."
    assert markdown[4] == "| run | status | examples | accuracy | log_loss |"
    assert all(line.count(" | ") == 4 for line in markdown[4:8])
    assert markdown[6].startswith(f"| `{runs / 'good'}` | `complete` | ")
    assert f"- `{runs / 'wrong'}: failed, no column 'a|b'`" in markdown, "no markup"


def test_texts_that_a_spreadsheet_would_compute_stay_texts(tmp_path: Path) -> None:
    run(tmp_path / "wrong").fail("=1+1", rank=0, host="here")
    path = tmp_path / "summary.csv"
    assert main([str(tmp_path / "wrong"), "--write", str(path)]) == 1
    with path.open(newline="") as file:
        assert next(csv.DictReader(file))["reason"] == "'=1+1"


def test_a_run_of_a_list_that_left_nothing_is_missing(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (runs / "runs.txt").write_text("good\nlost --checkpoint x\n")
    assert main([str(runs), "--list", str(runs / "runs.txt")]) == 1
    assert f"{runs / 'lost'}: missing, there is no {runs / 'lost' / 'results.json'}" in capsys.readouterr().out


def test_a_folder_without_a_run_says_what_it_has(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (runs / "checked").mkdir()
    (runs / "checked" / "doctor.json").write_text("{}")
    assert main([str(runs / "good"), str(runs / "checked"), str(runs)]) == 1
    printed = " ".join(capsys.readouterr().out.split())
    assert "results.json; only `dist-eval doctor` was run" in printed
    assert "results.json; name the runs in it, such as" in printed


@pytest.mark.parametrize(
    ("options", "status", "words"),
    [
        (["--metric", "speed"], 2, "There is no metric 'speed'; the runs have accuracy"),
        (["--write", "a.xlsx"], 2, "the name must end with one of .csv, .html, .json, .md"),
        (["more", "--list", "runs.txt"], 2, "With --list, name one folder"),
    ],
)
def test_wrong_options_are_said(
    options: list[str], status: int, words: str, runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(runs / "good"), *options]) == status
    said = capsys.readouterr()
    assert words in said.err
    assert said.out == ""


def test_where_no_run_left_anything_its_files_have_a_folder_all_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "runs.txt").write_text("lost\n")
    written = tmp_path / "no" / "runs" / "summary.csv"
    assert main([str(written.parent), "--list", str(tmp_path / "runs.txt"), "--write", str(written)]) == 1
    assert "0 of 1 run is complete" in capsys.readouterr().out
    with written.open(newline="") as file:
        assert [row["status"] for row in csv.DictReader(file)] == ["missing"]


def test_the_table_is_shown_although_a_file_cannot_be_written(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (runs / "file").touch()
    assert main([str(runs / "good"), "--write", str(runs / "file" / "a.csv")]) == 1
    said = capsys.readouterr()
    assert "1 of 1 run is complete" in said.out
    assert f"--write {runs / 'file' / 'a.csv'} cannot be written: " in said.err


def on_data(folder: Path, digest: str) -> str:
    run(folder).complete(PREDICTIONS, sections(data={**FACTS["data"], "text_digest": digest}))
    return str(folder)


def test_runs_on_other_data_are_named_and_the_best_of_the_others_is_doubted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, other, third = (on_data(tmp_path / name, data) for name, data in (("a b", "x"), ("c", "y"), ("d", "x")))
    run(tmp_path / "wrong").fail("no column 'a|b'", rank=0, host="here")
    written = [tmp_path / f"summary.{kind}" for kind in ("json", "md")]
    assert main([str(tmp_path / "wrong"), first, other, third, "--write", *map(str, written)]) == 1
    printed = capsys.readouterr().out
    caution = f"{other}: evaluated on different data from {first}, so the metrics are not comparable"
    doubt = "picking the best of 2 runs on the same data overstates its result; to test differences: "
    command = f"dist-eval compare '{first}' {third}"
    assert caution in printed.splitlines()
    assert [line for line in printed.splitlines() if line.startswith(doubt) and line.endswith(command)]
    assert [row["other_data_than"] for row in json.loads(written[0].read_text())] == [None, None, first, None]
    assert f"- `{caution}`" in written[1].read_text() and f"- `{doubt}" in written[1].read_text()


def test_there_is_no_best_of_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([on_data(tmp_path / "a", "x"), on_data(tmp_path / "b", "y")]) == 0
    printed = capsys.readouterr().out
    assert "evaluated on different data from" in printed and "picking the best of" not in printed


def test_runs_on_tasks_have_the_metrics_of_groups_and_of_other_tasks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    right = [1.0] * 30 + [0.0] * 10
    tasks = task_run(tmp_path / "tasks", {"words": {"acc": right}}, {})
    first = on_data(tmp_path / "a", "x")
    assert main([str(tasks), first]) == 0
    header, row, *_ = capsys.readouterr().out.splitlines()
    assert header.split()[:4] == ["run", "status", "examples", "all/acc"]
    assert row.split()[1:4] == ["complete", "120", "0.5000"]
    assert main([str(tasks), first, "--metric", "words/acc", "--write", str(tmp_path / "written.json")]) == 0
    printed = capsys.readouterr().out
    assert "0.7500 [0.5981, 0.8581]" in printed
    assert f"{first}: evaluated on different data from {tasks}" in printed
    for first_document in (0, 2):
        again = task_run(tmp_path / str(first_document), {"words": {"acc": right}}, {}, first=first_document)
        assert on_same_data(read_run(again), read_run(tasks)) == (first_document == 0), "as many documents"
    assert json.loads((tmp_path / "written.json").read_text())[0]["words/acc"] == 0.75


def test_the_page_has_the_table_and_leads_to_the_pages_of_runs(runs: Path) -> None:
    report(["--output", str(runs / "good" / "report.html"), str(runs / "good")])
    page = runs / "pages" / "runs.html"
    assert main([str(runs / "good"), str(runs / "wrong"), "--metric", "accuracy", "--write", str(page)]) == 1
    source = page.read_text()
    assert "<h1>2 runs</h1>" in source and "1 of 2 runs are complete" in source
    assert '<a href="../good/report.html">good</a>' in source
    assert str(runs) not in source
    interval = FACTS["intervals"]["accuracy"]
    assert f"0.8000 <span>[{interval['low']:.4f}, {interval['high']:.4f}]</span>" in source
    assert "failed, no column &#39;a|b&#39;" in source


def test_the_page_has_all_runs_by_the_shortest_distinct_ends_of_their_folders(tmp_path: Path) -> None:
    on_data(tmp_path / "a" / "run", "x"), on_data(tmp_path / "b" / "run", "x")
    lost = [str(tmp_path / "lost" / str(number)) for number in range(205)]
    page = tmp_path / "runs.html"
    assert main([str(tmp_path / "a" / "run"), str(tmp_path / "b" / "run"), *lost, "--write", str(page)]) == 1
    source = page.read_text()
    assert source.count("<tr>") == 1 + 207 and "more are in" not in source
    assert "dist-eval compare a/run b/run" in source and "lost/204: missing, there is no results.json" in source
    assert str(tmp_path) not in source


def test_a_metric_of_a_group_is_sorted_in_the_direction_of_its_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = [task_run(tmp_path / name, {"words": {"acc": [1.0]}}, {}) for name in "ab"]
    for folder, value in zip(folders, (0.5, 0.25), strict=True):
        results = results_of(folder)
        results["tasks"]["words"]["metrics"][0]["higher_is_better"] = False
        results["groups"]["all"]["metrics"][0]["value"] = value
        results["groups"]["all"]["tasks"] = ["part"]
        results["groups"]["part"] = {"tasks": ["words"], "metrics": []}
        rewrite_results(folder, results)
    monkeypatch.chdir(tmp_path)
    assert main(["a", "b", "--sort", "all/acc"]) == 0
    assert capsys.readouterr().out.splitlines()[1].startswith("b ")


def test_runs_are_sorted_by_a_metric_the_best_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    right = [[1.0] * count + [0.0] * (40 - count) for count in (10, 30)]
    for name, own in zip("ab", right, strict=True):
        task_run(tmp_path / name, {"words": {"acc": own}}, {})
    assert main(["lost", "a", "b", "--sort", "words/acc"]) == 1
    _, *rows = capsys.readouterr().out.splitlines()
    assert [row.split()[0] for row in rows[:3]] == ["b", "a", "lost"]
    others = [run(tmp_path / name) for name in ("c", "d")]
    for other, loss in zip(others, (0.5, 0.25), strict=True):
        changed = {**METRICS.values, "loss": loss}
        other.complete(PREDICTIONS, sections().model_copy(update={"metrics": changed}))
    assert main(["c", "d", "--sort", "loss"]) == 0
    assert capsys.readouterr().out.splitlines()[1].startswith("d ")


def test_options_that_differ_are_shown_without_directories(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = []
    for name, options in (("a", {}), ("b", {"checkpoint": "/x/other/tuned", "compression": "float16"})):
        started = opened(tmp_path / name, **options)
        started.close()
        started.complete(PREDICTIONS, sections())
        made.append(str(tmp_path / name))
    assert main([*made, "--metric", "accuracy", "--options"]) == 0
    _, table = capsys.readouterr().out.split("Options that differ:\n")
    head, first, second, *_ = table.splitlines()
    assert head.split() == ["run", "compression", "checkpoint"]
    assert first.split() == [made[0], "none", "tuned"] and second.split() == [made[1], "float16", "other/tuned"]


def test_options_of_paths_that_end_alike_and_weights_of_the_same_model_are_told_apart(tmp_path: Path) -> None:
    run(tmp_path).complete(PREDICTIONS, sections())
    one = read_run(tmp_path)

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
        "slice_by": ["-", "length, source"],
    }


def test_the_best_epoch_of_a_tuning_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(tmp_path / "run").complete(PREDICTIONS, sections())
    recorded = results_of(tmp_path / "run")
    header = {name: recorded[name] for name in ("schema_version", "started", "finished", "environment")}
    epoch = {"epoch": 1, "loss": 0.5, "updates": 3, "seconds": 1.0, "metrics": {"accuracy": 0.875}}
    best = {"epoch": 1, "metric": "accuracy", "value": 0.875}
    content = {"data": FACTS["data"], "evaluation_data": FACTS["data"], "model": FACTS["model"], "swarm": None}
    (tmp_path / "tuned").mkdir()
    tuned = TUNING.validate_python(
        {**header, "config": {}, "status": "complete", "error": None, "epochs": [epoch], "best": best, **content}
    )
    (tmp_path / "tuned" / "tuning.json").write_text(json.dumps(with_digests(tuned, tmp_path / "tuned")))
    assert main([str(tmp_path / "tuned")]) == 0
    assert "tuned, epoch 1 of 1 is the best by accuracy (0.8750, optimistic" in capsys.readouterr().out


def test_a_prompt_makes_no_other_data(tmp_path: Path) -> None:
    run(tmp_path).complete(PREDICTIONS, sections())
    first = read_run(tmp_path)
    other = first.model_copy(update={"data": first.data.model_copy(update={"text_digest": "with the prompt"})})
    assert on_same_data(first, first) and not on_same_data(first, other)
    prompted = other.model_copy(update={"model": other.model.model_copy(update={"prompt": "text: {text}"})})
    assert on_same_data(first, prompted)


def test_the_same_classes_in_another_order_make_no_other_data(tmp_path: Path) -> None:
    run(tmp_path).complete(PREDICTIONS, sections())
    first = read_run(tmp_path)
    changes = {"data": first.data.model_copy(update={"text_digest": "by other numbers"})}
    other = first.model_copy(update={**changes, "per_class": first.per_class[::-1]})
    assert on_same_data(first, other) and on_same_data(other, first)
    rows = [row.model_copy(update={"support": 2}) for row in other.per_class]
    assert not on_same_data(first, other.model_copy(update={"per_class": rows}))
    texts = changes["data"].model_copy(update={"column_digests": {"text": "another"}})
    assert not on_same_data(first, other.model_copy(update={"data": texts}))


def test_files_beside_folders_are_no_runs(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (runs / "runs.html").touch()
    assert main([str(runs / "good"), str(runs / "runs.html")]) == 0
    assert "1 of 1 run is complete" in capsys.readouterr().out
    assert main([str(runs / "runs.html")]) == 1


def test_the_comparison_that_is_proposed_works_for_a_regression(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    predictions = synthetic_predictions(REGRESSION, 1)
    metrics = compute_metrics(predictions, ["score"])
    results = sections(metrics, **dict(analyse(predictions, metrics, AnalysisOptions())))
    for name in ("a", "b"):
        run(tmp_path / name).complete(predictions, results)
    assert main([str(tmp_path / "a"), str(tmp_path / "b")]) == 0
    command = f"dist-eval compare {tmp_path / 'a'} {tmp_path / 'b'}"
    assert capsys.readouterr().out.endswith(f"to test differences: {command}\n")
    assert compare(shlex.split(command)[2:]) == 0


def test_only_so_many_runs_are_named_for_a_comparison(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders = [on_data(tmp_path / str(number), "x") for number in range(6)]
    assert main(folders) == 0
    assert capsys.readouterr().out.endswith(f"dist-eval compare {' '.join(folders[:4])} ...\n")
