"""Metrics of regression: errors and correlations, computed by scikit-learn and SciPy. Free of side effects."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dist_eval.data.problem_types import named
from dist_eval.metrics.catalogue import OF_OUTPUT
from dist_eval.metrics.predictions import PredictionsLike
from dist_eval.results.record import MetricValues, Reasons
from dist_eval.results.scores import OutputResults


def regression_metrics(
    predictions: PredictionsLike, names: Sequence[str]
) -> tuple[MetricValues, Reasons, list[OutputResults]]:
    """Computes the metrics of each output, and their means over the outputs.

    Args:
        predictions: predictions of a regression, at least one example.
        names: names of the outputs.

    Returns:
        The means by name (mean absolute, mean squared and root mean squared error, coefficient of determination,
        Pearson's and Spearman's correlation), the reasons of undefined ones, and for each output its label and metrics.
    """
    rows, reasons, outputs = [], [], predictions.prediction
    for number, name in enumerate(names):
        values, undefined = _of_output(predictions.label[:, number], outputs[:, number])
        rows.append(OutputResults.model_construct(None, label=name, **values))  # unchecked: a square may overflow
        reasons.append(undefined)
    means: MetricValues = {}
    why: Reasons = {}
    for figure in OF_OUTPUT:
        lacking = np.asarray([number for number, undefined in enumerate(reasons) if figure in undefined], dtype=int)
        if len(lacking):
            where = f" ({named(lacking, names, 'output', 'outputs')})" if len(names) > 1 else ""
            means[figure], why[figure] = None, reasons[lacking[0]][figure] + where
        else:
            means[figure] = float(np.mean([getattr(row, figure) for row in rows]))
    return means, why, rows


def _of_output(label: np.ndarray, output: np.ndarray) -> tuple[MetricValues, Reasons]:
    from scipy import stats
    from sklearn import metrics as sk

    mse = float(sk.mean_squared_error(label, output))
    values: MetricValues = {
        "mae": float(sk.mean_absolute_error(label, output)),
        "mse": mse,
        "rmse": float(np.sqrt(mse)),
    }
    undefined = why_undefined(label, output)
    values["r2"] = None if "r2" in undefined else float(sk.r2_score(label, output))
    for figure, correlate in (("pearson", stats.pearsonr), ("spearman", stats.spearmanr)):
        values[figure] = None if figure in undefined else float(correlate(label, output).statistic)
    return values, undefined


def why_undefined(label: np.ndarray, output: np.ndarray) -> Reasons:
    """Returns the reasons of an output's undefined metrics, by name.

    Args:
        label: true values, float64 of shape [n].
        output: predicted values, float64 of shape [n].
    """
    constant = [what for what, column in (("labels", label), ("outputs", output)) if column.min() == column.max()]
    undefined = {"r2": "all labels are equal"} if "labels" in constant else {}
    if constant:
        undefined.update(dict.fromkeys(("pearson", "spearman"), f"all {' and all '.join(constant)} are equal"))
    return undefined
