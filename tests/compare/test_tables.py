"""The output of a comparison: tables, JSON and CSV."""

from __future__ import annotations

import collections
import csv
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from compare_runs import NAMES, predictions, run_of

from dist_eval.compare.__main__ import main
from dist_eval.compare.changes import format_label
from dist_eval.compare.comparison import Comparison, GroupedTest, compare
from dist_eval.compare.loading import load_run
from dist_eval.compare.tables import _test_lines, describe_pairs, format_p, short_names
from dist_eval.petals.base_model.problem_types import MULTI_LABEL, REGRESSION, Problem


def test_the_table_shows_figures_intervals_and_both_ways_of_changing(
    folders: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*map(str, folders)]) == 0
    table = capsys.readouterr().out
    runs = [load_run(folder) for folder in folders]
    for one in compare(runs):
        assert (
            f"{one.run.folder}: {one.facts['changed']} predictions changed, {one.test.only_second} of them from "
            f"wrong to right, {one.test.only_first} from right to wrong"
        ) in table
        difference = one.differences["accuracy"]
        shown = f"{difference.value:+.4f} [{difference.interval.low:+.4f}, {difference.interval.high:+.4f}]"
        assert shown in table
    interval = runs[0].results.intervals["mcc"]
    shown = f"{runs[0].metrics['mcc']:.4f} [{interval.low:.4f}, {interval.high:.4f}]"
    assert table.count(shown) == 2
    assert table.count(", by Holm's procedure for 2 runs ") == 2 and table.count("p (Holm, 10)") == 2
    assert re.search("<=0.0001 +<=0.0009", table)  # as small as 9,999 resamples show, ten times


def test_json_says_what_the_table_says(folders: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*map(str, folders[:2]), "--json", "--metric", "roc_auc_ovr_macro", "--confidence", "0.9"]) == 0
    found = json.loads(capsys.readouterr().out)
    [comparison] = compare([load_run(folder) for folder in folders[:2]], metrics=["roc_auc_ovr_macro"], confidence=0.9)
    [one] = found["runs"]
    assert found["examples"] == 300
    assert one["mcnemar"]["p_value"] == one["mcnemar"]["p_value_holm"] == comparison.test.p_value
    assert list(one["differences"]) == ["roc_auc_ovr_macro"]
    difference, expected = one["differences"]["roc_auc_ovr_macro"], comparison.differences["roc_auc_ovr_macro"]
    assert difference["value"] == expected.value
    assert difference["interval"] == expected.interval.to_json()
    assert difference["interval"]["confidence"] == 0.9


def test_changed_examples_are_written_with_the_kind_of_change(folders: list[Path], tmp_path: Path) -> None:
    path = tmp_path / "changed.csv"
    assert main([*map(str, folders), "--changed", str(path), "--metric", "accuracy"]) == 0
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    first, second = (load_run(folder).predictions for folder in folders[:2])
    ours = [row for row in rows if row["run"] == str(folders[1])]
    changed = np.flatnonzero(first.prediction != second.prediction)
    assert [int(row["index"]) for row in ours] == changed.tolist()
    for row in ours:
        place = int(row["index"])
        assert (row["label"], row["before"], row["after"]) == tuple(
            NAMES[column[place]] for column in (first.label, first.prediction, second.prediction)
        )
        gained, lost = row["after"] == row["label"], row["before"] == row["label"]
        assert row["change"] == ("gained" if gained else "lost" if lost else "still wrong")
    assert (
        sum(row["change"] == "gained" for row in ours)
        == ((second.label == second.prediction) & (first.label != first.prediction)).sum()
    )


def test_names_that_a_spreadsheet_would_compute_stay_text() -> None:
    names = ["=1+1", "@x", "plain"]
    assert [format_label(np.int64(label), names) for label in range(3)] == ["'=1+1", "'@x", "plain"]
    assert format_label(np.array([True, True, False]), names) == "'=1+1;'@x"
    assert format_label(np.array([-0.5, 1.0]), names) == "-0.5;1.0", "numbers stay numbers"


@pytest.mark.parametrize("problem", [MULTI_LABEL, REGRESSION], ids=lambda problem: problem.name)
def test_tables_of_other_problem_types_describe_their_changes(
    problem: Problem, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    models = [predictions(skill, problem=problem) for skill in (1.0, 1.6)]
    runs = [str(run_of(tmp_path / str(number), one)) for number, one in enumerate(models)]
    path = tmp_path / "changed.csv"
    assert main([*runs, "--changed", str(path)]) == 0
    table = capsys.readouterr().out
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert main([*runs, "--json"]) == 0
    [found] = json.loads(capsys.readouterr().out)["runs"]
    assert len(rows) == found["changed"]
    counts = collections.Counter(row["change"] for row in rows)
    row = rows[0]
    place = int(row["index"])
    cells = [column[place] for column in (models[0].label, models[0].prediction, models[1].prediction)]
    if problem is REGRESSION:
        assert f"{found['improved']} of them are nearer to their labels, {found['worsened']} farther away" in table
        assert (counts["nearer"], counts["farther"]) == (found["improved"], found["worsened"])
        assert found["mcnemar"] is None and "McNemar" not in table
        for cell, shown in zip(cells, (row["label"], row["before"], row["after"]), strict=True):
            assert [float(value) for value in shown.split(";")] == cell.tolist()
        return
    assert f"{found['improved']} of them from not all right to all right" in table
    assert (counts["gained"], counts["lost"]) == (found["improved"], found["worsened"])
    assert found["mcnemar"]["p_value"] == found["differences"]["subset_accuracy"]["p_value"]
    for cell, shown in zip(cells, (row["label"], row["before"], row["after"]), strict=True):
        assert shown == ";".join(name for name, is_given in zip(NAMES, cell, strict=True) if is_given)


def test_a_run_does_not_differ_from_itself(folders: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(folders[0]), str(folders[0])]) == 0
    table = capsys.readouterr().out
    assert "no prediction changed" in table
    assert "p = 1.0000" in table
    assert "+0.0000" in table


def test_the_heads_say_the_levels_and_reasons_stand_below(
    folders: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    perfect = run_of(tmp_path / "perfect", predictions(50.0))
    assert main([str(folders[0]), str(perfect), "--confidence", "0.8"]) == 0
    lines = capsys.readouterr().out.splitlines()
    [head] = [line for line in lines if "p (Holm, " in line]
    assert "a [95%]" in head and "perfect [95%]" in head and "difference [80%]" in head
    [row] = [line for line in lines if line.startswith("f1_macro")]
    assert "1.0000 (1)" in row
    assert any(line.startswith("(1) nearly all resamples give the same value") for line in lines)


@pytest.mark.parametrize(
    ("folders", "names"),
    [
        (["runs/a/epoch-3", "runs/b/epoch-3", "runs/b/epoch-4"], ["a/epoch-3", "b/epoch-3", "b/epoch-4"]),
        (["runs/a", "runs/b"], ["a", "b"]),
        (["a", "runs/a"], ["a", "runs/a"]),
        (["runs/a", "runs/a"], ["a", "a"]),
        (["runs/epoch-of-a-very-long-name-number-1", "b"], ["...a-very-long-name-number-1", "b"]),
        (["."], ["."]),
    ],
)
def test_column_heads_distinguish_runs(folders: list[str], names: list[str]) -> None:
    shown = short_names([Path(folder) for folder in folders])
    assert shown == names


def test_a_p_value_that_resamples_keep_from_being_smaller_says_so(
    folders: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    options = [str(folders[0]), *[str(folders[1])] * 11, "--metric", "sample_metrics:error_rate"]
    assert main(options) == 0
    table = capsys.readouterr().out
    assert re.search(r"<=0.0050 +<=0.0550 \(1\)", table)
    assert "(1) 199 resamples allow no smaller p-value; compare's --resamples sets more" in table
    assert main([*options, "--resamples", "999"]) == 0
    assert re.search("<=0.0010 +<=0.0110\n", capsys.readouterr().out)


def test_footnotes_of_values_that_are_not_shown_are_left_out(folders: list[Path], tmp_path: Path) -> None:
    perfect = run_of(tmp_path / "perfect", predictions(50.0))
    [section] = describe_pairs(compare([load_run(folder) for folder in (folders[0], perfect)])).sections
    [table] = section.parts
    shown = {number for row in table.rows for cell in row for number in re.findall(r"\((\d)\)", str(cell))}
    assert [note[:3] for note in table.notes] == [f"({number})" for number in sorted(shown)]


def test_a_test_of_groups_says_it_too() -> None:
    run: Any = None
    test = GroupedTest(1, 9, p_value=0.01, reason=None, metric="accuracy", column="doc", count=50, resamples=99)
    [line] = _test_lines(Comparison(run, run, {}, test=test, test_corrected=0.02), 2, "runs")
    assert line == (
        "paired bootstrap of accuracy over 50 groups of 'doc': p <= 0.0100, by Holm's procedure for 2 runs <=0.0200"
    )
    [line] = _test_lines(Comparison(run, run, {}, test=replace(test, p_value=0.02)), 1, "runs")
    assert line.endswith(": p = 0.0200")


def test_no_p_value_is_shown_as_zero() -> None:
    assert [format_p(value) for value in (None, 0.0, 1e-9, 0.25)] == ["-", "<1e-300", "1e-09", "0.2500"]
