"""Comparing runs: what changed is counted, figures are those of the runs, and runs on other data are refused."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyarrow import parquet
from samples import FACTS, config_for

from dist_eval.compare import _p, compare, main
from dist_eval.compared_run import Run
from dist_eval.errors import RunError
from dist_eval.evaluation.run_folder import RunFolder
from dist_eval.metrics.computing import compute_metrics
from dist_eval.metrics.predictions import Predictions
from dist_eval.statistics import holm, metric_intervals, paired_differences

NAMES = ["neg", "neutral", "pos"]


def predictions(skill: float, seed: int = 0, examples: int = 300, classes: int = 3) -> Predictions:
    """A model on the same examples as all others; the less skilled ones err here and there."""
    label = np.random.default_rng(99).integers(classes, size=examples)
    logits = np.random.default_rng(seed).normal(size=(examples, classes))
    logits[np.arange(examples), label] += skill
    return Predictions.from_logits(np.arange(examples), label, logits)


def run_of(
    folder: Path, found: Predictions, names: list[str] = NAMES, groups: np.ndarray | None = None, column: str = "doc",
    **data: Any,
) -> Path:  # fmt: skip
    """Writes a run's folder as the evaluator does."""
    metrics = compute_metrics(found, names)
    intervals = {name: one.facts() for name, one in metric_intervals(found, metrics, resamples=99).items()}
    of_groups = groups is not None and {"column": column, "count": len(np.unique(groups)), "largest": 10}
    run = RunFolder(config_for(folder))
    run.open()
    facts = {"data": {**FACTS["data"], "text_digest": "texts", **data}, "intervals": intervals}
    run.complete(found, metrics, {**FACTS, **facts, "groups": of_groups or None}, groups)
    run.close()
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("runs")
    return [run_of(folder / name, predictions(skill)) for name, skill in (("a", 1.0), ("b", 1.6), ("c", 1.02))]


def test_a_run_is_read_back_as_it_was(folders: list[Path]) -> None:
    run, whole = Run.load(folders[0]), predictions(1.0)
    for name in ("index", "label", "prediction", "loss", "probabilities"):
        assert np.array_equal(getattr(run, name), getattr(whole, name)), name
    assert [column.tolist() for column in run.probabilities_of([2, 0])] == [
        column.tolist() for column in whole.probabilities_of([2, 0])
    ]


def test_differences_are_those_of_the_predictions(folders: list[Path]) -> None:
    runs = [Run.load(folder) for folder in folders]
    comparisons = compare(runs, metrics=["f1_macro", "loss"])
    first, *others = (predictions(skill) for skill in (1.0, 1.6, 1.02))
    p_values = []
    for one, other in zip(comparisons, others, strict=True):
        expected = paired_differences(first, other, metrics=["f1_macro", "loss"])
        assert one.differences == expected
        right = [x.label == x.prediction for x in (first, other)]
        assert (one.test.only_first, one.test.only_second) == (
            (right[0] & ~right[1]).sum(),
            (right[1] & ~right[0]).sum(),
        )
        assert one.changed == (first.prediction != other.prediction).sum()
        p_values += [expected[name].p_value for name in ("f1_macro", "loss")]
    corrected = [one.corrected[name] for one in comparisons for name in ("f1_macro", "loss")]
    assert corrected == holm(p_values)
    assert [one.test_corrected for one in comparisons] == holm([one.test.p_value for one in comparisons])


def test_the_table_shows_figures_intervals_and_both_ways_of_changing(
    folders: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*map(str, folders)]) == 0
    table = capsys.readouterr().out
    runs = [Run.load(folder) for folder in folders]
    for one in compare(runs):
        assert (
            f"{one.run.folder}: {one.changed} predictions changed, {one.test.only_second} of them from wrong to right, "
            f"{one.test.only_first} from right to wrong"
        ) in table
        difference = one.differences["accuracy"]
        shown = f"{difference.value:+.4f} [{difference.interval.low:+.4f}, {difference.interval.high:+.4f}]"
        assert shown in table
    interval = runs[0].results["intervals"]["mcc"]
    shown = f"{runs[0].results['metrics']['mcc']:.4f} [{interval['low']:.4f}, {interval['high']:.4f}]"
    assert table.count(shown) == 2
    assert "corrected for the number of runs" in table


def test_json_says_what_the_table_says(folders: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*map(str, folders[:2]), "--json", "--metric", "roc_auc_ovr_macro", "--confidence", "0.9"]) == 0
    found = json.loads(capsys.readouterr().out)
    [comparison] = compare([Run.load(folder) for folder in folders[:2]], metrics=["roc_auc_ovr_macro"], confidence=0.9)
    [one] = found["runs"]
    assert found["examples"] == 300
    assert one["mcnemar"]["p_value"] == one["mcnemar"]["p_value_holm"] == comparison.test.p_value
    assert list(one["differences"]) == ["roc_auc_ovr_macro"]
    difference, expected = one["differences"]["roc_auc_ovr_macro"], comparison.differences["roc_auc_ovr_macro"]
    assert difference["value"] == expected.value
    assert difference["interval"] == expected.interval.facts()
    assert difference["interval"]["confidence"] == 0.9


def test_changed_examples_are_written_with_what_became_of_them(folders: list[Path], tmp_path: Path) -> None:
    path = tmp_path / "changed.csv"
    assert main([*map(str, folders), "--changed", str(path), "--metric", "accuracy"]) == 0
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    first, second, _ = (Run.load(folder) for folder in folders)
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
    assert sum(row["change"] == "gained" for row in ours) == (second.is_right & ~first.is_right).sum()


def test_a_run_does_not_differ_from_itself(folders: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(folders[0]), str(folders[0])]) == 0
    table = capsys.readouterr().out
    assert "0 predictions changed" in table
    assert "p = 1.0000" in table
    assert "+0.0000" in table


DOCUMENTS = np.arange(300) // 10


def test_runs_with_groups_are_compared_by_drawing_whole_groups(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = [run_of(tmp_path / str(skill), predictions(skill), groups=DOCUMENTS) for skill in (1.0, 1.6, 1.02)]
    runs = [Run.load(folder) for folder in folders]
    assert all(np.array_equal(run.group, DOCUMENTS) for run in runs)
    comparisons = compare(runs, metrics=["f1_macro"])
    first, *others = (predictions(skill) for skill in (1.0, 1.6, 1.02))
    wanted = ["accuracy", "f1_macro"]
    expected = [paired_differences(first, other, metrics=wanted, groups=DOCUMENTS) for other in others]
    assert [one.differences for one in comparisons] == [{"f1_macro": each["f1_macro"]} for each in expected]
    tests = [one.test for one in comparisons]
    assert [test.p_value for test in tests] == [each["accuracy"].p_value for each in expected]
    assert [one.test_corrected for one in comparisons] == holm([test.p_value for test in tests])
    assert [(test.column, test.count, test.reason) for test in tests] == [("doc", 30, None)] * 2

    assert main([*map(str, folders)]) == 0
    table = capsys.readouterr().out
    assert "McNemar" not in table
    assert "paired bootstrap of the accuracy over 30 groups of 'doc': p = " in table
    assert main([*map(str, folders[:2]), "--json"]) == 0
    [one] = json.loads(capsys.readouterr().out)["runs"]
    assert one["mcnemar"] is None
    assert one["paired_bootstrap_of_groups"]["p_value"] == tests[0].p_value
    assert one["differences"]["accuracy"]["interval"]["method"] == "bca"


def test_too_few_groups_have_a_reason_in_place_of_a_test(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    few = np.arange(300) // 30
    folders = [run_of(tmp_path / str(skill), predictions(skill), groups=few) for skill in (1.0, 1.6)]
    assert main([*map(str, folders)]) == 0
    assert "10 groups of 'doc' (fewer than 20 groups: too few for the bootstrap): p = -" in capsys.readouterr().out
    [one] = compare([Run.load(folder) for folder in folders])
    assert one.test.p_value is one.test_corrected is None


def test_equal_models_whose_documents_are_right_or_wrong_as_a_whole_are_rarely_told_apart() -> None:
    generator, samples, documents, rows = np.random.default_rng(7), 200, 40, 10
    index, label = np.arange(documents * rows), np.zeros(documents * rows, dtype=np.int64)
    facts = {"data": {"text_digest": "texts"}, "confusion_matrix": {"labels": ["yes", "no"]}, "metrics": {}}
    grouped = {**facts, "groups": {"column": "doc", "count": documents, "largest": rows}}

    def p_value(models: list[Predictions], results: dict[str, Any], group: np.ndarray | None) -> float:
        columns = [(one.index, one.label, one.prediction, one.loss, one.probabilities) for one in models]
        [one] = compare([Run(Path("run"), results, *each, group=group) for each in columns], metrics=["accuracy"])
        assert one.differences["accuracy"].p_value == one.test.p_value
        return one.test.p_value

    p_values = []
    for _ in range(samples):
        # each model is right about most documents in nearly all rows, and wrong about the others
        shares = generator.choice([0.05, 0.95], p=[0.3, 0.7], size=(2, documents))
        right = generator.random((2, documents * rows)) < np.repeat(shares, rows, axis=1)
        models = [Predictions.from_logits(index, label, np.eye(2)[np.where(one, 0, 1)]) for one in right]
        p_values.append((p_value(models, grouped, index // rows), p_value(models, facts, None)))
    of_groups, of_rows = (np.asarray(p_values) <= 0.05).mean(axis=0)
    assert of_groups <= 0.1 < 0.3 < of_rows, (of_groups, of_rows)


def without_its_groups(folder: Path) -> None:
    path = folder / "predictions.parquet"
    parquet.write_table(parquet.read_table(path).drop_columns(["group"]), path)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"groups": DOCUMENTS, "column": "author"}, "their --group-column differs, {first} 'doc' and {other} 'author'"),
        ({}, "{other} none. Start the command of {other} again with --group-column doc, which sends nothing."),
        ({"groups": DOCUMENTS[::-1].copy()}, "column 'doc' puts examples into other groups"),
        ({"old": True}, "{other} has intervals over groups of 'doc', but its predictions.parquet does"),
    ],
    ids=["column", "none", "members", "older"],
)
def test_runs_with_other_groups_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: dict[str, Any], words: str
) -> None:
    first, other = tmp_path / "first", tmp_path / "other"
    run_of(first, predictions(1.0), groups=DOCUMENTS)
    if "old" in options:
        without_its_groups(run_of(other, predictions(1.6), groups=DOCUMENTS))
    else:
        run_of(other, predictions(1.6), **options)
    assert main([str(first), str(other)]) == 1
    assert words.format(first=first, other=other) in capsys.readouterr().err


def test_the_heads_say_the_levels_and_reasons_stand_below(
    folders: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    perfect = run_of(tmp_path / "perfect", predictions(50.0))
    assert main([str(folders[0]), str(perfect), "--confidence", "0.8"]) == 0
    lines = capsys.readouterr().out.splitlines()
    [head] = [line for line in lines if "p (Holm)" in line]
    assert f"{str(folders[0])[-20:]} [95%]" in head and "difference [80%]" in head
    [row] = [line for line in lines if line.startswith("f1_macro")]
    assert "1.0000 (1)" in row
    assert any(line.startswith("(1) all resamples give the same value") for line in lines)


def test_no_p_value_is_shown_as_zero() -> None:
    assert [_p(value) for value in (None, 0.0, 1e-9, 0.25)] == ["-", "<1e-300", "1e-09", "0.2500"]


def failing(found: Predictions) -> Predictions:
    return found.rows(3, len(found))


@pytest.mark.parametrize(
    ("second", "names", "data", "words"),
    [
        (predictions(1.6), NAMES, {"text_digest": "others", "source": "dev.csv"}, "their data differ, test.csv (300"),
        (predictions(1.6), ["neg", "pos", "neutral"], {}, "the classes differ"),
        (failing(predictions(1.6)), NAMES, {}, "3 examples, such as number 0, failed in one of them only"),
    ],
    ids=["data", "classes", "failed"],
)
def test_runs_that_cannot_be_compared_are_refused_with_the_reason(
    folders: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], second: Predictions, names: list[str],
    data: dict[str, Any], words: str,
) -> None:  # fmt: skip
    other = run_of(tmp_path / "other", second, names, **data)
    assert main([str(folders[0]), str(other)]) == 1
    printed = capsys.readouterr()
    assert words in printed.err and str(other) in printed.err
    assert printed.out == ""


def test_a_folder_without_a_complete_run_is_named(folders: list[Path], tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"holds no results\.json"):
        Run.load(tmp_path)
    running = RunFolder(config_for(tmp_path / "running"))
    running.open()
    with pytest.raises(RunError, match="is not complete but running"):
        Run.load(tmp_path / "running")
    broken = run_of(tmp_path / "broken", predictions(1.0))
    (broken / "predictions.parquet").write_bytes(b"PAR1")
    with pytest.raises(RunError, match=r"predictions\.parquet cannot be read"):
        Run.load(broken)
    (broken / "results.json").write_text("{")
    with pytest.raises(RunError, match=r"results\.json cannot be read"):
        Run.load(broken)
    (broken / "results.json").write_text('{"schema_version": 0}')
    with pytest.raises(RunError, match="another format"):
        Run.load(broken)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "name at least two runs"),
        (["SECOND", "--metric", "f1"], "'f1' cannot be compared; these can: accuracy, "),
        (["SECOND", "--confidence", "95"], "--confidence must be between 0 and 1"),
    ],
)
def test_wrong_options_are_said(
    folders: list[Path], capsys: pytest.CaptureFixture[str], options: list[str], words: str
) -> None:
    second = [str(folders[1]) if option == "SECOND" else option for option in options]
    assert main([str(folders[0]), *second]) == 2
    assert words in capsys.readouterr().err


def test_its_help_needs_no_large_library() -> None:
    program = "import sys, dist_eval.compare as c; c.build_parser().format_help(); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert {"numpy", "torch", "scipy", "pyarrow", "sklearn"}.isdisjoint(done.stdout.split())


def test_it_runs_as_a_program(folders: list[Path]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "dist_eval.compare", *map(str, folders[:2])], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "McNemar's test (exact)" in done.stdout
