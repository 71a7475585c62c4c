"""The picture of a run: a confusion matrix, one for each label, or labels against outputs."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from dist_eval.metrics import Metrics
from dist_eval.predictions import Predictions
from dist_eval.problems import MULTI_LABEL, REGRESSION, SINGLE_LABEL

CONFUSION_MATRIX, LABEL_CONFUSION, SCATTER = "confusion_matrix.png", "label_confusion.png", "predictions.png"
_NAMES = {SINGLE_LABEL.name: CONFUSION_MATRIX, MULTI_LABEL.name: LABEL_CONFUSION, REGRESSION.name: SCATTER}
FIGURES = tuple(_NAMES.values())
"""The names that a picture may have."""

_CELLS_WITH_NUMBERS, _PANELS, _POINTS = 20, 25, 2000


def figure_name(metrics: Metrics) -> str:
    """Returns the name of the picture of such metrics."""
    return _NAMES[metrics.problem]


def draw_figure(path: Path, metrics: Metrics, predictions: Predictions) -> None:
    """Draws the picture of a run as a PNG.

    Args:
        path: the file.
        metrics: the metrics.
        predictions: what they are of.
    """
    if metrics.problem == SINGLE_LABEL.name:
        draw_confusion_matrix(path, metrics)
    elif metrics.problem == MULTI_LABEL.name:
        draw_label_confusion(path, metrics)
    else:
        draw_scatter(path, metrics, predictions)


def draw_confusion_matrix(path: Path, metrics: Metrics) -> None:
    """Draws the confusion matrix as a PNG."""
    from sklearn.metrics import ConfusionMatrixDisplay

    pyplot, classes = _pyplot(), len(metrics.label_names)
    side = min(4.0 + 0.45 * classes, 24.0)
    figure, axes = pyplot.subplots(figsize=(side + 0.8, side), layout="constrained")
    display = ConfusionMatrixDisplay(metrics.confusion, display_labels=metrics.label_names)
    display.plot(
        ax=axes,
        cmap="Blues",
        values_format="d",
        include_values=classes <= _CELLS_WITH_NUMBERS,
        xticks_rotation="horizontal" if max(map(len, metrics.label_names)) <= 3 else "vertical",
    )
    for label in (*axes.get_xticklabels(), *axes.get_yticklabels()):
        label.set_parse_math(False)
    total, hits = int(metrics.confusion.sum()), int(metrics.confusion.trace())
    axes.set_title(f"{hits} of {total} right (accuracy {hits / total:.4f})")
    axes.set_xlabel("predicted class")
    axes.set_ylabel("true class")
    _save(figure, path)


def draw_label_confusion(path: Path, metrics: Metrics) -> None:
    """Draws a confusion matrix for each of the first labels as a PNG."""
    from sklearn.metrics import ConfusionMatrixDisplay

    figure, panels = _panels(metrics, 2.4)
    for axes, matrix, name in zip(panels, metrics.confusion, metrics.label_names, strict=False):
        display = ConfusionMatrixDisplay(matrix, display_labels=["no", "yes"])
        display.plot(ax=axes, cmap="Blues", values_format="d", colorbar=False)
        axes.set(xlabel="predicted", ylabel="label")
        axes.set_title(name, parse_math=False)
    _save(figure, path)


def draw_scatter(path: Path, metrics: Metrics, predictions: Predictions) -> None:
    """Draws labels against outputs, for each of the first outputs, as a PNG; of many examples evenly spaced ones."""
    from sklearn.metrics import PredictionErrorDisplay

    figure, panels = _panels(metrics, 4.0)
    shown = np.unique(np.linspace(0, len(predictions) - 1, min(_POINTS, len(predictions))).astype(np.int64))
    for number, (axes, name) in enumerate(zip(panels, metrics.label_names, strict=False)):
        PredictionErrorDisplay.from_predictions(
            predictions.label[shown, number],
            predictions.logits[shown, number],
            kind="actual_vs_predicted",
            subsample=None,
            ax=axes,
            scatter_kwargs={"s": 9, "alpha": 0.6},
        )
        axes.set(xlabel="predicted", ylabel="label")
        axes.set_title(name, parse_math=False)
    _save(figure, path)


def _panels(metrics: Metrics, side: float) -> tuple[Any, list[Any]]:
    """Opens a picture with a panel for each of the first labels or outputs."""
    count = min(len(metrics.label_names), _PANELS)
    columns = math.ceil(math.sqrt(count))
    rows = math.ceil(count / columns)
    size = (max(4.0, side * columns), max(4.0, side * rows))
    figure, grid = _pyplot().subplots(rows, columns, figsize=size, layout="constrained", squeeze=False)
    panels = list(grid.ravel())
    for empty in panels[count:]:
        empty.set_visible(False)
    return figure, panels[:count]


def _pyplot() -> Any:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def _save(figure: Any, path: Path) -> None:
    figure.savefig(path, dpi=120)
    _pyplot().close(figure)
