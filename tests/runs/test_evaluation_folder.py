"""The folder of an evaluation: `results.json` in all its states, and the files of a complete run."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import results_of
from samples import (
    FACTS,
    METRICS,
    PREDICTIONS,
    RESULTS,
    complete_run,
    config_for,
    files_in,
    folder_of,
    opened,
    predictions_of,
    sections,
    watch,
)

from dist_eval.analysis.options import AnalysisOptions, analyse
from dist_eval.metrics.computing import compute_metrics
from dist_eval.runs.folder_lock import last_holder


def test_times_are_in_utc(tmp_path: Path) -> None:
    complete_run(tmp_path)
    started, finished = (datetime.fromisoformat(results_of(tmp_path)[name]) for name in ("started", "finished"))
    assert started <= finished <= datetime.now(timezone.utc)
    assert (datetime.now(timezone.utc) - started).total_seconds() < 60


def test_a_complete_run_holds_all_sections(tmp_path: Path) -> None:
    complete_run(tmp_path, plots=True)
    found = results_of(tmp_path)
    assert (found["status"], found["error"]) == ("complete", None)
    assert found["metrics"] == METRICS.values
    assert [{**row, "intervals": None} for row in found["per_class"]] == [row.to_json() for row in METRICS.per_class]
    assert found["majority_share"] == METRICS.majority_share
    assert found["confusion_matrix"] == {"labels": ["neg", "pos"], "matrix": [[2, 0], [1, 2]]}
    assert {name: found[name] for name in FACTS} == FACTS
    assert files_in(tmp_path) == {RESULTS, "predictions.parquet", "confusion_matrix.png", "reliability_diagram.png"}


def test_an_undefined_figure_is_null_with_its_reason(tmp_path: Path) -> None:
    predictions = predictions_of([1, 1, 1], [1, 1, 1], 2)
    run = opened(tmp_path)
    metrics = compute_metrics(predictions, ["neg", "pos"])
    run.complete(predictions, sections(metrics, **dict(analyse(predictions, metrics, AnalysisOptions()))))
    assert results_of(tmp_path)["metrics"]["roc_auc"] is None
    assert results_of(tmp_path)["undefined"]["roc_auc"] == "class 'neg' without examples"
    assert results_of(tmp_path)["per_class"][0]["precision"] is None


@pytest.mark.parametrize("value", [np.nan, np.inf, object()])
def test_what_is_no_json_leaves_the_last_true_file(tmp_path: Path, value: Any) -> None:
    run = opened(tmp_path)
    with pytest.raises((ValueError, TypeError)):
        run.complete(PREDICTIONS, sections().model_copy(update={"plan": value}))
    assert results_of(tmp_path)["status"] == "running"
    run.fail("no JSON", rank=0, host="here")
    assert results_of(tmp_path)["status"] == "failed"


def test_results_are_complete_before_the_picture_is_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, Any]] = []

    def write(path: Path, _: Any) -> None:
        seen.append({**results_of(tmp_path), "plot": path.name})

    monkeypatch.setattr("dist_eval.runs.evaluation_folder.write_png", write)
    complete_run(tmp_path, plots=True)
    assert [found.pop("plot") for found in seen] == ["confusion_matrix.png", "reliability_diagram.png"]
    assert seen == [results_of(tmp_path)] * 2
    assert seen[0]["status"] == "complete"
    assert (tmp_path / "predictions.parquet").exists()


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (RuntimeError("no font"), "RuntimeError: no font"),
        (OSError(28, "No space left on device"), "OSError: [Errno 28] No space left on device"),
        (MemoryError(), "MemoryError"),
    ],
)
def test_a_picture_that_cannot_be_drawn_is_only_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception, why: str
) -> None:
    def draw(*_: Any) -> None:
        raise error

    monkeypatch.setattr("dist_eval.runs.evaluation_folder.draw_predictions", draw)
    complete_run(tmp_path, plots=True)

    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"dist_eval: confusion_matrix.png could not be drawn ({why})")
    assert captured.err.count("\n") == 1
    assert results_of(tmp_path)["status"] == "complete"
    assert results_of(tmp_path)["metrics"] == METRICS.values
    assert files_in(tmp_path) == {RESULTS, "predictions.parquet", "reliability_diagram.png"}


def test_a_run_that_is_stopped_while_the_picture_is_drawn_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def draw(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("dist_eval.runs.evaluation_folder.draw_predictions", draw)
    with pytest.raises(KeyboardInterrupt):
        complete_run(tmp_path, plots=True)
    run = folder_of(config_for(tmp_path))
    run.holder = last_holder(tmp_path)  # as on a rank whose leader has opened it
    run.fail("interrupted before the end", rank=0, host="here")
    assert results_of(tmp_path)["status"] == "complete"


def test_results_are_valid_json_whenever_someone_looks(tmp_path: Path) -> None:
    folder_of(config_for(tmp_path)).open()

    def change() -> None:
        for number in range(15):
            run = opened(tmp_path, overwrite=True, dht_prefix="x" * 5000 * (number % 3))
            run.fail("gone", rank=0, host="here")
        complete_run(tmp_path, overwrite=True)

    statuses = [json.loads(content)["status"] for content in watch(tmp_path / RESULTS, change)]
    assert set(statuses) <= {"running", "failed", "complete"}
    assert len(statuses) > 3
    assert results_of(tmp_path)["status"] == "complete"
