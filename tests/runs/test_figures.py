"""The figures of a run, for every problem type."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matplotlib import image
from samples import metrics_for

from dist_eval.data.problem_types import MULTI_LABEL, PROBLEMS, SINGLE_LABEL
from dist_eval.metrics.computing import compute_metrics
from dist_eval.metrics.metric_loading import synthetic_predictions
from dist_eval.runs.figures import draw_confusion_matrix, draw_figure, draw_reliability, figure_name
from dist_eval.statistics import compute_calibration


@pytest.mark.parametrize("classes", [2, 10, 60, 300])
def test_the_confusion_matrix_is_a_png(tmp_path: Path, classes: int) -> None:
    draw_confusion_matrix(tmp_path / "m.png", metrics_for([f"class {number}" for number in range(classes)]))
    assert (tmp_path / "m.png").read_bytes().startswith(b"\x89PNG\r\n")
    pixels = image.imread(tmp_path / "m.png")
    assert min(pixels.shape[:2]) >= 400
    assert len(np.unique(pixels[::5, ::5, 0])) > 10


@pytest.mark.parametrize(
    "names",
    [["$5 to $10", "$^$"], [r"cost: $\bad$", "b"], ["", " "], ["x" * 200, "y"], ["two\nlines", "a_b{c}%"]],
    ids=["dollars", "formula", "empty", "long", "symbols"],
)
@pytest.mark.filterwarnings("ignore:constrained_layout")
def test_class_names_of_any_kind_can_be_drawn(tmp_path: Path, names: list[str]) -> None:
    draw_confusion_matrix(tmp_path / "m.png", metrics_for(names))
    assert image.imread(tmp_path / "m.png").size > 0


@pytest.mark.parametrize(("name", "outputs"), [(name, n) for name in PROBLEMS for n in (1, 3, 30)])
def test_every_problem_type_has_a_figure(tmp_path: Path, name: str, outputs: int) -> None:
    predictions = synthetic_predictions(PROBLEMS[name], outputs)
    metrics = compute_metrics(predictions, [f"$output {number}" for number in range(outputs)])
    path = tmp_path / figure_name(name)
    draw_figure(path, metrics, predictions)
    assert image.imread(path).size > 0
    assert (path.name == "confusion_matrix.png") == (name == SINGLE_LABEL.name)


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize(("name", "outputs"), [(SINGLE_LABEL.name, 3), (MULTI_LABEL.name, 2), (MULTI_LABEL.name, 30)])
def test_every_classifier_has_a_reliability_diagram(tmp_path: Path, name: str, outputs: int, grouped: bool) -> None:
    predictions = synthetic_predictions(PROBLEMS[name], outputs)
    names = [f"$output {number}" for number in range(outputs)]
    groups = np.arange(len(predictions)) // 4 if grouped else None
    draw_reliability(tmp_path / "r.png", compute_calibration(predictions, names, groups=groups))
    pixels = image.imread(tmp_path / "r.png")
    assert min(pixels.shape[:2]) >= 400
    assert len(np.unique(pixels[::3, ::3, 0])) > 10
