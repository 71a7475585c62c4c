"""A complete run that is started again: nothing is sent, what is asked for anew is computed from its predictions."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from dist_eval.analysis.view import View, analyse
from dist_eval.config import EvaluationConfig, flag
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
from dist_eval.statistics import Interval, Statistic, metric_intervals
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
            _revise_metrics(folder, config, own_metrics, custom, intervals)
            _tell(format_figures(custom.values, custom.undefined, intervals))
        if looks_anew:
            facts = analyse(predictions, metrics, view)
            results = _seen_anew(folder.results(), facts, config, custom.values)
            folder.revise(results, predictions, view.groups(predictions))
            lines = [*format_slices(facts["slices"], metrics.problem), *group_lines(facts["groups"])]
            _tell([*format_figures(metrics.values, metrics.undefined, facts["intervals"]), *lines])
        report_on(folder.path, config.report)
    return folder.results()["metrics"]


def _is_at_another_level(config: EvaluationConfig, results: Mapping[str, Any]) -> bool:
    """Whether intervals are wanted at another level than the run has, and nothing would be lost for it."""
    recorded = results["config"]
    if config.confidence == recorded["confidence"]:
        return False
    kept = [flag(name) for name in ("slice_by", "group_column") if recorded[name]]
    if kept:
        print(
            f"Its intervals stay at --confidence {recorded['confidence']:g}; name its {' and '.join(kept)} again to "
            "have all of them anew.",
            flush=True,
        )
    return not kept


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


def _revise_metrics(
    folder: RunFolder,
    config: EvaluationConfig,
    own_metrics: Sequence[CustomMetric],
    custom: CustomResults,
    intervals: dict[str, Any],
) -> None:
    """Adds the figures of the caller's own metrics to the results, in place of earlier ones."""
    results, names = folder.results(), {metric.name for metric in own_metrics}
    old = [name for name in results["custom_metrics"] if name.split("/")[0] in names]
    for section, new in (("metrics", custom.values), ("undefined", custom.undefined), ("intervals", intervals)):
        results[section] = {**{name: one for name, one in results[section].items() if name not in old}, **new}
    results["custom_metrics"] = [*(name for name in results["custom_metrics"] if name not in old), *custom.values]
    results["config"]["metric"] = list(dict.fromkeys([*results["config"]["metric"], *config.metric]))
    folder.revise(results)


def _seen_anew(
    results: dict[str, Any], facts: dict[str, Any], config: EvaluationConfig, revised: Collection[str]
) -> dict[str, Any]:
    """Returns results with intervals, calibration and slices replaced by those that are asked for now.

    Args:
        results: of a complete run.
        facts: sections of `results.json` (see `dist_eval.analysis`).
        config: what is asked for.
        revised: custom metrics whose intervals are those that are asked for already.
    """
    options = {name: getattr(config, name) for name in ("confidence", "group_column", "slice_by")}
    same = all(results["config"][name] == options[name] for name in ("confidence", "group_column"))
    later = "not computed for these options: start the command again with its --metric, which sends nothing"
    unknown = Interval(config.confidence, reason=later).facts()
    of_custom = {
        name: one if same or name in revised else unknown
        for name, one in results["intervals"].items()
        if name in results["custom_metrics"]
    }
    intervals = {**facts["intervals"], **of_custom}
    return {**results, **facts, "intervals": intervals, "config": {**results["config"], **options}}


def _columns(folder: RunFolder) -> dict[str, np.ndarray]:
    try:
        return read_predictions(folder.path / PREDICTIONS)
    except OSError as error:
        raise RunError(f"{folder.path / PREDICTIONS} cannot be read: {error}. --overwrite runs it again.") from error


def _tell(lines: Sequence[str]) -> None:
    print("\n".join(["Computed from its predictions:", *lines]), flush=True)
