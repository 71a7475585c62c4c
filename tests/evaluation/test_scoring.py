"""The sections of `results.json` that hold metrics."""

from __future__ import annotations

import json

import numpy as np
import pytest
from samples import metrics_for

from dist_eval.evaluation import scoring
from dist_eval.metrics.computing import Metrics, compute_metrics
from dist_eval.metrics.confusion import MOST_DENSE_CLASSES
from dist_eval.metrics.predictions import Predictions
from dist_eval.results.scores import ConfusionMatrix, Scores, SparseConfusionMatrix


def metrics_of(label: list[int], prediction: list[int], classes: int) -> Metrics:
    predictions = Predictions.from_logits(np.arange(len(label)), np.array(label), np.eye(classes)[prediction])
    return compute_metrics(predictions, [f"class {number}" for number in range(classes)])


def test_every_cell_of_few_classes_is_written() -> None:
    metrics = metrics_for([f"class {number}" for number in range(MOST_DENSE_CLASSES)])
    written = scoring.scores_of(metrics).confusion_matrix
    assert isinstance(written, ConfusionMatrix)
    assert written.matrix == metrics.confusion.tolist()


def test_of_more_classes_the_cells_with_examples_are_written() -> None:
    classes = MOST_DENSE_CLASSES + 1
    scores = scoring.scores_of(metrics_of([256, 0, 7, 256, 0, 0], [256, 9, 3, 256, 0, 9], classes))
    written = scores.confusion_matrix
    assert isinstance(written, SparseConfusionMatrix)
    assert written.cells == [(0, 0, 1), (0, 9, 2), (7, 3, 1), (256, 256, 2)]
    assert (written.omitted, len(written.labels)) == (0, classes)
    text = json.dumps(scores.to_json())
    assert len(text) < 60_000
    assert Scores.model_validate_json(text) == scores


def test_of_too_many_cells_those_with_the_most_examples_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scoring, "MOST_CELLS", 2)
    written = scoring.scores_of(metrics_of([256, 0, 7, 256, 0, 0, 0], [256, 9, 3, 256, 0, 9, 9], 300)).confusion_matrix
    assert isinstance(written, SparseConfusionMatrix)
    assert (written.cells, written.omitted) == ([(0, 9, 3), (256, 256, 2)], 2)
