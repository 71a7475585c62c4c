"""What a summary says of each run: its status, its metrics, and whether they are comparable."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

from dist_eval.errors import ConfigError
from dist_eval.metrics.catalogue import lower_is_better, metric_names
from dist_eval.results.harness import TaskResults
from dist_eval.results.inputs import Coverage
from dist_eval.results.run import CompleteHarnessRun, CompleteRun, RunningRun
from dist_eval.runs.outcome import Outcome

Measured: TypeAlias = CompleteRun | CompleteHarnessRun  # results with metrics and intervals by name


def measured(outcome: Outcome) -> Measured | None:
    """Returns the results of a complete evaluation, on a dataset or on tasks; None for all other runs."""
    return outcome.results if isinstance(outcome.results, Measured) else None


def coverage_of(outcome: Outcome) -> Coverage | None:
    """Returns how many examples a run has evaluated, if that is known."""
    results = outcome.results
    return None if results is None or isinstance(results, RunningRun) else results.coverage


def on_same_data(run: Measured, other: Measured) -> bool:
    """Returns whether the metrics of two runs can be compared.

    A prompt is part of the texts whose digest is recorded, so with one the columns decide. Runs on tasks always can be
    compared: a metric's name has that of its task. Generated texts can if their references are the same.
    """
    if isinstance(run, CompleteRun) and isinstance(other, CompleteRun):
        has_prompt = run.model.prompt is not None or other.model.prompt is not None
        is_same = run.data.text_digest == other.data.text_digest or (has_prompt and run.data.has_texts_of(other.data))
        return run.problem_type == other.problem_type and run.data.selection == other.data.selection and is_same
    if not (isinstance(run, CompleteHarnessRun) and isinstance(other, CompleteHarnessRun)):
        return False
    references = (each.dataset and each.dataset.references_digest for each in (run, other))
    return len({*references}) == 1


def on_other_data(outcomes: Sequence[Outcome]) -> tuple[Outcome | None, list[Outcome]]:
    """Returns the first complete run, and the complete runs that cannot be compared with it."""
    complete = [(outcome, run) for outcome in outcomes if (run := measured(outcome))]
    if not complete:
        return None, []
    first, baseline = complete[0]
    return first, [outcome for outcome, run in complete if not on_same_data(run, baseline)]


def choose_metrics(outcomes: Sequence[Outcome], asked: Sequence[str], sort: str | None) -> list[str]:
    """Returns the names of the metrics to show, by default the usual ones; raises ConfigError if no run has one."""
    runs = [run for run in map(measured, outcomes) if run]
    known = {name for run in runs for name in run.metrics}
    for name in [*asked, *([sort] if sort else [])]:
        if known and name not in known:
            raise ConfigError(f"There is no metric {name!r}; the runs have {', '.join(sorted(known))}.")
    usual = [name for run in runs for name in _main_metrics(run)]
    return [name for name in dict.fromkeys(asked or usual) if name in known]


def _main_metrics(run: Measured) -> list[str]:
    if isinstance(run, CompleteHarnessRun):
        return run.main_metrics
    return [*metric_names(run.problem_type, "compared"), *run.custom_metrics]


def best_first(outcomes: Sequence[Outcome], metric: str) -> list[Outcome]:
    """Sorts runs by a metric; those without it come last, in their order."""

    def place(outcome: Outcome) -> tuple[bool, float]:
        run = measured(outcome)
        value = run.metrics.get(metric) if run else None
        if run is None or value is None:
            return True, 0.0
        return False, value if _is_lower_better(metric, run) else -value

    return sorted(outcomes, key=place)


def _is_lower_better(metric: str, run: Measured) -> bool:
    if isinstance(run, CompleteRun):
        return lower_is_better(metric)
    return any(
        metric == f"{name}/{own.key}" and own.higher_is_better is False
        for name in (*run.tasks, *run.groups)
        for task in _tasks_of(name, run)
        for own in task.metrics
    )


def _tasks_of(name: str, run: CompleteHarnessRun) -> Iterator[TaskResults]:
    """Yields a task, or the tasks of a group and of the groups in it."""
    if name in run.tasks:
        yield run.tasks[name]
    elif name in run.groups:
        for member in run.groups[name].tasks:
            yield from _tasks_of(member, run)


def to_records(outcomes: Sequence[Outcome], metrics: Sequence[str]) -> list[dict[str, Any]]:
    """Returns one record for each run, for JSON and CSV; what is unknown or undefined is None.

    `other_data_than` is the first complete run if this one is complete and has other texts or labels.
    """
    records = []
    first, others = on_other_data(outcomes)
    for outcome in outcomes:
        run, coverage = measured(outcome), coverage_of(outcome)
        record: dict[str, Any] = {
            "run": str(outcome.folder),
            "status": outcome.status,
            "exit_status": outcome.exit_status,
            "reason": outcome.reason,
            "problem_type": run.problem_type if run else None,
            "examples": coverage.expected if coverage else None,
            "missing": coverage.missing if coverage else None,
            "failed": coverage.failed if coverage else None,
            "seconds": run.throughput.seconds if run else None,  # of the forward passes
            "other_data_than": str(first.folder) if first and outcome in others else None,
        }
        for name in metrics:
            interval = run.intervals.get(name) if run else None
            record[name] = run.metrics.get(name) if run else None
            record[f"{name}_low"] = interval.low if interval else None
            record[f"{name}_high"] = interval.high if interval else None
        records.append(record)
    return records
