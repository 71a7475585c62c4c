"""Comparing runs on tasks of the harness: pairs of documents, their differences and tests."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from task_runs import task_run

from dist_eval.compare.__main__ import main
from dist_eval.compare.comparison import compare
from dist_eval.compare.loading import load_run
from dist_eval.errors import RunError
from dist_eval.statistics import bonett_price, mcnemar, wilson

DRAW = np.random.default_rng(0)
RIGHT = [DRAW.integers(0, 2, 60).astype(float).tolist() for _ in range(2)]
LIKELIHOODS = [DRAW.normal(-3 - shift, 0.2, 60).tolist() for shift in (0.0, 0.3)]
PERPLEXITIES = [math.exp(-float(np.mean(one))) for one in LIKELIHOODS]


def run(folder: Path, number: int, first: int = 0, **more: Any) -> Path:
    values = {"words": {"acc": RIGHT[number], "odd": RIGHT[number]}, "texts": {"perplexity": LIKELIHOODS[number]}}
    figures = {"words odd": 0.123, "texts perplexity": PERPLEXITIES[number]}
    return task_run(folder, {**values, **more}, figures, first)


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    other = {"endings": {"acc": [1.0] * 5}}
    return [run(tmp_path / "a", 0), run(tmp_path / "b", 1, **other)]


def test_documents_are_paired(folders: list[Path]) -> None:
    [found] = compare([load_run(folder) for folder in folders])
    assert list(found.differences) == ["words/acc", "words/odd", "texts/perplexity"]
    accuracy, odd, perplexity = found.differences.values()
    test = mcnemar(*(np.asarray(one, dtype=bool) for one in RIGHT))
    assert found.tests == {"words/acc": test} and accuracy.p_value == test.p_value
    assert accuracy.interval.limits == bonett_price(test.only_first, test.only_second, 60)
    assert accuracy.value == pytest.approx(float(np.mean(RIGHT[1]) - np.mean(RIGHT[0])))
    assert (odd.value, odd.p_value) == (0.0, None)
    assert odd.interval.reason == "the metric is not a function of a mean over documents"
    assert perplexity.value == pytest.approx(PERPLEXITIES[1] - PERPLEXITIES[0])
    assert perplexity.p_value is not None and perplexity.p_value < 0.01
    assert found.corrected["texts/perplexity"] == pytest.approx(2 * perplexity.p_value)
    assert found.facts == {"tasks_only_in_first": [], "tasks_only_in_run": ["endings"]}


def test_only_documents_that_both_have_are_compared(tmp_path: Path) -> None:
    runs = [run(tmp_path / "a", 0), run(tmp_path / "b", 0, first=20)]
    [found] = compare([load_run(folder) for folder in runs], metrics=["acc"])
    assert found.samples == {"words/acc": (40, 40)}
    before, after = (float(np.mean(one)) for one in (RIGHT[0][20:], RIGHT[0][:40]))
    assert found.differences["words/acc"].value == pytest.approx(after - before)
    for compared, value in ((found.first, before), (found.run, after)):
        assert compared.results.metrics["words/acc"] == pytest.approx(value)
        assert compared.results.intervals["words/acc"].limits == wilson(round(40 * value), 40, 0.95)
        assert "all/acc" not in compared.results.metrics, "the harness' figure is of all documents"
    assert compared.describe_runs([found.run]).endswith("on the documents that all of the runs have")


def test_a_third_run_restricts_all_to_the_documents_that_it_has(tmp_path: Path) -> None:
    runs = [run(tmp_path / "a", 0), run(tmp_path / "b", 1)]
    runs.append(task_run(tmp_path / "c", {"texts": {"perplexity": LIKELIHOODS[0][:30]}}, {"texts perplexity": 1.0}))
    pair, _ = compare([load_run(folder) for folder in runs])
    assert pair.samples["words/acc"] == (60, 0), "the third run has no such task"
    assert pair.samples["texts/perplexity"] == (30, 30)
    for compared, likelihoods in zip((pair.first, pair.run), LIKELIHOODS, strict=True):
        expected = math.exp(-float(np.mean(likelihoods[:30])))
        assert compared.results.metrics["texts/perplexity"] == pytest.approx(expected)


def test_tasks_that_are_not_compared_need_no_common_documents(tmp_path: Path) -> None:
    values = [{"words": {"acc": right}, "endings": {"acc": right[:30]}} for right in RIGHT]
    runs = [load_run(task_run(tmp_path / f"{first}", values[first > 0], {}, first)) for first in (0, 30)]
    [found] = compare(runs, metrics=["words/acc"])
    assert found.samples == {"words/acc": (30, 60)}
    with pytest.raises(RunError, match="no document of the task endings in common"):
        compare(runs)


def test_a_metric_that_is_no_mean_is_not_compared_over_other_documents(tmp_path: Path) -> None:
    values = {"words": {"odd": RIGHT[0]}}
    long = task_run(tmp_path / "a", values, {"words odd": 0.1})
    short = task_run(tmp_path / "b", {"words": {"odd": RIGHT[0][:40]}}, {"words odd": 0.3})
    for folders in ((long, short), (short, long)):
        [found] = compare([load_run(folder) for folder in folders])
        assert found.differences["words/odd"].value is None
        whole, part = sorted((found.first, found.run), key=lambda one: one.folder)
        assert (whole.results.metrics["words/odd"], part.results.metrics["words/odd"]) == (None, 0.3)
        assert "more documents than are compared" in whole.results.undefined["words/odd"]


def test_the_command_prints_tables_and_json(folders: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(folder) for folder in folders]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"tasks of the lm-evaluation-harness; compared with {folders[0]}"
    assert lines[1:3] == ["", f"{folders[1]}: only {folders[1]} has endings:"]
    assert lines[3].split()[:6] == ["metric", "a", "[95%]", "b", "[95%]", "difference"]
    gained, lost = (sum(map(float.__gt__, *pair)) for pair in (RIGHT[::-1], RIGHT))
    rows = [line.split() for line in lines if line.startswith("words/acc ")]
    assert rows[1:] == [["words/acc", "0.8555", "60", str(gained), str(lost)]]
    assert any(line.startswith("p by McNemar's test where a document is right or wrong") for line in lines)
    assert main([*map(str, folders), "--json"]) == 0
    [found] = json.loads(capsys.readouterr().out)["runs"]
    assert found["differences"]["words/acc"]["mcnemar"]["method"] == "exact"
    assert found["tasks_only_in_run"] == ["endings"]


def test_each_table_says_which_run_it_is_about(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [str(run(tmp_path / name, number)) for name, number in (("a", 0), ("b", 1), ("c", 1))]
    assert main(runs) == 0
    head, *tables = capsys.readouterr().out.split("\n\n")
    assert head == f"tasks of the lm-evaluation-harness; compared with {runs[0]}"
    captions = [table.splitlines()[0] for table in tables if not table.startswith("metric ")]
    assert captions == [f"{folder}:" for folder in runs[1:]]


def test_of_all_pairs_metrics_that_the_first_run_lacks_are_compared(folders: list[Path], tmp_path: Path) -> None:
    third = run(tmp_path / "c", 0, endings={"acc": [0.0] * 5})
    pairs = compare([load_run(folder) for folder in (*folders, third)], all_pairs=True)
    assert ["endings/acc" in pair.differences for pair in pairs] == [False, False, True]
    assert main([*map(str, folders), str(third), "--all-pairs"]) == 0


def test_changed_documents_are_written_with_what_was_answered(folders: list[Path], tmp_path: Path) -> None:
    assert main([*map(str, folders), "--changed", str(tmp_path / "changed.csv")]) == 0
    with (tmp_path / "changed.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    changed = [number for number in range(60) if RIGHT[0][number] != RIGHT[1][number]]
    assert [row["index"] for row in rows] == [f"words #{number}" for number in changed]
    for row, number in zip(rows, changed, strict=True):
        answers = ("south", "north") if RIGHT[1][number] else ("north", "south")
        assert (row["label"], row["before"], row["after"]) == ("north", *answers)
        assert row["change"] == ("gained" if RIGHT[1][number] else "lost")


def test_a_metric_that_only_later_runs_have_needs_all_pairs(
    folders: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [*map(str, folders), str(run(tmp_path / "c", 0, endings={"acc": [0.0] * 5}))]
    assert main([*runs, "--metric", "endings/acc"]) == 2
    message = "--metric endings/acc: no two of the runs that are compared have such a metric."
    assert message in capsys.readouterr().err
    assert main([*runs, "--metric", "endings/acc", "--all-pairs"]) == 0


def test_runs_without_anything_in_common_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, other = run(tmp_path / "a", 0), run(tmp_path / "b", 0, first=100)
    assert main([str(first), str(other)]) == 1
    assert (
        "have no document of the task words in common: their data or their --limit differ." in capsys.readouterr().err
    )
    another = task_run(tmp_path / "c", {"endings": {"acc": [1.0]}}, {})
    assert main([str(first), str(another)]) == 1
    assert "have no task in common." in capsys.readouterr().err
