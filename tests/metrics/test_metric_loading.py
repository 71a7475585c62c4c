"""`--metric`: custom metrics are loaded and checked before anything is sent."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from dist_eval.errors import ConfigError
from dist_eval.metrics.computing import compute_metrics
from dist_eval.metrics.custom_metrics import MetricInputs, custom_results
from dist_eval.metrics.metric_loading import load_metrics, synthetic_predictions
from dist_eval.petals.base_model.problem_types import MULTI_LABEL, PROBLEMS, REGRESSION, SINGLE_LABEL, Problem


def error_of(*specs: str, problem: Problem = SINGLE_LABEL, outputs: int = 3) -> str:
    with pytest.raises(ConfigError) as caught:
        load_metrics(specs, problem, outputs, built_in=["accuracy", "loss"])
    assert f"--metric {specs[-1]}: " in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("error_rate", "must be package.module:name, or the path"),
        ("f1", "f1 is a metric of generated texts (--generate)"),
        ("no_such_module:f1", "No module named 'no_such_module'. Modules must be in the working directory"),
        ("sample_metrics:f3", "sample_metrics has no attribute 'f3'"),
        ("sample_metrics:factor", "must be a function or a metric, not int (2)"),
        ("sample_metrics:raises", "it raised KeyError: 'no such class'. It must return a float, or a dict of floats"),
        ("sample_metrics:draws", "called again, {'draws': "),
        ("sample_metrics:changes_labels", "raised ValueError: assignment destination is read-only."),
        ("sample_metrics:gives_none", "it gave None. It must return a float"),
        ("sample_metrics:gives_text", "it gave str ('0.5')"),
        ("sample_metrics:gives_an_array", "it gave ndarray of shape [8]"),
        ("sample_metrics:gives_a_nested_dict", "under 'a'"),
        ("sample_metrics:mean_absolute", "it raised AssertionError."),
        (
            "sample_metrics:accuracy",
            "the name 'accuracy' is already in use. Give this metric another name: --metric my_acc",
        ),
        ("sample_metrics:NoFunction", "is a class. It must be a function of (predictions, labels, probabilities)"),
    ],
)
def test_invalid_metrics_are_rejected_with_the_reason(target: str, words: str) -> None:
    assert words in error_of(target)


def test_messages_describe_the_arguments_of_a_metric() -> None:
    message = error_of("sample_metrics:raises")
    assert "predictions int64 of shape [8], labels int64 of shape [8], probabilities float64 of shape [8, 3]" in message
    assert "probabilities None" in error_of("sample_metrics:raises", problem=REGRESSION, outputs=1)


def test_two_metrics_of_one_name_need_another() -> None:
    assert "the name 'f2' is already in use" in error_of("sample_metrics:f2", "sample_metrics:f2")
    named = load_metrics(["sample_metrics:f2", "other=sample_metrics:f2"], SINGLE_LABEL, 3, built_in=[])
    assert [metric.name for metric in named] == ["f2", "other"]


def test_a_module_that_cannot_be_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_metrics.py").write_text("import numpy\nfactor = 1 / 0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert "importing broken_metrics fails: ZeroDivisionError: division by zero." in error_of("broken_metrics:f1")


@pytest.mark.parametrize("outputs", [1, 2, 3, 50])
@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS)
def test_few_metrics_are_undefined_for_the_synthetic_examples(problem: Problem, outputs: int) -> None:
    predictions = synthetic_predictions(problem, outputs)
    metrics = compute_metrics(predictions, [str(number) for number in range(outputs)])
    assert len(predictions) <= max(8, 2 * outputs)
    if outputs > 1:
        assert metrics.undefined == {} or problem is SINGLE_LABEL
    if problem is SINGLE_LABEL:
        assert set(predictions.label) == set(range(outputs))


@pytest.mark.parametrize(
    ("kind", "problem", "outputs"),
    [
        ("MulticlassF1Score(num_classes=3, average='macro')", SINGLE_LABEL, 3),
        ("BinaryAUROC()", SINGLE_LABEL, 2),
        ("MultilabelF1Score(num_labels=4, average='micro')", MULTI_LABEL, 4),
        ("MeanSquaredError()", REGRESSION, 1),
        ("MetricCollection([MulticlassRecall(num_classes=3, average='macro')])", SINGLE_LABEL, 3),
    ],
)
def test_metrics_of_torchmetrics(
    kind: str, problem: Problem, outputs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torchmetrics")
    (tmp_path / "of_torch.py").write_text(
        "from torchmetrics import *\nfrom torchmetrics.classification import *\nfrom torchmetrics.regression import *\n"
        f"metric = {kind}\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "of_torch", raising=False)
    monkeypatch.setattr("dist_eval.metrics.metric_loading._ROWS_IN_A_CHUNK", 3)
    metrics = load_metrics(["of_torch:metric"], problem, outputs, built_in=[])
    predictions = synthetic_predictions(problem, outputs)
    results = custom_results(metrics, MetricInputs.of(predictions))
    ours = compute_metrics(predictions, [str(number) for number in range(outputs)]).values
    [value] = results.values.values()
    equal = {"MulticlassF1": "f1_macro", "BinaryAUROC": "roc_auc", "MultilabelF1": "f1_micro", "MeanSq": "mse"}
    name = next((figure for start, figure in equal.items() if kind.startswith(start)), "recall_macro")
    assert value == pytest.approx(ours[name], abs=1e-6)


def test_a_metric_of_evaluate_in_a_folder(tmp_path: Path) -> None:
    pytest.importorskip("evaluate")
    folder = tmp_path / "share_right"
    folder.mkdir()
    (folder / "share_right.py").write_text(
        "import datasets\nimport evaluate\n"
        "class ShareRight(evaluate.Metric):\n"
        "    def _info(self):\n"
        "        kinds = {'predictions': datasets.Value('int64'), 'references': datasets.Value('int64')}\n"
        "        return evaluate.MetricInfo(description='', citation='', features=datasets.Features(kinds))\n"
        "    def _compute(self, predictions, references):\n"
        "        return {'share_right': sum(p == r for p, r in zip(predictions, references)) / len(references)}\n"
    )
    metrics = load_metrics([str(folder)], SINGLE_LABEL, 3, built_in=[])
    predictions = synthetic_predictions(SINGLE_LABEL, 3)
    results = custom_results(metrics, MetricInputs.of(predictions))
    assert results.values == {"share_right": np.mean(predictions.prediction == predictions.label)}
