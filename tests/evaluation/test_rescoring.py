"""A complete run that is started again: new metrics are computed from its predictions, and nothing gets lost."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import results_of
from samples import config_for, folder_of, sections, tokenized_digits

from dist_eval.analysis.options import analyse
from dist_eval.data.dataset import TokenizedDataset
from dist_eval.evaluation.classification import rescored
from dist_eval.evaluation.inputs import analysis_of
from dist_eval.evaluation.rescoring import rescore, with_new_scores, with_recorded_analysis
from dist_eval.metrics.computing import compute_metrics
from dist_eval.metrics.metric_loading import load_metrics
from dist_eval.metrics.predictions import Predictions
from dist_eval.petals.base_model.problem_types import SINGLE_LABEL
from dist_eval.runs.reading import read_run
from dist_eval.runs.saved_samples import read_predictions

ROWS, NAMES = 120, ["a", "b"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> TokenizedDataset:
    further = {"doc": lambda row: f"doc{row // 4}", "source": lambda row: "book" if row % 3 == 0 else "web"}
    return tokenized_digits(tmp_path_factory.mktemp("data"), ROWS, len(NAMES), further)


def predictions() -> Predictions:
    generator = np.random.default_rng(0)
    label = np.arange(ROWS) % 2
    logits = generator.normal(size=(ROWS, 2))
    logits[np.arange(ROWS), label] += 1.5
    return Predictions.from_logits(np.arange(ROWS), label, logits)


def complete(folder: Path, data: TokenizedDataset, **options: Any) -> dict[str, Any]:
    """Writes a complete run, or looks at one again."""
    config = config_for(folder, report="none", **options)
    run = folder_of(config)
    run.open()
    try:
        config = with_recorded_analysis(config, run.results())
        run.config = config
        own = load_metrics(config.metric, SINGLE_LABEL, 2, [])
        if run.results():
            rescore(run, config, read_predictions, partial(rescored, config, own, analysis_of(config, data)))
        else:
            view = analysis_of(config, data)
            found = view.grouped(predictions())
            metrics = compute_metrics(found, NAMES)
            run.complete(found, sections(metrics, **dict(analyse(found, metrics, view))))
        return results_of(folder)
    finally:
        run.close()


VIEW = ("intervals", "per_class", "groups", "slices", "calibration")


@pytest.mark.parametrize(
    ("first", "then"),
    [
        ({"group_column": "doc"}, {"slice_by": ["source"]}),
        ({"slice_by": ["source"]}, {"group_column": "doc"}),
        ({"group_column": "doc", "slice_by": ["source", "length"]}, {"confidence": 0.8}),
        ({"group_column": "doc", "slice_by": ["source"]}, {"slice_by": ["length"]}),
        ({"group_column": "source"}, {"group_column": "doc", "confidence": 0.9}),
    ],
)
def test_options_that_are_not_given_again_are_kept(
    first: dict[str, Any], then: dict[str, Any], data: TokenizedDataset, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    complete(tmp_path / "run", data, **first)
    after = complete(tmp_path / "run", data, **then)
    fresh = complete(tmp_path / "fresh", data, **{**first, **then})
    for section in VIEW:
        assert after[section] == fresh[section], section
    for option in ("group_column", "slice_by", "confidence"):
        assert after["config"][option] == fresh["config"][option]
    files = [tmp_path / name / "predictions.parquet" for name in ("run", "fresh")]
    assert files[0].read_bytes() == files[1].read_bytes()
    level = 100 * then.get("confidence", 0.95)
    printed = capsys.readouterr().out.partition("Computed from its answers:")[2]
    assert f"value [{level:g}% interval]" in printed and "\naccuracy " in printed


def test_the_same_command_again_changes_nothing(
    data: TokenizedDataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = complete(tmp_path, data, group_column="doc", slice_by=["source"])
    assert complete(tmp_path, data, group_column="doc", slice_by=["source"]) == before
    assert complete(tmp_path, data) == before
    printed = capsys.readouterr().out
    assert printed.count("Nothing was sent") == 2 and "Computed from" not in printed


def test_columns_that_have_changed_are_analysed_anew(data: TokenizedDataset, tmp_path: Path) -> None:
    further = {"doc": lambda row: f"doc{row // 8}", "source": lambda row: "ab"[row % 2]}
    (tmp_path / "changed").mkdir()
    changed = tokenized_digits(tmp_path / "changed", ROWS, len(NAMES), further)
    asked: dict[str, Any] = {"group_column": "doc", "slice_by": ["source"]}
    complete(tmp_path / "run", data, **asked)
    complete(tmp_path / "run", data, metric=["sample_metrics:error_rate"])
    after, fresh = complete(tmp_path / "run", changed, **asked), complete(tmp_path / "fresh", changed, **asked)
    assert "start the command again with its --metric" in after["intervals"].pop("error_rate")["reason"]
    for section in VIEW:
        assert after[section] == fresh[section], section
    files = [tmp_path / name / "predictions.parquet" for name in ("run", "fresh")]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_own_metrics_are_drawn_in_the_groups_that_the_run_has(
    data: TokenizedDataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = complete(tmp_path, data, group_column="doc")
    after = complete(tmp_path, data, metric=["sample_metrics:error_rate", "sample_metrics:hits"])
    assert after["custom_metrics"] == ["error_rate", "hits"]
    own, built_in = after["intervals"]["error_rate"], after["intervals"]["accuracy"]
    assert (own["low"], own["high"]) == pytest.approx((1 - built_in["high"], 1 - built_in["low"]), abs=0.03)
    assert after["intervals"]["hits"]["low"] < after["metrics"]["hits"]
    assert {name: after["intervals"][name] for name in before["intervals"]} == before["intervals"]
    assert "\nerror_rate " in capsys.readouterr().out.partition("Computed from its answers")[2]
    later = complete(tmp_path, data, confidence=0.9)
    assert later["intervals"]["accuracy"]["confidence"] == 0.9
    assert "start the command again with its --metric" in later["intervals"]["error_rate"]["reason"]


def test_an_overwritten_run_keeps_nothing(data: TokenizedDataset, tmp_path: Path) -> None:
    complete(tmp_path, data, group_column="doc", slice_by=["source"])
    config, plain = config_for(tmp_path, overwrite=True), config_for(tmp_path)
    before = read_run(tmp_path)
    assert with_recorded_analysis(config, before) == config
    assert with_recorded_analysis(plain, before) != plain
    assert with_recorded_analysis(plain, None) == plain


def test_a_metric_that_an_older_version_lacked_has_no_interval(data: TokenizedDataset, tmp_path: Path) -> None:
    complete(tmp_path, data)
    whole, config, found = read_run(tmp_path), config_for(tmp_path, confidence=0.9), predictions()
    older = whole.model_copy(
        update={
            name: {k: v for k, v in getattr(whole, name).items() if k != "mcc"} for name in ("metrics", "intervals")
        }
    )
    metrics = compute_metrics(found, NAMES)
    analysis = analyse(found, metrics, analysis_of(config, data))
    later = with_new_scores(older, metrics, analysis, config, renewed=[], is_regrouped=False)
    assert later.intervals.keys() == older.intervals.keys() and later.intervals["accuracy"].confidence == 0.9
