"""A complete run that is started again: nothing is sent, what is asked for anew is computed from its predictions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dist_eval.analysis.view import View, analyse
from dist_eval.config import EvaluationConfig
from dist_eval.data.dataset import TokenizedDataset
from dist_eval.data.plan import Plan
from dist_eval.errors import RunError
from dist_eval.evaluation.run_folder import RunFolder
from dist_eval.metrics.computing import compute_metrics
from dist_eval.metrics.custom_metrics import CustomMetric, Inputs, custom_results, reduce_batches
from dist_eval.report import PREDICTIONS, format_figures, format_slices, group_lines, headline
from dist_eval.report.page import report_on
from dist_eval.report.saved_predictions import SavedPredictions, read_predictions


def present_complete(
    folder: RunFolder,
    config: EvaluationConfig,
    own_metrics: Sequence[CustomMetric],
    data: TokenizedDataset,
    plan: Plan,
) -> dict[str, Any]:
    """Tells a person that there is nothing to do, and returns the metrics of the complete run.

    The caller's own metrics are computed from its predictions: they, or the code behind them, may be new. So are
    slices, and with them or a group column all intervals and the groups of the predictions, as the options say now.

    Raises:
        RunError: the predictions cannot be read.
        DataError: a row names no group.
    """
    results = folder.results()
    name, figure = headline(results["metrics"], results["problem_type"])
    print(
        f"{folder.path} holds the complete results of this very run, finished {results['finished']}: {name} "
        f"{'undefined' if figure is None else f'{figure:.4f}'} on {results['coverage']['seen']} examples. Nothing was "
        "sent; --overwrite runs it again.",
        flush=True,
    )
    if own_metrics:
        columns = _columns(folder)
        inputs = Inputs.of_columns(columns["prediction"], columns["label"], columns.get("probabilities"))
        reduced = reduce_batches(own_metrics, inputs.rows, columns["index"], plan, np.arange(len(plan)))
        custom = custom_results(own_metrics, inputs, reduced)
        folder.revise_metrics(custom.values, custom.undefined, {metric.name for metric in own_metrics})
        _tell(format_figures(custom.values, custom.undefined))
    if config.slice_by or config.group_column:
        predictions = SavedPredictions.of_columns(_columns(folder))
        metrics = compute_metrics(predictions, [row["label"] for row in results["per_class"]])
        view = View.of(config, data)
        facts = analyse(predictions, metrics, view)
        folder.revise_view(facts, predictions, view.groups(predictions))
        lines = [*format_slices(facts["slices"], metrics.problem), *group_lines(facts["groups"])]
        _tell([*format_figures(metrics.values, metrics.undefined, facts["intervals"]), *lines])
    if own_metrics or config.slice_by or config.group_column:
        report_on(folder.path, config.report)
    return folder.results()["metrics"]


def _columns(folder: RunFolder) -> dict[str, np.ndarray]:
    try:
        return read_predictions(folder.path / PREDICTIONS)
    except OSError as error:
        raise RunError(f"{folder.path / PREDICTIONS} cannot be read: {error}. --overwrite runs it again.") from error


def _tell(lines: Sequence[str]) -> None:
    print("\n".join(["Computed from its predictions:", *lines]), flush=True)
