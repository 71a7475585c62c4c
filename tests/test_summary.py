"""The summary of many runs: it contains every run, and its exit status is that of the worst."""

from __future__ import annotations

import csv
import json
import shlex
from pathlib import Path

import pytest
from samples import FACTS, METRICS, PREDICTIONS, config_for, folder_of, sections
from task_runs import task_run

from dist_eval.analysis.options import AnalysisOptions, analyse
from dist_eval.compare.__main__ import main as compare
from dist_eval.data.problem_types import REGRESSION
from dist_eval.metrics.computing import compute_metrics
from dist_eval.metrics.metric_loading import synthetic_predictions
from dist_eval.runs.evaluation_folder import EvaluationFolder
from dist_eval.summary import main
from dist_eval.tables import format_count


def run(folder: Path) -> EvaluationFolder:
    made = folder_of(config_for(folder))
    made.open()
    made.close()
    return made


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    run(tmp_path / "good").complete(PREDICTIONS, METRICS, sections())
    counts = {"expected": 5, "seen": 3, "duplicates": 0, "missing": 2, "failed": 0}
    run(tmp_path / "stopped").stop("this rank got SIGTERM", rank=0, host="here", coverage=counts)
    run(tmp_path / "wrong").fail("no column 'a|b'", rank=0, host="here")
    return tmp_path


@pytest.mark.parametrize(
    ("names", "status"),
    [(["good"], 0), (["good", "stopped"], 75), (["stopped", "wrong"], 1), (["good", "never"], 1)],
)
def test_its_status_is_that_of_the_worst(
    names: list[str], status: int, runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(runs / name) for name in names]) == status
    printed = capsys.readouterr().out
    complete = names.count("good")
    assert f"{complete} of {format_count(len(names), 'run is', 'runs are')} complete" in printed
    assert all(str(runs / name) in printed for name in names)


def test_the_table_shows_figures_and_why_a_run_is_not_complete(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(runs / name) for name in ("good", "stopped", "wrong")]) == 1
    header, good, stopped, wrong, *below = capsys.readouterr().out.splitlines()
    interval = FACTS["intervals"]["accuracy"]
    assert header.split() == ["run", "status", "examples", "accuracy", "balanced_accuracy", "f1_macro", "mcc", "loss"]
    assert f"complete    5         0.8000 [{interval['low']:.4f}, {interval['high']:.4f}]" in good
    assert stopped.split()[1:] == ["incomplete", "3", "of", "5", *"-----"]
    assert wrong.split()[1:] == ["failed", "-", *"-----"]
    assert f"{runs / 'stopped'}: incomplete, this rank got SIGTERM; running the same command again resumes it" in below
    assert f"{runs / 'wrong'}: failed, no column 'a|b'" in below


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
    assert markdown[0] == "| run | status | examples | accuracy | log_loss |"
    assert all(line.count(" | ") == 4 for line in markdown[:4])
    assert "1 of 2 runs are complete." in markdown
    assert markdown[2].startswith(f"| `{runs / 'good'}` | complete | ")
    assert f"- `{runs / 'wrong'}: failed, no column 'a\\|b'`" in markdown, "no markup"


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


@pytest.mark.parametrize(
    ("options", "status", "words"),
    [
        (["--metric", "speed"], 2, "There is no metric 'speed'; the runs have accuracy"),
        (["--write", "a.xlsx"], 2, "the name must end with one of .csv, .json, .md"),
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
    assert f"--write {runs / 'file' / 'a.csv'}: cannot be written (" in said.err


def on_data(folder: Path, digest: str) -> str:
    run(folder).complete(PREDICTIONS, METRICS, sections(data={**FACTS["data"], "text_digest": digest}))
    return str(folder)


def test_runs_on_other_data_are_named_and_the_best_of_the_others_is_doubted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, other, third = (on_data(tmp_path / name, data) for name, data in (("a b", "x"), ("c", "y"), ("d", "x")))
    run(tmp_path / "wrong").fail("no column 'a|b'", rank=0, host="here")
    written = [tmp_path / f"summary.{kind}" for kind in ("json", "md")]
    assert main([str(tmp_path / "wrong"), first, other, third, "--write", *map(str, written)]) == 1
    printed = capsys.readouterr().out
    caution = f"{other}: on other data than {first}, their metrics are not comparable"
    doubt = "the best of 2 is biased upwards by the selection; for tests of the differences: "
    command = f"dist-eval compare '{first}' {third}"
    assert caution in printed.splitlines()
    assert [line for line in printed.splitlines() if line.startswith(doubt) and line.endswith(command)]
    assert [row["other_data_than"] for row in json.loads(written[0].read_text())] == [None, None, first, None]
    assert f"- `{caution}`" in written[1].read_text() and f"- `{doubt}" in written[1].read_text()


def test_there_is_no_best_of_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([on_data(tmp_path / "a", "x"), on_data(tmp_path / "b", "y")]) == 0
    printed = capsys.readouterr().out
    assert "on other data than" in printed and "the best of" not in printed


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
    assert f"{first}: on other data than {tasks}" in printed
    assert json.loads((tmp_path / "written.json").read_text())[0]["words/acc"] == 0.75


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
        run(tmp_path / name).complete(predictions, metrics, results)
    assert main([str(tmp_path / "a"), str(tmp_path / "b")]) == 0
    command = f"dist-eval compare {tmp_path / 'a'} {tmp_path / 'b'}"
    assert capsys.readouterr().out.endswith(f"for tests of the differences: {command}\n")
    assert compare(shlex.split(command)[2:]) == 0


def test_only_so_many_runs_are_named_for_a_comparison(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders = [on_data(tmp_path / str(number), "x") for number in range(6)]
    assert main(folders) == 0
    assert capsys.readouterr().out.endswith(f"dist-eval compare {' '.join(folders[:4])} ...\n")
