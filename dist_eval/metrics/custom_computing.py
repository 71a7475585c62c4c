"""Computes custom metrics: from all examples at once, or from the values of batches that a reduction combines.

Values of batches are combined in the order of the plan, so that results are bit-identical for any number of ranks. This
module does not know the process group: communication is a function that is passed in.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dist_eval.data.plan import Plan
from dist_eval.metrics.custom_metrics import CustomMetric, Inputs, NoResult, described, error_sentence, numbers_by_name

_BATCHES_IN_A_ROUND = 1 << 12
"""Batches whose values are gathered at a time, which bounds the memory that other ranks' values take."""


Gather = Callable[[Any], list[Any]]
"""Gathers an object of every rank on every rank, as all_gather_object does."""

Parts = dict[str, np.ndarray]
"""The value of a batch: arrays by name; the name is empty for a value that is not a dict."""


def parts_of(value: Any) -> Parts:
    """Converts the value of a batch into arrays by name.

    Raises:
        NoResult: the value is neither a number, an array, nor a dict of them.
    """
    named = value if isinstance(value, Mapping) else {"": value}
    parts = {str(name): np.asarray(one) for name, one in named.items()}
    for name, array in parts.items():
        if array.dtype.kind not in "biuf":
            raise NoResult(described(named[name]) + (f" under {name!r}" if name else ""))
    return {name: array.astype(np.float64 if array.dtype.kind == "f" else np.int64) for name, array in parts.items()}


class Reduced:
    """Combines the values of batches, which must be added in the order of the plan.

    Args:
        reduction: one of `REDUCTIONS`.
    """

    def __init__(self, reduction: str) -> None:
        self._reduction, self._samples = reduction, 0
        self._parts: Parts = {}
        self._pieces: list[Parts] = []

    def add(self, parts: Parts, samples: int) -> None:
        """Adds the value of a batch.

        Args:
            parts: the value.
            samples: number of examples in the batch.

        Raises:
            NoResult: its names or shapes differ from those of other batches.
        """
        known = self._pieces[0] if self._pieces else self._parts
        if self._samples and (known.keys() != parts.keys() or any(
            array.shape[1:] != known[name].shape[1:] if self._reduction == "cat" else array.shape != known[name].shape
            for name, array in parts.items()
        )):  # fmt: skip
            raise NoResult("values of different batches that differ in their names or shapes")
        first, self._samples = not self._samples, self._samples + samples
        if self._reduction == "cat":
            self._pieces.append({name: np.atleast_1d(array) for name, array in parts.items()})
            return
        if self._reduction == "mean":
            parts = {name: array * float(samples) for name, array in parts.items()}
        if first:
            self._parts = parts
            return
        combine = {"max": np.maximum, "min": np.minimum}.get(self._reduction, np.add)
        self._parts = {name: combine(self._parts[name], array) for name, array in parts.items()}

    def value(self) -> Any:
        """Returns the combined value, in the form of the batches' values.

        Raises:
            NoResult: no batch was added.
        """
        if not self._samples:
            raise NoResult("no value, because there are no examples")
        parts = self._parts
        if self._reduction == "cat":
            parts = {name: np.concatenate([piece[name] for piece in self._pieces]) for name in self._pieces[0]}
        elif self._reduction == "mean":
            parts = {name: array / self._samples for name, array in parts.items()}
        values = {name: array if array.ndim else array[()] for name, array in parts.items()}
        return values[""] if list(values) == [""] else values


ReducedMetrics = Mapping[str, Reduced | str]
"""For each metric with a reduction the combined values, or the reason why there are none."""


def reduce_batches(
    metrics: Sequence[CustomMetric],
    inputs_at: Callable[[np.ndarray], Inputs],
    index: np.ndarray,
    plan: Plan,
    batches: np.ndarray,
    gather: Gather = lambda value: [value],
    *,
    leads: bool = True,
) -> ReducedMetrics:
    """Computes the metrics that have a reduction, batch by batch; a collective call with each rank's batches.

    Args:
        metrics: all custom metrics.
        inputs_at: returns the inputs of some of this rank's examples, by row.
        index: positions of this rank's examples in the dataset, ascending, int64 of shape [n].
        plan: all batches.
        batches: numbers of this rank's batches.
        gather: gathers an object of every rank on every rank; by default for a single rank.
        leads: whether this rank needs the result.

    Returns:
        The combined values of all ranks' batches by name of the metric, valid on ranks with `leads`.
    """
    reduced = [metric for metric in metrics if metric.reduction]
    combined: dict[str, Reduced | str] = {metric.name: Reduced(str(metric.reduction)) for metric in reduced}
    own_batches = np.sort(batches)
    for start in range(0, len(plan) if reduced else 0, _BATCHES_IN_A_ROUND):
        first, last = np.searchsorted(own_batches, [start, start + _BATCHES_IN_A_ROUND])
        found = list(_measure_batches(reduced, inputs_at, index, plan, own_batches[first:last], combined))
        values = itertools.chain.from_iterable(gather(found))
        for _, name, samples, parts in sorted(values, key=lambda one: one[:2]):  # by batch and metric
            total = combined[name]
            if isinstance(total, str):
                continue
            try:
                if isinstance(parts, str):
                    combined[name] = parts
                elif leads:
                    total.add(parts, samples)
            except NoResult as error:
                combined[name] = _reason(error)
    return combined


def _measure_batches(
    metrics: Sequence[CustomMetric],
    inputs_at: Callable[[np.ndarray], Inputs],
    index: np.ndarray,
    plan: Plan,
    batches: np.ndarray,
    combined: ReducedMetrics,
) -> Iterator[tuple[int, str, int, Parts | str]]:
    """Yields number, metric, examples and value of each batch; the reason in place of a value if it failed."""
    for batch in batches.tolist():
        rows = plan.batch(batch)
        places = np.searchsorted(index, rows)
        is_there = places < len(index)  # failed examples are not
        is_there[is_there] = index[places[is_there]] == rows[is_there]
        part = inputs_at(places[is_there])
        for metric in metrics if len(part) else ():
            if isinstance(combined[metric.name], str):
                continue
            try:
                yield batch, metric.name, len(part), parts_of(metric.measure(part))
            except Exception as error:  # user code may raise anything, and all ranks have to know
                yield batch, metric.name, len(part), _reason(error)


@dataclass
class CustomResults:
    """The results of custom metrics.

    Attributes:
        values: metric by name; None if it is not a finite number.
        undefined: the reason for each metric that is None.
    """

    values: dict[str, float | None] = field(default_factory=dict)
    undefined: dict[str, str] = field(default_factory=dict)


def custom_results(metrics: Sequence[CustomMetric], inputs: Inputs, combined: ReducedMetrics) -> CustomResults:
    """Computes all custom metrics.

    A metric that fails here, although it worked on synthetic examples, is undefined; the others are not affected.

    Args:
        metrics: the custom metrics.
        inputs: all examples, in dataset order; only used by metrics without a reduction.
        combined: the result of `reduce_batches`.

    Returns:
        Their values, and the reasons of undefined ones.
    """
    results = CustomResults()
    for metric in metrics:
        figures = _values(metric, inputs, combined)
        if isinstance(figures, str):
            results.values[metric.name], results.undefined[metric.name] = None, figures
            continue
        for name, figure in figures.items():
            results.values[name] = figure if np.isfinite(figure) else None
            if results.values[name] is None:
                results.undefined[name] = f"the metric gave {figure}"
    return results


def _values(metric: CustomMetric, inputs: Inputs, combined: ReducedMetrics) -> dict[str, float] | str:
    """Returns the results of a metric by name, or the reason why there are none."""
    try:
        if metric.reduction is None:
            return numbers_by_name(metric.name, metric.measure(inputs))
        reduced = combined[metric.name]
        return reduced if isinstance(reduced, str) else numbers_by_name(metric.name, metric.finish(reduced.value()))
    except Exception as error:  # user code may raise anything
        return _reason(error)


def _reason(error: Exception) -> str:
    return f"the metric gave {error}" if isinstance(error, NoResult) else f"the metric raised {error_sentence(error)}"
