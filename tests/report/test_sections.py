"""What the report shows of the sections of `results.json`."""

from __future__ import annotations

import numpy as np
import pytest
from samples import sections

from dist_eval.analysis.options import AnalysisOptions, analyse
from dist_eval.data.problem_types import SINGLE_LABEL
from dist_eval.evaluation import results as written
from dist_eval.metrics.computing import compute_metrics
from dist_eval.metrics.metric_loading import synthetic_predictions
from dist_eval.report.sections import confusion, top_confusions


def test_a_sparse_matrix_is_shown_like_a_whole_one(monkeypatch: pytest.MonkeyPatch) -> None:
    predictions = synthetic_predictions(SINGLE_LABEL, 60)
    metrics = compute_metrics(predictions, [f"class {number}" for number in range(60)])
    analysis = dict(analyse(predictions, metrics, AnalysisOptions()))
    whole = sections(metrics, **analysis)
    monkeypatch.setattr(written, "MOST_DENSE_CLASSES", 59)
    sparse = sections(metrics, **analysis)
    assert whole.confusion_matrix.labels == sparse.confusion_matrix.labels  # type: ignore[union-attr]
    assert hasattr(sparse.confusion_matrix, "cells") and not hasattr(whole.confusion_matrix, "cells")
    assert confusion(sparse) == confusion(whole)
    assert top_confusions(sparse) == top_confusions(whole)
    expected = metrics.confusion.copy()
    np.fill_diagonal(expected, 0)
    assert [one.count for one in top_confusions(sparse)] == np.sort(expected.ravel())[::-1][:20].tolist()


@pytest.mark.parametrize("classes", [20, 60])
def test_omitted_cells_count_in_totals_and_shares(classes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    predictions = synthetic_predictions(SINGLE_LABEL, classes)
    metrics = compute_metrics(predictions, [f"class {number}" for number in range(classes)])
    monkeypatch.setattr(written, "MOST_DENSE_CLASSES", classes - 1)
    monkeypatch.setattr(written, "MOST_CELLS", classes // 2)
    results = sections(metrics, **dict(analyse(predictions, metrics, AnalysisOptions())))
    shown = confusion(results)
    assert shown is not None
    support = dict(zip(metrics.label_names, metrics.confusion.sum(axis=1).tolist(), strict=True))
    for row in shown["rows"][: len(shown["rows"]) - bool(shown["others"])]:
        assert row["total"] == support[row["label"]]
        assert [cell["rate"] for cell in row["cells"] if cell["count"]] == [
            cell["count"] / row["total"] for cell in row["cells"] if cell["count"]
        ]
    counted = sum(cell["count"] for row in shown["rows"] for cell in row["cells"])
    assert sum(row["total"] for row in shown["rows"]) == len(predictions) == counted + shown["omitted"]
    assert shown["omitted"] > 0 and shown["others"] == max(0, classes - 24)
