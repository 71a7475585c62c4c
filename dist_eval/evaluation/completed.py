"""A complete run that is started again: nothing is sent, what is asked for anew is computed from its predictions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from dist_eval.analysis.view import View, analyse
from dist_eval.config import EvaluationConfig
from dist_eval.data.dataset import TokenizedDataset
from dist_eval.data.plan import Plan
from dist_eval.errors import RunError
from dist_eval.evaluation.run_folder import RunFolder
from dist_eval.metrics.computing import Metrics, compute_metrics
from dist_eval.metrics.custom_metrics import CustomMetric, CustomResults, Inputs, custom_results, reduce_batches
from dist_eval.metrics.predictions import Scored
from dist_eval.report import PREDICTIONS, format_figures, format_slices, group_lines, headline
from dist_eval.report.page import report_on
from dist_eval.report.saved_predictions import GROUP, SavedPredictions, read_predictions
from dist_eval.statistics import Statistic, metric_intervals
from dist_eval.statistics.custom import statistics_of_functions


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
    looks_anew = config.slice_by or config.group_column or _is_at_another_level(config, results)
    if own_metrics or looks_anew:
        columns = _columns(folder)
        predictions = SavedPredictions.of_columns(columns)
        view = View.of(config, data) if looks_anew else _view_of(results, columns)
        metrics, custom = compute_metrics(predictions, [row["label"] for row in results["per_class"]]), CustomResults()
        further = statistics_of_functions(own_metrics, predictions, view.units(predictions))
        if own_metrics:
            inputs = Inputs.of(predictions)
            reduced = reduce_batches(own_metrics, inputs.rows, predictions.index, plan, np.arange(len(plan)))
            custom = custom_results(own_metrics, inputs, reduced)
            intervals = _intervals_of(custom, metrics, predictions, view, further)
            folder.revise_metrics(custom, intervals, {metric.name for metric in own_metrics})
            _tell(format_figures(custom.values, custom.undefined, intervals))
        if looks_anew:
            facts = analyse(predictions, metrics, view)
            folder.revise_view(facts, predictions, view.groups(predictions), custom.values)
            lines = [*format_slices(facts["slices"], metrics.problem), *group_lines(facts["groups"])]
            _tell([*format_figures(metrics.values, metrics.undefined, facts["intervals"]), *lines])
        report_on(folder.path, config.report)
    return folder.results()["metrics"]


def _is_at_another_level(config: EvaluationConfig, results: Mapping[str, Any]) -> bool:
    """Whether intervals are wanted at another level than the run has, and no slices would be lost for it."""
    if config.confidence == results["config"]["confidence"]:
        return False
    if results["slices"]:
        level = results["config"]["confidence"]
        words = f"Its intervals stay at --confidence {level:g}; name its --slice-by again to have all of them anew."
        print(words, flush=True)
    return not results["slices"]


def _view_of(results: Mapping[str, Any], columns: Mapping[str, np.ndarray]) -> View:
    """Returns how a complete run was looked at, but for its slices."""
    confidence = results["config"]["confidence"]
    if not results["groups"] or GROUP not in columns:
        return View(confidence)
    group_of = np.zeros(columns["index"].max() + 1, dtype=np.int64)
    group_of[columns["index"]] = columns[GROUP]
    return View(confidence, group_column=results["groups"]["column"], group_of=group_of)


def _intervals_of(
    custom: CustomResults, metrics: Metrics, predictions: Scored, view: View, further: Sequence[Statistic]
) -> dict[str, Any]:
    alone = replace(metrics, values=custom.values, undefined=custom.undefined)
    groups = view.groups(predictions)
    found = metric_intervals(predictions, alone, confidence=view.confidence, groups=groups, further=further)
    return {name: interval.facts() for name, interval in found.items()}


def _columns(folder: RunFolder) -> dict[str, np.ndarray]:
    try:
        return read_predictions(folder.path / PREDICTIONS)
    except OSError as error:
        raise RunError(f"{folder.path / PREDICTIONS} cannot be read: {error}. --overwrite runs it again.") from error


def _tell(lines: Sequence[str]) -> None:
    print("\n".join(["Computed from its predictions:", *lines]), flush=True)
