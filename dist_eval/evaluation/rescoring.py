"""Restarting a complete run: nothing is sent, and newly requested metrics are computed from its saved predictions."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from dist_eval.analysis.options import AnalysisOptions, analyse
from dist_eval.data.dataset import TokenizedDataset
from dist_eval.data.prompted_rows import PromptedRows
from dist_eval.errors import RunError, one_line
from dist_eval.evaluation.context import RunContext
from dist_eval.metrics.computing import Metrics, compute_metrics
from dist_eval.metrics.custom_metrics import CustomMetric, CustomResults, Inputs, custom_results
from dist_eval.metrics.predictions import PredictionsLike
from dist_eval.options.config import EvaluationConfig
from dist_eval.report.document import format_metric
from dist_eval.report.page import format_run, report_on
from dist_eval.report.sections import format_selection, headline
from dist_eval.results.inputs import SelectionSummary
from dist_eval.results.run import CompleteHarnessRun, CompleteRun
from dist_eval.results.scores import Analysis, Interval, Intervals
from dist_eval.runs.evaluation_folder import EvaluationFolder
from dist_eval.runs.files import PREDICTIONS, REPORT
from dist_eval.runs.reading import read_results
from dist_eval.runs.saved_samples import SavedPredictions, read_predictions
from dist_eval.statistics import Statistic, metric_intervals
from dist_eval.statistics.metrics import statistics_of_functions
from dist_eval.tables import format_count

_Value = TypeVar("_Value")

# Options of the analysis: they change how predictions are analysed, not the predictions
ANALYSIS_OPTIONS = ("confidence", "group_column", "slice_by")


def rescore_complete(
    folder: EvaluationFolder,
    config: EvaluationConfig,
    custom_metrics: Sequence[CustomMetric],
    data: TokenizedDataset,
) -> dict[str, float | None]:
    """Reports that the run is complete, and computes newly requested metrics from its predictions.

    Custom metrics are always computed again: they, or the code behind them, may be new. Intervals, groups and slices
    are computed again if their options differ from the run's.
    """
    results = read_results(folder.path)
    name, figure = headline(results)
    print(
        f"{folder.path} holds the complete results of this very run, finished {results.finished}: {name} "
        f"{'undefined' if figure is None else format_metric(name, figure)} on "
        f"{format_count(results.coverage.seen, 'example')}. "
        "Nothing was sent; --overwrite runs it again.",
        flush=True,
    )
    is_new_analysis = any(results.config[name] != getattr(config, name) for name in ANALYSIS_OPTIONS)
    if custom_metrics or is_new_analysis:
        predictions = _predictions(folder)
        options = analysis_of(config, data)
        metrics, custom = compute_metrics(predictions, results.label_names), CustomResults()
        extra_statistics = statistics_of_functions(custom_metrics, predictions, options.units(predictions))
        intervals: Intervals = {}
        if custom_metrics:
            custom = custom_results(custom_metrics, Inputs.of(predictions))
            intervals = _intervals_of(custom, metrics, predictions, options, extra_statistics)
            results = _revise_metrics(results, config, custom_metrics, custom, intervals)
        if is_new_analysis:
            analysis = analyse(predictions, metrics, options)
            results = _merge_analysis(results, analysis, config, custom.values)
            folder.revise(results, predictions, options.groups(predictions))
        else:
            folder.revise(results)
    if custom_metrics or is_new_analysis or not (folder.path / REPORT).exists():
        report_on(folder.path, config.report)
    if custom_metrics or is_new_analysis:
        print(f"Computed from its predictions:{format_run(folder.path, with_speed=False)}", flush=True)
    return results.metrics


def keep_recorded_analysis(context: RunContext[EvaluationConfig, EvaluationFolder]) -> EvaluationConfig:
    """Sets and returns the options: on the leader those of the analysis are a complete run's, unless they are given."""
    if context.topology.is_leader:
        folder = context.folder
        context.config = with_recorded_analysis(context.config, folder.results() or folder.task_results())
        folder.options = context.config.recorded()
    return context.config


def announce_selection(
    context: RunContext[EvaluationConfig, EvaluationFolder], selection: SelectionSummary | None
) -> None:
    """Says on the leader how many rows will be evaluated, if not all of them."""
    words = format_selection(selection)
    if words and context.topology.is_leader:
        precision = context.config.precision
        wide = f", for intervals of at most ±{precision:g} at {100 * context.config.confidence:g}%" if precision else ""
        print(f"evaluating {words}{wide}", flush=True)


def with_recorded_analysis(
    config: EvaluationConfig, results: CompleteRun | CompleteHarnessRun | None
) -> EvaluationConfig:
    """Takes over slices, groups and the pattern of answers of a complete run where the options name none."""
    if config.overwrite or results is None:
        return replace(config, answer_pattern=None) if config.answer_pattern == "" else config
    recorded: dict[str, Any] = results.config
    pattern = recorded.get("answer_pattern") if config.answer_pattern is None else config.answer_pattern
    return replace(
        config,
        slice_by=config.slice_by or recorded.get("slice_by") or [],
        group_column=config.group_column or recorded.get("group_column"),
        answer_pattern=pattern or None,  # an empty one drops it
    )


def analysis_of(config: EvaluationConfig, data: TokenizedDataset | PromptedRows) -> AnalysisOptions:
    """Returns the options of the analysis (see `AnalysisOptions.of`)."""
    return AnalysisOptions.of(data, **{name: getattr(config, name) for name in ANALYSIS_OPTIONS})


def _intervals_of(
    custom: CustomResults,
    metrics: Metrics,
    predictions: PredictionsLike,
    options: AnalysisOptions,
    extra_statistics: Sequence[Statistic],
) -> Intervals:
    alone = replace(metrics, values=custom.values, undefined=custom.undefined, custom=list(custom.values))
    return metric_intervals(
        predictions, alone, extra_statistics=extra_statistics, **options.interval_options(predictions)
    )


def _revise_metrics(
    results: CompleteRun,
    config: EvaluationConfig,
    custom_metrics: Sequence[CustomMetric],
    custom: CustomResults,
    intervals: Intervals,
) -> CompleteRun:
    """Returns results with the values of custom metrics, in place of earlier ones."""
    names = {metric.name for metric in custom_metrics}
    old = [name for name in results.custom_metrics if name.split("/")[0] in names]
    recorded: dict[str, Any] = results.config
    return results.model_copy(
        update={
            "metrics": {**_others(results.metrics, old), **custom.values},
            "undefined": {**_others(results.undefined, old), **custom.undefined},
            "intervals": {**_others(results.intervals, old), **intervals},
            "custom_metrics": [*(name for name in results.custom_metrics if name not in old), *custom.values],
            "config": {**recorded, "metric": list(dict.fromkeys([*recorded["metric"], *config.metric]))},
        }
    )


def _others(section: Mapping[str, _Value], names: Collection[str]) -> dict[str, _Value]:
    return {name: value for name, value in section.items() if name not in names}


def _merge_analysis(
    results: CompleteRun, analysis: Analysis, config: EvaluationConfig, revised: Collection[str]
) -> CompleteRun:
    """Returns results with intervals, calibration and slices replaced by those of the new analysis."""
    options = {name: getattr(config, name) for name in ANALYSIS_OPTIONS}
    same = all(results.config[name] == options[name] for name in ("confidence", "group_column"))
    later = "not computed for these options: start the command again with its --metric, which sends nothing"
    unknown = Interval(confidence=config.confidence, reason=later)
    of_custom = {
        name: interval if same or name in revised else unknown
        for name, interval in results.intervals.items()
        if name in results.custom_metrics
    }
    return results.model_copy(
        update={
            **dict(analysis),
            "intervals": {**analysis.intervals, **of_custom},
            "config": {**results.config, **options},
        }
    )


def _predictions(folder: EvaluationFolder) -> SavedPredictions:
    try:
        return read_predictions(folder.path / PREDICTIONS)
    except (OSError, ValueError, KeyError) as error:
        raise RunError(
            f"{folder.path / PREDICTIONS} cannot be read: {one_line(error)}. --overwrite runs it again."
        ) from error
