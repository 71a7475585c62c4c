"""Comparing runs: differences and tests follow from their predictions, for every problem type and metric."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from compare_runs import predictions, run_of

from dist_eval.compare.__main__ import main
from dist_eval.compare.comparison import compare
from dist_eval.compare.evaluations import ComparedEvaluation
from dist_eval.compare.loading import load_run
from dist_eval.errors import ConfigError
from dist_eval.metrics.catalogue import metric_names
from dist_eval.metrics.custom_metrics import CustomMetric
from dist_eval.metrics.metric_loading import load_metrics
from dist_eval.metrics.predictions import Predictions
from dist_eval.petals.base_model.problem_types import MULTI_LABEL, REGRESSION, SINGLE_LABEL, Problem
from dist_eval.results.run import CompleteRun
from dist_eval.results.scores import Groups
from dist_eval.runs.reading import read_run
from dist_eval.statistics import McNemar, holm, paired_differences


def test_differences_are_those_of_the_predictions(folders: list[Path]) -> None:
    runs = [load_run(folder) for folder in folders]
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
        changed = np.flatnonzero(first.prediction != other.prediction)
        assert [int(change.index) for change in one.changes()] == changed.tolist()
        p_values += [expected[name].p_value for name in ("f1_macro", "loss")]
    corrected = [one.corrected[name] for one in comparisons for name in ("f1_macro", "loss")]
    assert corrected == holm(p_values)
    assert [one.test_corrected for one in comparisons] == holm([one.test.p_value for one in comparisons])


@pytest.mark.parametrize("problem", [MULTI_LABEL, REGRESSION], ids=lambda problem: problem.name)
def test_runs_of_other_problem_types_are_compared_by_their_metrics(problem: Problem, tmp_path: Path) -> None:
    models = [predictions(skill, problem=problem) for skill in (1.0, 1.6)]
    runs = [load_run(run_of(tmp_path / str(number), one)) for number, one in enumerate(models)]
    [one] = compare(runs)
    assert tuple(one.differences) == metric_names(problem.name, "compared")
    assert one.differences == paired_differences(*models, metrics=metric_names(problem.name, "compared"))
    assert all(difference.interval.low is not None for difference in one.differences.values())
    changed = (models[0].prediction != models[1].prediction).any(axis=1)
    assert [int(change.index) for change in one.changes()] == np.flatnonzero(changed).tolist()
    assert one.facts["changed"] == changed.sum()
    if problem is REGRESSION:
        assert one.test is one.test_corrected is None
        assert one.facts["improved"] == (models[1].loss < models[0].loss).sum()
        assert one.facts["worsened"] == (models[1].loss > models[0].loss).sum()
        assert one.facts["largest_difference"] == abs(models[0].prediction - models[1].prediction).max()
        return
    first, second = (run.predictions.probabilities for run in runs)
    assert one.facts["largest_difference"] == abs(first - second).max() > 0
    right = [(model.label == model.prediction).all(axis=1) for model in models]
    assert isinstance(one.test, McNemar)
    assert (one.test.only_first, one.test.only_second) == (one.facts["worsened"], one.facts["improved"])
    gained = [int(change.index) for change in one.changes() if change.kind == "gained"]
    assert gained == np.flatnonzero(right[1] & ~right[0]).tolist()
    assert one.differences["subset_accuracy"].p_value == one.test.p_value


def custom_metrics(*names: str, problem: Problem = SINGLE_LABEL) -> list[CustomMetric]:
    return load_metrics([f"sample_metrics:{name}" for name in names], problem, 3, built_in=["accuracy"])


def test_custom_metrics_are_computed_from_the_predictions_and_resampled(folders: list[Path]) -> None:
    runs, metrics = [load_run(folder) for folder in folders[:2]], custom_metrics("error_rate", "order")
    [one] = compare(runs, metrics=["order", "accuracy", "error_rate"], custom_metrics=metrics)
    assert list(one.differences) == ["order/labels", "order/top", "accuracy", "error_rate"]
    mine, share = one.differences["error_rate"], one.differences["accuracy"]
    assert mine.value == pytest.approx(-share.value)
    assert mine.interval.method == "symmetric" and mine.interval.resamples == 199
    assert (mine.interval.low, mine.interval.high) == pytest.approx(
        (-share.interval.high, -share.interval.low), abs=0.02
    )
    assert mine.p_value == pytest.approx(1 / 200)  # none of 199 resamples is as far away
    assert one.differences["order/labels"].value == 0  # of the labels alone
    assert one.run.metrics["error_rate"] == pytest.approx(1 - one.run.metrics["accuracy"])
    own, wilsons = (one.run.results.intervals[name] for name in ("error_rate", "accuracy"))
    assert (own.low, own.high) == pytest.approx((1 - wilsons.high, 1 - wilsons.low), abs=0.02)
    more = compare(runs, metrics=["error_rate"], custom_metrics=metrics[:1], resamples=999)[0].differences["error_rate"]
    assert (more.interval.resamples, more.p_value) == (999, pytest.approx(1 / 1000))


def test_custom_metrics_support_groups_and_every_problem_type(tmp_path: Path) -> None:
    models = [predictions(skill, problem=REGRESSION, outputs=1) for skill in (1.0, 1.6)]
    groups = np.arange(300) // 6
    names = ["score"]
    runs = [load_run(run_of(tmp_path / str(i), one, names, groups)) for i, one in enumerate(models)]
    own = custom_metrics("mean_absolute", problem=REGRESSION)
    [one] = compare(runs, metrics=["mae", "mean_absolute"], custom_metrics=own, resamples=400)
    built_in, mine = one.differences["mae"], one.differences["mean_absolute"]
    assert mine.value == pytest.approx(built_in.value)
    assert mine.p_value == built_in.p_value  # the same groups are drawn
    assert mine.interval.to_json() == pytest.approx(built_in.interval.to_json())


def test_a_custom_metric_without_its_code_has_a_difference_and_a_reason(tmp_path: Path) -> None:
    custom = custom_metrics("error_rate", "hits")
    runs = [
        load_run(run_of(tmp_path / str(skill), predictions(skill), custom=custom if skill != 1.3 else ()))
        for skill in (1.0, 1.6, 1.3)
    ]
    [one] = compare(runs[:2])
    assert list(one.differences) == [*metric_names(SINGLE_LABEL.name, "compared"), "error_rate", "hits"]
    hits, found = one.differences["hits"], one.differences["error_rate"]
    assert hits.value == pytest.approx(-300 * found.value)
    assert found.value == pytest.approx(-one.differences["accuracy"].value)
    assert found.p_value is None and "give --metric here what the run was given" in (found.interval.reason or "")
    assert one.corrected["error_rate"] is None
    assert [list(each.differences) for each in compare(runs)] == [list(metric_names(SINGLE_LABEL.name, "compared"))] * 2
    with pytest.raises(ConfigError, match=rf"has it, but not {runs[2].folder}\. Start the command of each"):
        compare(runs, metrics=["error_rate"])
    assert (
        compare(runs, metrics=["error_rate"], custom_metrics=custom[:1])[1].differences["error_rate"].p_value
        is not None
    )


DOCUMENTS = np.arange(300) // 10


def test_runs_with_groups_are_compared_by_drawing_whole_groups(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = [run_of(tmp_path / str(skill), predictions(skill), groups=DOCUMENTS) for skill in (1.0, 1.6, 1.02)]
    runs = [load_run(folder) for folder in folders]
    assert all(np.array_equal(run.predictions.group, DOCUMENTS) for run in runs)
    comparisons = compare(runs, metrics=["f1_macro"])
    first, *others = (predictions(skill).in_groups(DOCUMENTS) for skill in (1.0, 1.6, 1.02))
    wanted = ["accuracy", "f1_macro"]
    expected = [paired_differences(first, other, metrics=wanted) for other in others]
    assert [one.differences for one in comparisons] == [{"f1_macro": each["f1_macro"]} for each in expected]
    tests = [one.test for one in comparisons]
    assert [test.p_value for test in tests] == [each["accuracy"].p_value for each in expected]
    assert [one.test_corrected for one in comparisons] == holm([test.p_value for test in tests])
    assert [(test.column, test.count, test.reason) for test in tests] == [("doc", 30, None)] * 2

    assert main([*map(str, folders)]) == 0
    table = capsys.readouterr().out
    assert "McNemar" not in table
    assert "paired bootstrap of accuracy over 30 groups of 'doc': p = " in table
    assert main([*map(str, folders[:2]), "--json"]) == 0
    [one] = json.loads(capsys.readouterr().out)["runs"]
    assert one["mcnemar"] is None
    assert one["paired_bootstrap_of_groups"]["p_value"] == tests[0].p_value
    assert one["differences"]["accuracy"]["interval"]["method"] == "symmetric"


def test_too_few_groups_have_a_reason_in_place_of_a_test(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    few = np.arange(300) // 30
    folders = [run_of(tmp_path / str(skill), predictions(skill), groups=few) for skill in (1.0, 1.6)]
    assert main([*map(str, folders)]) == 0
    assert "10 groups of 'doc' (fewer than 20 groups: too few for the bootstrap): p = -" in capsys.readouterr().out
    [one] = compare([load_run(folder) for folder in folders])
    assert one.test.p_value is one.test_corrected is None


def test_equal_models_with_fully_correlated_documents_rarely_differ_significantly(tmp_path: Path) -> None:
    generator, samples, documents, rows = np.random.default_rng(7), 80, 40, 10
    index, label = np.arange(documents * rows), np.zeros(documents * rows, dtype=np.int64)
    alone = read_run(run_of(tmp_path, predictions(1.0, outputs=2), ["yes", "no"]))
    grouped = alone.model_copy(update={"groups": Groups(column="doc", count=documents, largest=rows)})

    def p_value(models: list[Predictions], results: CompleteRun, group: np.ndarray | None) -> float:
        grouped = [model.in_groups(group) for model in models]
        [one] = compare([ComparedEvaluation(Path("run"), results, each) for each in grouped], metrics=["accuracy"])
        assert one.differences["accuracy"].p_value == one.test.p_value
        return one.test.p_value

    p_values = []
    for _ in range(samples):
        # each model is right about most documents in nearly all rows, and wrong about the others
        shares = generator.choice([0.05, 0.95], p=[0.3, 0.7], size=(2, documents))
        right = generator.random((2, documents * rows)) < np.repeat(shares, rows, axis=1)
        models = [Predictions.from_logits(index, label, np.eye(2)[np.where(one, 0, 1)]) for one in right]
        p_values.append((p_value(models, grouped, index // rows), p_value(models, alone, None)))
    of_groups, of_rows = (np.asarray(p_values) <= 0.05).mean(axis=0)
    assert of_groups <= 0.1 < 0.3 < of_rows, (of_groups, of_rows)


def test_all_pairs_are_one_family(folders: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    runs = [load_run(folder) for folder in folders]
    found = compare(runs, metrics=["accuracy", "loss"], all_pairs=True)
    pairs = list(itertools.combinations(runs, 2))
    assert [(one.first.folder, one.run.folder) for one in found] == [(a.folder, b.folder) for a, b in pairs]
    alone = [compare(pair, metrics=["accuracy", "loss"])[0] for pair in pairs]
    assert [one.differences for one in found] == [one.differences for one in alone]
    assert [one.test_corrected for one in found] == holm([one.test.p_value for one in alone])
    p_values = [one.differences[name].p_value for one in alone for name in one.differences]
    assert [one.corrected[name] for one in found for name in one.differences] == holm(p_values)
    assert main([*map(str, folders), "--all-pairs", "--metric", "accuracy"]) == 0
    printed = capsys.readouterr().out
    assert "300 examples of test.csv; 3 pairs of runs" in printed
    assert f"{folders[2]} against {folders[1]}: " in printed and printed.count("by Holm's procedure for 3 pairs") == 3
