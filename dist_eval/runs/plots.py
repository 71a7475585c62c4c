"""Plots of a run: confusion matrices (for a regression: scatter plots) and reliability diagrams.

Drawn by Matplotlib, as PNG files for the run's folder and as SVG for its page.
"""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dist_eval.metrics.confusion import MOST_DENSE_CLASSES, confusion_of, most_confused
from dist_eval.metrics.predictions import Predictions
from dist_eval.petals.base_model.problem_types import MULTI_LABEL, REGRESSION, SINGLE_LABEL
from dist_eval.printable import printable
from dist_eval.process.files import replaced_atomically
from dist_eval.results.run import EvaluationResults
from dist_eval.results.scores import Calibration, CalibrationBin, ConfusionMatrix, SparseConfusionMatrix

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RELIABILITY = "reliability_diagram.png"
_NAMES = {
    SINGLE_LABEL.name: "confusion_matrix.png",
    MULTI_LABEL.name: "label_confusion.png",
    REGRESSION.name: "predictions.png",
}
PLOTS = (*_NAMES.values(), RELIABILITY)  # names of all files

POINTS = 2000  # maximum number of points in a scatter plot
_CELLS_WITH_NUMBERS, _PANELS, _MOST_CONFUSED = 20, 25, 40
_TALLEST_SIZE = 0.25
_LONGEST_NAME = 30  # of a class, in characters


def plot_name(problem: str) -> str:
    """Returns the file name of the plot of a problem type."""
    return _NAMES[problem]


def draw_predictions(results: EvaluationResults, predictions: Predictions) -> Figure:
    """Draws the plot of a run's problem type."""
    if results.problem_type == SINGLE_LABEL.name:
        return draw_confusion_matrix(results)
    if results.problem_type == MULTI_LABEL.name:
        return draw_label_confusion(results)
    return draw_scatter(results.label_names, predictions.label, predictions.prediction)


def confusion_cells(matrix: ConfusionMatrix | SparseConfusionMatrix) -> Any:
    """Returns a confusion matrix of single labels as a SciPy sparse array, int64 of shape [classes, classes]."""
    if isinstance(matrix, SparseConfusionMatrix):
        label, prediction, count = np.asarray(matrix.cells, dtype=np.int64).reshape(-1, 3).T
    else:
        dense = np.asarray(matrix.matrix, dtype=np.int64)
        label, prediction = dense.nonzero()
        count = dense[label, prediction]
    return confusion_of(label, prediction, len(matrix.labels), count)


def draw_confusion_matrix(results: EvaluationResults, most: int = MOST_DENSE_CLASSES) -> Figure:
    """Draws the confusion matrix of a run with single labels.

    With more than `most` classes (40 if that many are not legible), it has those with the most mistakes, and the sum of
    the others.
    """
    from matplotlib.figure import Figure
    from sklearn.metrics import ConfusionMatrixDisplay

    assert results.confusion_matrix is not None
    names, cells, colors = results.confusion_matrix.labels, confusion_cells(results.confusion_matrix), {}
    kept, matrix = most_confused(cells, most if len(names) <= MOST_DENSE_CLASSES else min(most, _MOST_CONFUSED))
    if len(kept) < len(names):
        names = [*(names[number] for number in kept), f"{len(names) - len(kept)} others"]
        colors = {"norm": "log"}  # the others' sums are far above the rest
    names = [printable(name, _LONGEST_NAME) for name in names]
    side = min(4.0 + 0.45 * len(names), 24.0)
    figure = Figure(figsize=(side + 0.8, side), layout="constrained")
    axes = figure.subplots()
    display = ConfusionMatrixDisplay(matrix, display_labels=names)
    display.plot(
        ax=axes,
        cmap="Blues",
        values_format="d",
        include_values=len(names) <= _CELLS_WITH_NUMBERS,
        xticks_rotation="horizontal" if max(map(len, names)) <= 3 else "vertical",
        im_kw=colors,
    )
    for label in (*axes.get_xticklabels(), *axes.get_yticklabels()):
        label.set_parse_math(False)
    total, accuracy = results.coverage.seen, results.metrics["accuracy"] or 0.0  # the matrix may lack cells
    axes.set_title(f"{round(accuracy * total)} of {total} correct (accuracy {accuracy:.4f})")
    axes.set(xlabel="predicted class", ylabel="true class")
    return figure


def draw_label_confusion(results: EvaluationResults) -> Figure:
    """Draws a confusion matrix for each of the first labels."""
    from sklearn.metrics import ConfusionMatrixDisplay

    assert isinstance(results.confusion_matrix, ConfusionMatrix)
    names, matrices = results.confusion_matrix.labels, results.confusion_matrix.matrix
    figure, panels = _panels(len(names), 2.4)
    for axes, matrix, name in zip(panels, matrices, names, strict=False):
        display = ConfusionMatrixDisplay(np.asarray(matrix), display_labels=["no", "yes"])
        display.plot(ax=axes, cmap="Blues", values_format="d", colorbar=False)
        axes.set(xlabel="predicted", ylabel="label")
        axes.set_title(printable(name), parse_math=False)
    return figure


def draw_scatter(names: list[str], label: np.ndarray, prediction: np.ndarray) -> Figure:
    """Draws a scatter plot of each of the first outputs, with evenly spaced examples if there are many.

    Labels and predictions are float64 of shape [n, outputs].
    """
    from sklearn.metrics import PredictionErrorDisplay

    figure, panels = _panels(len(names), 4.0)
    shown = np.unique(np.linspace(0, len(label) - 1, min(POINTS, len(label))).astype(np.int64))
    for number, (axes, name) in enumerate(zip(panels, names, strict=False)):
        PredictionErrorDisplay.from_predictions(
            label[shown, number],
            prediction[shown, number],
            kind="actual_vs_predicted",
            subsample=None,
            ax=axes,
            scatter_kwargs={"s": 9, "alpha": 0.6, "rasterized": True},
        )
        axes.set(xlabel="predicted", ylabel="label")
        axes.set_title(printable(name), parse_math=False)
    return figure


def draw_reliability(calibration: Calibration) -> Figure:
    """Draws a reliability diagram; with several labels per text, one for each of the first labels.

    Each bin with examples has a dot at its mean confidence and accuracy, with an interval; bars show the bins' sizes.
    """
    if calibration.bins is not None:
        title = f"expected calibration error {calibration.ece:.4f}, Brier score {calibration.brier:.4f}"
        figure, panels = _panels(1, 5.0)
        _draw_bins(panels[0], calibration.bins, title)
        panels[0].set(xlabel="confidence", ylabel="accuracy")
        return figure
    per_label = calibration.per_label or []
    figure, panels = _panels(len(per_label), 3.2)
    for axes, row in zip(panels, per_label, strict=False):
        _draw_bins(axes, row.bins, f"{printable(row.label)} ({row.ece:.3f})")
        axes.set(xlabel="probability", ylabel="share of positives")
    return figure


def _draw_bins(axes: Any, bins: list[CalibrationBin], title: str) -> None:
    filled = [row for row in bins if row.n]
    means, shares = [row.mean_confidence for row in filled], [row.accuracy or 0.0 for row in filled]
    errors = [
        (0.0, 0.0)
        if row.interval.low is None or row.interval.high is None
        else (max(0.0, share - row.interval.low), max(0.0, row.interval.high - share))
        for share, row in zip(shares, filled, strict=True)
    ]
    most = max(row.n for row in filled)
    axes.bar(
        [row.low for row in filled],
        [_TALLEST_SIZE * row.n / most for row in filled],
        width=bins[0].high - bins[0].low,
        align="edge",
        color="0.85",
        label=f"examples (at most {most})",
    )
    axes.plot([0, 1], [0, 1], color="0.5", linestyle="--", linewidth=1, label="calibrated")
    axes.errorbar(means, shares, yerr=np.transpose(errors), fmt="o", markersize=4, capsize=2, color="tab:blue")
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1.02)
    axes.set_aspect("equal")
    axes.legend(loc="upper left", fontsize="x-small")
    axes.set_title(title, parse_math=False, fontsize="medium")


def _panels(count: int, side: float) -> tuple[Figure, list[Any]]:
    from matplotlib.figure import Figure

    count = min(count, _PANELS)
    columns = math.ceil(math.sqrt(count))
    rows = math.ceil(count / columns)
    figure = Figure(figsize=(max(4.0, side * columns), max(4.0, side * rows)), layout="constrained")
    panels = list(figure.subplots(rows, columns, squeeze=False).ravel())
    for empty in panels[count:]:
        empty.set_visible(False)
    return figure, panels[:count]


def write_png(path: Path, figure: Figure) -> None:
    """Writes a plot as a PNG file."""
    with replaced_atomically(path) as file:
        figure.savefig(file, format="png", dpi=120)


def to_svg(figure: Figure) -> bytes:
    """Returns a plot as an SVG document; equal plots give equal bytes."""
    import matplotlib

    file = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "dist_eval", "svg.fonttype": "none"}):
        figure.savefig(file, format="svg", metadata={"Date": None})
    return file.getvalue()
