"""Restarts a complete run: sends nothing, and computes newly requested metrics from its saved predictions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from dist_eval.evaluation.context import RunContext
from dist_eval.evaluation.printing import announce_complete, show_results
from dist_eval.metrics.computing import Metrics
from dist_eval.metrics.metric_loading import name_of_spec
from dist_eval.metrics.predictions import Predictions
from dist_eval.options.config import EvaluationConfig
from dist_eval.results.run import AnyCompleteRun, CompleteRun
from dist_eval.results.scores import Analysis, Interval
from dist_eval.runs.evaluation_folder import EvaluationFolder
from dist_eval.runs.reading import read_table
from dist_eval.runs.saved_samples import Texts

_Value = TypeVar("_Value")
Table = TypeVar("Table", Predictions, Texts)

# these options change how predictions are analysed, not the predictions
_RESCORED = ("confidence", "group_column", "slice_by", "answer_pattern")


def rescore(
    folder: EvaluationFolder,
    config: EvaluationConfig,
    read: Callable[[Path], Table],
    compute: Callable[[Any, Table], tuple[Any, Table]],
) -> None:
    """Prints that the run is complete, computes from its samples what new options ask for, and shows the results.

    Custom metrics, groups and slices are always computed again, because their code or columns may have changed;
    intervals only if their options differ from the run's.

    `read` reads the table of the samples. `compute` turns the recorded results and the table into new ones.
    """
    results = announce_complete(folder)
    is_new = bool(config.metric) or any(results.config.get(name) != getattr(config, name) for name in _RESCORED)
    if is_new or config.slice_by or config.group_column:  # these columns of the dataset may have changed
        found, samples = compute(results, read_table(folder.path, read, " --overwrite runs it again."))
        is_new = is_new or found != results
        results = found.model_copy(update={"config": _options_of_both(results.config, config)})
    if is_new:
        folder.revise(results, samples)
        print("Computed from its answers:", flush=True)
    show_results(folder, config, are_new=is_new, with_speed=False)


def _options_of_both(recorded: dict[str, Any], config: EvaluationConfig) -> dict[str, Any]:
    """Returns the recorded options, updated with those for scoring and with the metrics of both."""
    metrics = {name_of_spec(spec): spec for spec in (*(recorded.get("metric") or ()), *config.metric)}
    options = {name: getattr(config, name) for name in _RESCORED}
    return {**recorded, **options, "metric": list(metrics.values())}


def keep_recorded_analysis(context: RunContext[Any, EvaluationFolder]) -> Any:
    """Sets and returns the options; on the leader, those of the analysis default to a complete run's."""
    if context.topology.is_leader and isinstance(context.config, EvaluationConfig):
        context.config = with_recorded_analysis(context.config, context.folder.results())
        context.folder.options = context.config.recorded()
    return context.config


def with_recorded_analysis(config: EvaluationConfig, results: AnyCompleteRun | None) -> EvaluationConfig:
    """Takes slices, groups and answer pattern from a complete run where the options name none."""
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


def with_new_scores(
    results: CompleteRun,
    metrics: Metrics,
    analysis: Analysis,
    config: EvaluationConfig,
    *,
    renewed: Collection[str],
    is_regrouped: bool,
) -> CompleteRun:
    """Returns results with a new analysis and renewed values of custom metrics."""
    old = [name for name in results.custom_metrics if name.split("/")[0] in renewed]
    kept = [name for name in results.custom_metrics if name not in old]
    has_same_intervals = results.config["confidence"] == config.confidence and not is_regrouped
    later = "not computed for these options: start the command again with its --metric, which sends nothing"
    unknown = Interval(confidence=config.confidence, reason=later)
    return results.model_copy(
        update={
            **dict(analysis),
            "metrics": {**_others(results.metrics, old), **_only(metrics.values, metrics.custom)},
            "undefined": {**_others(results.undefined, old), **_only(metrics.undefined, metrics.custom)},
            "intervals": {
                **_only(_others(analysis.intervals, metrics.custom), results.metrics),  # an older version lacked some
                **{name: results.intervals[name] if has_same_intervals else unknown for name in kept},
                **_only(analysis.intervals, metrics.custom),
            },
            "custom_metrics": [*kept, *metrics.custom],
        }
    )


def _only(section: Mapping[str, _Value], names: Collection[str]) -> dict[str, _Value]:
    return {name: value for name, value in section.items() if name in names}


def _others(section: Mapping[str, _Value], names: Collection[str]) -> dict[str, _Value]:
    return {name: value for name, value in section.items() if name not in names}
