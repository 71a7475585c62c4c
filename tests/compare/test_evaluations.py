"""Runs read back: as they were, and only beside others on the same examples."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from compare_runs import NAMES, predictions, run_of
from conftest import results_of
from pyarrow import parquet
from samples import opened, rewrite_results

from dist_eval.compare.__main__ import main
from dist_eval.compare.comparison import compare
from dist_eval.compare.evaluations import ComparedEvaluation
from dist_eval.compare.loading import load_run
from dist_eval.compare.tables import describe_comparisons
from dist_eval.errors import RunError
from dist_eval.metrics.computing import compute_metrics
from dist_eval.metrics.custom_metrics import CustomMetric
from dist_eval.metrics.predictions import Predictions
from dist_eval.petals.base_model.problem_types import MULTI_LABEL, PROBLEMS, REGRESSION, Problem
from dist_eval.results.inputs import Coverage
from dist_eval.statistics import wilson


def test_a_run_is_read_back_as_it_was(folders: list[Path]) -> None:
    run, whole = load_run(folders[0]).predictions, predictions(1.0)
    for name in ("index", "label", "prediction", "loss", "probabilities"):
        assert np.array_equal(getattr(run, name), getattr(whole, name)), name
    assert [column.tolist() for column in run.probabilities_of([2, 0])] == [
        column.tolist() for column in whole.probabilities_of([2, 0])
    ]


SAMPLE = np.asarray([5, 8, *range(100, 140)])


def sampled(folder: Path, rows: np.ndarray, skill: float, method: str = "random", **options: Any) -> Path:
    """A run on some rows of the data of the others, as a random sample or the first ones."""
    selection = {
        "method": method,
        "population": 300,
        "rows": len(rows),
        "seed": None if method == "first" else 0,
        "precision": None,
        "column_digests": {"text": "c"},
    }
    found = predictions(skill).at(rows)
    data = {"text_digest": f"of {rows.tolist()}", "column_digests": {"text": "of them"}, "selection": selection}
    return run_of(folder, found, **{**data, **options})


def with_coverage(run: ComparedEvaluation) -> ComparedEvaluation:
    count = len(run.predictions)
    coverage = Coverage(expected=count, seen=count, duplicates=0, missing=0)
    return replace(run, results=run.results.model_copy(update={"coverage": coverage}))


def test_a_run_on_a_sample_is_compared_with_one_on_all_rows_row_by_row(folders: list[Path], tmp_path: Path) -> None:
    runs = [with_coverage(load_run(one)) for one in (folders[0], sampled(tmp_path / "sample", SAMPLE, 1.6))]
    (found,) = compare(runs, resamples=99)
    assert found.first.predictions.index.tolist() == found.run.predictions.index.tolist() == SAMPLE.tolist()
    whole = compute_metrics(predictions(1.0).at(SAMPLE), NAMES)
    assert found.first.metrics == whole.values
    assert found.run.metrics == runs[1].metrics
    accuracy = found.first.results.intervals["accuracy"]
    hits = round(whole.values["accuracy"] * len(SAMPLE))
    assert accuracy.limits == wilson(hits, len(SAMPLE), sampling_fraction=len(SAMPLE) / 300)
    assert found.differences["accuracy"].value == found.run.metrics["accuracy"] - whole.values["accuracy"]
    [fact] = describe_comparisons([found]).facts
    assert fact == f"42 examples of test.csv, those that all of the runs evaluated; compared with {folders[0]}"


def test_two_parts_are_compared_on_the_rows_that_they_have_in_common(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = [
        sampled(tmp_path / "sample", SAMPLE, 1.6),
        sampled(tmp_path / "first", np.arange(120), 1.0, "first"),
        sampled(tmp_path / "last", np.arange(200, 300), 1.0),
    ]
    runs = [load_run(folder) for folder in parts]
    (found,) = compare(runs[:2], resamples=99)
    assert found.run.predictions.index.tolist() == [5, 8, *range(100, 120)]
    assert found.first.sampling_fraction == 0.0  # the rows are no random sample
    assert main([str(parts[0]), str(parts[2])]) == 1
    assert "there is no row of the dataset that all of them evaluated" in capsys.readouterr().err


def test_groups_of_a_sample_are_those_of_all_rows_under_other_numbers(tmp_path: Path) -> None:
    rows = np.arange(3, 300, 2)[::-1][:140][::-1]
    first_seen = np.unique(DOCUMENTS[rows], return_inverse=True)[1]
    whole = run_of(tmp_path / "whole", predictions(1.0), groups=DOCUMENTS)
    part = sampled(tmp_path / "part", rows, 1.6, groups=first_seen)
    (found,) = compare([load_run(whole), load_run(part)], resamples=99)
    assert found.first.results.groups is not None
    assert found.first.results.groups.count == len(np.unique(first_seen)) < len(np.unique(DOCUMENTS))
    assert found.first.results.intervals["accuracy"].method != "wilson"


def test_a_sample_of_other_data_is_refused(
    folders: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = sampled(tmp_path / "other", SAMPLE, 1.6)
    text = (other / "results.json").read_text()
    rewrite_results(other, json.loads(text.replace('"text": "c"', '"text": "another"')))
    assert main([str(folders[0]), str(other)]) == 1
    assert "their data differ" in capsys.readouterr().err


ORDER = [2, 0, 1]


def reordered(found: Predictions) -> Predictions:
    """What a model with the same classes in another order predicts for the same examples."""
    logits = found.logits[:, ORDER]
    label = np.argsort(ORDER)[found.label] if found.label.ndim == 1 else found.label[:, ORDER]
    return Predictions.from_logits(found.index, label, logits, found.problem)


def first_class(guesses: np.ndarray, labels: np.ndarray, _: Any) -> float:
    return float(np.mean((guesses == 0) == (labels == 0)))


@pytest.mark.parametrize("skill", [1.6, 200.0], ids=["probabilities", "logits"])
@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS)
def test_models_with_the_same_classes_in_another_order_are_compared_by_names(
    tmp_path: Path, problem: Problem, skill: float
) -> None:
    models = predictions(1.0, problem=problem), predictions(skill, 1, problem=problem)
    custom = [CustomMetric("own", "m:own", lambda inputs: first_class(*inputs.arguments()))]
    names = [NAMES[number] for number in ORDER]
    plain, other = (
        run_of(tmp_path / "plain", models[1], custom=custom),
        run_of(tmp_path / "other", reordered(models[1]), names, custom=custom, text_digest="others"),
    )
    first = load_run(run_of(tmp_path / "first", models[0], custom=custom))
    expected, found = (compare([first, load_run(each)], resamples=99)[0] for each in (plain, other))
    assert "own" in expected.differences and "own" not in found.differences
    assert list(found.changes()) == list(expected.changes())
    assert found.facts == pytest.approx(expected.facts, rel=1e-12)
    for name, difference in found.differences.items():
        assert difference.value == pytest.approx(expected.differences[name].value, abs=1e-12), name
    (again,) = compare([first, load_run(other)], custom_metrics=custom, resamples=99)
    assert again.differences["own"].value == expected.differences["own"].value


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("problem", [MULTI_LABEL, REGRESSION], ids=lambda problem: problem.name)
def test_runs_of_other_problems_are_read_back_as_they_were(problem: Problem, outputs: int, tmp_path: Path) -> None:
    whole = predictions(1.0, problem=problem, outputs=outputs)
    run = load_run(run_of(tmp_path / "run", whole, NAMES[:outputs]))
    assert (run.results.problem_type, run.results.label_names) == (problem.name, NAMES[:outputs])
    for name in ("index", "label", "prediction", "loss"):
        assert np.array_equal(getattr(run.predictions, name), getattr(whole, name)), name


DOCUMENTS = np.arange(300) // 10


def without_its_groups(folder: Path) -> None:
    path = folder / "predictions.parquet"
    parquet.write_table(parquet.read_table(path).drop_columns(["group"]), path)
    rewrite_results(folder, results_of(folder))


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


DEV = {"text_digest": "others", "source": "dev.csv", "column_digests": {"text": "d"}}


def failing(found: Predictions) -> Predictions:
    return found.at(slice(3, None))


@pytest.mark.parametrize(
    ("second", "names", "data", "words"),
    [
        (predictions(1.6), NAMES, DEV, "their data differ, test.csv (300"),
        (predictions(1.6), ["neg", "pos", "other"], {}, "the classes differ"),
        (failing(predictions(1.6)), NAMES, {}, "3 examples, such as number 0, failed in only one of them"),
        (predictions(1.6, problem=REGRESSION), NAMES, {}, "one is a run of single_label_classification, the"),
    ],
    ids=["data", "classes", "failed", "problem"],
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


@pytest.mark.parametrize(
    ("columns", "status"),
    [({"text": "t", "title": "b"}, 0), ({"text": "u", "source": "a"}, 1), ({"title": "b"}, 1)],
    ids=["one in common", "another of its name", "none in common"],
)
def test_texts_of_other_columns_can_be_compared_if_one_is_the_same(
    tmp_path: Path, columns: dict[str, str], status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    first = run_of(tmp_path / "first", predictions(1.0), column_digests={"text": "t", "source": "a"})
    other = run_of(tmp_path / "other", predictions(1.6), text_digest="others", column_digests=columns)
    assert main([str(first), str(other)]) == status, capsys.readouterr().err


def test_a_folder_without_a_complete_run_is_named(folders: list[Path], tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"has no results\.json"):
        load_run(tmp_path)
    opened(tmp_path / "running")
    with pytest.raises(RunError, match=r"is not complete \(status: running\)"):
        load_run(tmp_path / "running")
    broken = run_of(tmp_path / "broken", predictions(1.0))
    (broken / "predictions.parquet").write_bytes(b"PAR1")
    with pytest.raises(RunError, match=r"predictions\.parquet was damaged or changed"):
        load_run(broken)
    (broken / "predictions.parquet").unlink()
    with pytest.raises(RunError, match=r"predictions\.parquet is missing"):
        load_run(broken)
    (broken / "results.json").write_text("{")
    with pytest.raises(RunError, match=r"results\.json cannot be read"):
        load_run(broken)
    (broken / "results.json").write_text('{"schema_version": 0}')
    with pytest.raises(RunError, match="not in the format of this version"):
        load_run(broken)
