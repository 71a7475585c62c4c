"""The plots of a run, for every problem type."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib import image
from samples import metrics_for, sections

from dist_eval.analysis.options import AnalysisOptions, analyse
from dist_eval.evaluation import scoring as written
from dist_eval.metrics.computing import compute_metrics
from dist_eval.metrics.confusion import most_confused
from dist_eval.metrics.metric_loading import synthetic_predictions
from dist_eval.petals.base_model.problem_types import MULTI_LABEL, PROBLEMS, SINGLE_LABEL
from dist_eval.printable import printable
from dist_eval.results.run import EvaluationResults
from dist_eval.results.scores import SparseConfusionMatrix
from dist_eval.runs.plots import (
    confusion_cells,
    draw_confusion_matrix,
    draw_predictions,
    draw_reliability,
    plot_name,
    to_svg,
    write_png,
)
from dist_eval.statistics import compute_calibration


def results_for(names: list[str], problem: str = SINGLE_LABEL.name) -> EvaluationResults:
    if problem == SINGLE_LABEL.name:
        return sections(metrics_for(names))
    return sections(compute_metrics(synthetic_predictions(PROBLEMS[problem], len(names)), names))


def pixels_of(path: Path) -> np.ndarray:
    assert path.read_bytes().startswith(b"\x89PNG\r\n")
    return image.imread(path)


@pytest.mark.parametrize("classes", [2, 60])
def test_the_confusion_matrix_is_a_png(tmp_path: Path, classes: int) -> None:
    names = [f"class {number}" for number in range(classes)]
    write_png(tmp_path / "m.png", draw_confusion_matrix(results_for(names)))
    pixels = pixels_of(tmp_path / "m.png")
    assert min(pixels.shape[:2]) >= 400
    assert len(np.unique(pixels[::5, ::5, 0])) > 10


@pytest.mark.parametrize(
    "names",
    [
        ["$5 to $10", "$^$"],
        [r"cost: $\bad$", "b"],
        ["", " "],
        ["x" * 200, "y"],
        ["two\nlines", "a_b{c}%\x01"],
        ["<script>alert(1)</script>", "a & b"],
    ],
    ids=["dollars", "formula", "empty", "long", "symbols", "markup"],
)
@pytest.mark.filterwarnings("ignore:constrained_layout")
def test_class_names_of_any_kind_can_be_drawn(names: list[str]) -> None:
    svg = ElementTree.fromstring(to_svg(draw_confusion_matrix(results_for(names))))
    assert svg.tag.endswith("svg")
    assert not [one for one in svg.iter() if one.tag.endswith("script")]
    texts = [one.text for one in svg.iter() if one.tag.endswith("text")]
    assert all(texts.count(printable(name, 30)) == 2 for name in names if name.strip())


def test_the_accuracy_is_that_of_all_examples_where_cells_are_left_out() -> None:
    results = results_for([f"class {number}" for number in range(4)])
    accuracy, total = results.metrics["accuracy"], results.coverage.seen
    assert results.confusion_matrix is not None and accuracy is not None
    cells = [(0, 0, 2), (1, 2, 1)]
    matrix = SparseConfusionMatrix(labels=results.confusion_matrix.labels, cells=cells, omitted=total - 3)
    plot = draw_confusion_matrix(results.model_copy(update={"confusion_matrix": matrix}))
    assert plot.axes[0].get_title() == f"{round(accuracy * total)} of {total} correct (accuracy {accuracy:.4f})"


def test_equal_plots_are_equal_bytes_and_of_many_classes_the_most_confused_are_drawn() -> None:
    results = results_for([f"class {number}" for number in range(40)])
    plot, again = (draw_confusion_matrix(results, 24) for _ in range(2))
    assert to_svg(plot) == to_svg(again)
    labels = [label.get_text() for label in plot.axes[0].get_yticklabels()]
    assert len(labels) == 25 and labels[-1] == "16 others"
    _, matrix = most_confused(confusion_cells(results.confusion_matrix), 24)
    assert np.array_equal(plot.axes[0].images[0].get_array(), matrix)


def test_a_sparse_matrix_is_drawn_like_a_whole_one(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"class {number}" for number in range(30)]
    whole = results_for(names).confusion_matrix
    monkeypatch.setattr(written, "MOST_DENSE_CLASSES", 29)
    sparse = results_for(names).confusion_matrix
    assert hasattr(sparse, "cells") and not hasattr(whole, "cells")
    assert np.array_equal(confusion_cells(sparse).toarray(), confusion_cells(whole).toarray())


@pytest.mark.parametrize(
    ("name", "outputs"), [*((name, n) for name in PROBLEMS for n in (1, 3)), (MULTI_LABEL.name, 30)]
)
def test_every_problem_type_has_a_plot(tmp_path: Path, name: str, outputs: int) -> None:
    predictions = synthetic_predictions(PROBLEMS[name], outputs)
    metrics = compute_metrics(predictions, [f"$output {number}" for number in range(outputs)])
    analysis = dict(analyse(predictions, metrics, AnalysisOptions()))
    write_png(tmp_path / plot_name(name), draw_predictions(sections(metrics, **analysis), predictions))
    assert pixels_of(tmp_path / plot_name(name)).size > 0
    assert (plot_name(name) == "confusion_matrix.png") == (name == SINGLE_LABEL.name)


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize(("name", "outputs"), [(SINGLE_LABEL.name, 3), (MULTI_LABEL.name, 2)])
def test_every_classifier_has_a_reliability_diagram(tmp_path: Path, name: str, outputs: int, grouped: bool) -> None:
    predictions = synthetic_predictions(PROBLEMS[name], outputs)
    names = [f"$output {number}" for number in range(outputs)]
    groups = np.arange(len(predictions)) // 4 if grouped else None
    write_png(tmp_path / "r.png", draw_reliability(compute_calibration(predictions.in_groups(groups), names)))
    pixels = pixels_of(tmp_path / "r.png")
    assert min(pixels.shape[:2]) >= 400
    assert len(np.unique(pixels[::3, ::3, 0])) > 10
