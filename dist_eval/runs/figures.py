"""PNG figures of a run: confusion matrices or, for a regression, a scatter plot; and a reliability diagram."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from dist_eval.data.problem_types import MULTI_LABEL, REGRESSION, SINGLE_LABEL
from dist_eval.metrics.computing import Metrics
from dist_eval.metrics.confusion import MOST_DENSE_CLASSES, most_confused
from dist_eval.metrics.predictions import Predictions
from dist_eval.process.files import replaced_atomically
from dist_eval.results.scores import Calibration, CalibrationBin

CONFUSION_MATRIX, LABEL_CONFUSION, SCATTER = "confusion_matrix.png", "label_confusion.png", "predictions.png"
RELIABILITY = "reliability_diagram.png"
_NAMES = {SINGLE_LABEL.name: CONFUSION_MATRIX, MULTI_LABEL.name: LABEL_CONFUSION, REGRESSION.name: SCATTER}
FIGURES = (*_NAMES.values(), RELIABILITY)
"""File names of all figures."""

_CELLS_WITH_NUMBERS, _PANELS, _POINTS, _MOST_CONFUSED = 20, 25, 2000, 40
_TALLEST_SIZE = 0.25


def figure_name(problem: str) -> str:
    """Returns the file name of the figure for a problem type."""
    return _NAMES[problem]


def draw_figure(path: Path, metrics: Metrics, predictions: Predictions) -> None:
    """Draws the figure of a run as a PNG.

    Args:
        path: the file.
        metrics: the metrics.
        predictions: the predictions of which they are the metrics.
    """
    if metrics.problem == SINGLE_LABEL.name:
        draw_confusion_matrix(path, metrics)
    elif metrics.problem == MULTI_LABEL.name:
        draw_label_confusion(path, metrics)
    else:
        draw_scatter(path, metrics, predictions)


def draw_confusion_matrix(path: Path, metrics: Metrics) -> None:
    """Draws the confusion matrix as a PNG; of more classes than are legible those with the most mistakes."""
    from sklearn.metrics import ConfusionMatrixDisplay

    names, colors = metrics.label_names, {}
    if len(names) <= MOST_DENSE_CLASSES:
        matrix = metrics.confusion
    else:
        kept, matrix = most_confused(metrics.cells, _MOST_CONFUSED)
        names = [*(names[number] for number in kept), f"{len(names) - len(kept)} others"]
        colors = {"norm": "log"}  # the others' sums are far above the rest
    pyplot, classes = _pyplot(), len(names)
    side = min(4.0 + 0.45 * classes, 24.0)
    figure, axes = pyplot.subplots(figsize=(side + 0.8, side), layout="constrained")
    display = ConfusionMatrixDisplay(matrix, display_labels=names)
    display.plot(
        ax=axes,
        cmap="Blues",
        values_format="d",
        include_values=classes <= _CELLS_WITH_NUMBERS,
        xticks_rotation="horizontal" if max(map(len, names)) <= 3 else "vertical",
        im_kw=colors,
    )
    for label in (*axes.get_xticklabels(), *axes.get_yticklabels()):
        label.set_parse_math(False)
    total, hits = int(matrix.sum()), int(metrics.cells.diagonal().sum())
    axes.set_title(f"{hits} of {total} correct (accuracy {hits / total:.4f})")
    axes.set_xlabel("predicted class")
    axes.set_ylabel("true class")
    _save(figure, path)


def draw_label_confusion(path: Path, metrics: Metrics) -> None:
    """Draws a confusion matrix for each of the first labels as a PNG."""
    from sklearn.metrics import ConfusionMatrixDisplay

    figure, panels = _panels(len(metrics.label_names), 2.4)
    for axes, matrix, name in zip(panels, metrics.cells, metrics.label_names, strict=False):
        display = ConfusionMatrixDisplay(matrix, display_labels=["no", "yes"])
        display.plot(ax=axes, cmap="Blues", values_format="d", colorbar=False)
        axes.set(xlabel="predicted", ylabel="label")
        axes.set_title(name, parse_math=False)
    _save(figure, path)


def draw_scatter(path: Path, metrics: Metrics, predictions: Predictions) -> None:
    """Draws a scatter plot of each of the first outputs as a PNG, subsampling evenly if there are many examples."""
    from sklearn.metrics import PredictionErrorDisplay

    figure, panels = _panels(len(metrics.label_names), 4.0)
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


def draw_reliability(path: Path, calibration: Calibration) -> None:
    """Draws a reliability diagram as a PNG, in a multi-label problem one for each of the first labels.

    Each bin with examples has a dot at its mean confidence and accuracy, with an interval; bars show the bins' sizes.

    Args:
        path: the file.
        calibration: the section of `results.json`.
    """
    if calibration.bins is not None:
        title = f"expected calibration error {calibration.ece:.4f}, Brier score {calibration.brier:.4f}"
        figure, panels = _panels(1, 5.0)
        _draw_bins(panels[0], calibration.bins, title)
        panels[0].set(xlabel="confidence", ylabel="accuracy")
    else:
        per_label = calibration.per_label or []
        figure, panels = _panels(len(per_label), 3.2)
        for axes, row in zip(panels, per_label, strict=False):
            _draw_bins(axes, row.bins, f"{row.label} ({row.ece:.3f})")
            axes.set(xlabel="probability", ylabel="share of positives")
    _save(figure, path)


def _draw_bins(axes: Any, bins: list[CalibrationBin], title: str) -> None:
    filled = [one for one in bins if one.n]
    means, shares = [one.mean_confidence for one in filled], [one.accuracy or 0.0 for one in filled]
    around = [
        (0.0, 0.0)
        if one.interval.low is None or one.interval.high is None
        else (max(0.0, share - one.interval.low), max(0.0, one.interval.high - share))
        for share, one in zip(shares, filled, strict=True)
    ]
    most = max(one.n for one in filled)
    axes.bar(
        [one.low for one in filled],
        [_TALLEST_SIZE * one.n / most for one in filled],
        width=bins[0].high - bins[0].low,
        align="edge",
        color="0.85",
        label=f"examples (at most {most})",
    )
    axes.plot([0, 1], [0, 1], color="0.5", linestyle="--", linewidth=1, label="calibrated")
    axes.errorbar(means, shares, yerr=np.transpose(around), fmt="o", markersize=4, capsize=2, color="tab:blue")
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1.02)
    axes.set_aspect("equal")
    axes.legend(loc="upper left", fontsize="x-small")
    axes.set_title(title, parse_math=False, fontsize="medium")


def _panels(count: int, side: float) -> tuple[Any, list[Any]]:
    """Creates a figure with a panel for each of the first labels or outputs."""
    count = min(count, _PANELS)
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
    with replaced_atomically(path) as file:
        figure.savefig(file, format="png", dpi=120)
    _pyplot().close(figure)
