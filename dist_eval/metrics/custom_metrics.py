"""Metrics of the caller's own (`--metric`): what they are given, and how their results come about.

A metric is one of these:

- A function of (predictions, labels, probabilities) that returns a float, or a dict of floats. It is called with all
  examples in dataset order, and with resamples of them for its interval, so it should do nothing but compute.
- A class with an attribute `reduction` ("sum", "mean", "cat", "max" or "min") and a method `update(predictions, labels,
  probabilities)`, which returns the value of these examples: a number, an array, or a dict of them. It is called for
  each batch, on the rank that has it, and the values are combined by the reduction, means weighted by samples. A method
  `compute(value)` makes the result of the combined value; without it, that is the result.
- A `torchmetrics` metric, as an object, or a class that needs no arguments.
- A metric of Hugging Face's `evaluate` in a file or folder on this host. Its code is run; none is ever downloaded.

Arrays are numpy's. With one class each: predictions and labels int64 of shape [n], probabilities float64 [n, classes];
with several labels each: 0 and 1, int64 of shape [n, labels], and probabilities of that shape; in a regression: float64
of shape [n], or [n, outputs] where there are several, and None. Values of batches are combined in the order of the
plan, so that no result depends on the number of ranks, to the last bit. `metric_loading` finds metrics and tries them.
Pure: the ranks come in as a function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dist_eval.data.plan import Plan
from dist_eval.data.problems import REGRESSION
from dist_eval.metrics.predictions import PredictionsLike

REDUCTIONS = ("sum", "mean", "cat", "max", "min")
_BATCHES_IN_A_ROUND = 1 << 12
"""Batches whose values travel at a time, which bounds what a rank has to hold of the others'."""

Gather = Callable[[Any], list[Any]]
"""Brings an object of every rank to every rank."""

Parts = dict[str, np.ndarray]
"""The value of a batch: arrays by name, the name being empty for a value that is no dict."""


@dataclass(frozen=True)
class Inputs:
    """What metrics are computed from; the module's text has the shapes.

    Attributes:
        predictions: what was predicted.
        labels: what is true.
        probabilities: of each class or label; None in a regression.
    """

    predictions: np.ndarray
    labels: np.ndarray
    probabilities: np.ndarray | None

    @classmethod
    def of(cls, predictions: PredictionsLike) -> Inputs:
        """Takes predictions as metrics expect them."""
        given, labels = (
            column.astype(np.int64) if column.dtype == np.bool_ else column
            for column in (predictions.prediction, predictions.label)
        )
        if predictions.problem is not REGRESSION:
            return cls(given, labels, predictions.probabilities)
        return cls(given[:, 0], labels[:, 0], None) if given.shape[1] == 1 else cls(given, labels, None)

    def __post_init__(self) -> None:
        """Makes the arrays read-only: a metric that changed them would change the results of the run."""
        for name in ("predictions", "labels", "probabilities"):
            array = getattr(self, name)
            if array is not None:
                read_only = array.view()
                read_only.flags.writeable = False
                object.__setattr__(self, name, read_only)

    def __len__(self) -> int:
        return len(self.labels)

    def rows(self, which: np.ndarray | slice) -> Inputs:
        """Returns some of the examples."""
        probabilities = None if self.probabilities is None else self.probabilities[which]
        return Inputs(self.predictions[which], self.labels[which], probabilities)

    def arguments(self) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """Returns what a metric is called with."""
        return self.predictions, self.labels, self.probabilities


@dataclass(frozen=True)
class CustomMetric:
    """A metric of the caller's own.

    Attributes:
        name: under which its results stand.
        spec: the option's value that names it.
        measure: computes it, or with a reduction a batch's part of it.
        reduction: how the batches' parts are combined; None if it is computed from all examples at once.
        finish: makes the result of the combined parts.
    """

    name: str
    spec: str
    measure: Callable[[Inputs], Any]
    reduction: str | None = None
    finish: Callable[[Any], Any] = lambda value: value


@dataclass
class CustomResults:
    """What custom metrics gave.

    Attributes:
        values: figure by name; None if it is no finite number.
        undefined: for each figure that is None, why.
    """

    values: dict[str, float | None] = field(default_factory=dict)
    undefined: dict[str, str] = field(default_factory=dict)


class NoResult(Exception):
    """A metric returned something that is no result; the text says what."""


def figures_of(name: str, value: Any) -> dict[str, float]:
    """Reads what a metric returned.

    Args:
        name: the metric's.
        value: a number, or a dict of numbers; numbers may be of numpy or torch.

    Returns:
        A number by name; those of a dict stand under `NAME/KEY`, unless its only key is the name itself.

    Raises:
        NoResult: it is something else.
    """
    if not isinstance(value, Mapping):
        return {name: _number(value)}
    if not value:
        raise NoResult("an empty dict")
    if list(value) == [name]:
        return {name: _number(value[name])}
    return {f"{name}/{key}": _number(one, f" under {key!r}") for key, one in value.items()}


def _number(value: Any, where: str = "") -> float:
    shape = getattr(value, "shape", ())
    if isinstance(value, str | bytes | bool) or value is None or int(np.prod(shape)) != 1:
        raise NoResult(f"{described(value)}{where}")
    try:
        return float(value.item() if hasattr(value, "item") else value)
    except (TypeError, ValueError):
        raise NoResult(f"{described(value)}{where}") from None


def described(value: Any) -> str:
    """Returns what a value is, in words for a person."""
    if value is None:
        return "None"
    shape = getattr(value, "shape", None)
    return f"{type(value).__name__}" + (f" of shape {list(shape)}" if shape is not None else f" ({value!r:.60})")


def told(error: BaseException) -> str:
    """Returns type and first line of an error, as a sentence."""
    text = f"{type(error).__name__}: {str(error).strip().splitlines()[0][:300] if str(error).strip() else ''}".rstrip(
        ": "
    )
    return text if text.endswith((".", "!", "?")) else text + "."


def parts_of(value: Any) -> Parts:
    """Reads the value of a batch.

    Raises:
        NoResult: it is neither a number, an array, nor a dict of them.
    """
    named = value if isinstance(value, Mapping) else {"": value}
    parts = {str(name): np.asarray(one) for name, one in named.items()}
    for name, array in parts.items():
        if array.dtype.kind not in "biuf":
            raise NoResult(described(named[name]) + (f" under {name!r}" if name else ""))
    return {name: array.astype(np.float64 if array.dtype.kind == "f" else np.int64) for name, array in parts.items()}


class Reduced:
    """Combines the values of batches, which have to come in the order of the plan.

    Args:
        reduction: one of `REDUCTIONS`.
    """

    def __init__(self, reduction: str) -> None:
        self._reduction, self._samples = reduction, 0
        self._parts: Parts = {}
        self._pieces: list[Parts] = []

    def add(self, parts: Parts, samples: int) -> None:
        """Takes the value of a batch.

        Args:
            parts: it.
            samples: examples in the batch.

        Raises:
            NoResult: it does not go with the values of other batches.
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
        """Returns the combined value, of the form that the batches' values have.

        Raises:
            NoResult: no batch has come.
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


Combined = Mapping[str, Reduced | str]
"""For each metric with a reduction what came of it: the combined values, or why there are none."""


def reduce_batches(
    metrics: Sequence[CustomMetric],
    inputs_at: Callable[[np.ndarray], Inputs],
    index: np.ndarray,
    plan: Plan,
    batches: np.ndarray,
    gather: Gather = lambda value: [value],
    *,
    leads: bool = True,
) -> Combined:
    """Computes the metrics that have a reduction, batch by batch; every rank calls it with its share.

    Args:
        metrics: all metrics.
        inputs_at: returns some of this rank's examples, by their places among them.
        index: their positions in the dataset, ascending, int64 of shape [n].
        plan: all batches.
        batches: the numbers of this rank's.
        gather: brings an object of every rank to every rank; by default there is one.
        leads: whether this rank needs the result.

    Returns:
        By name of the metric what all ranks' batches give together, on the rank that leads.
    """
    reduced = [metric for metric in metrics if metric.reduction]
    combined: dict[str, Reduced | str] = {metric.name: Reduced(str(metric.reduction)) for metric in reduced}
    own = np.sort(batches)
    for start in range(0, len(plan) if reduced else 0, _BATCHES_IN_A_ROUND):
        now = own[np.searchsorted(own, start) : np.searchsorted(own, start + _BATCHES_IN_A_ROUND)]
        found = list(_measured(reduced, inputs_at, index, plan, now, combined))
        for _, name, samples, parts in sorted((one for ranks in gather(found) for one in ranks), key=_in_order):
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


def _in_order(found: tuple[int, str, int, Parts | str]) -> tuple[int, str]:
    return found[0], found[1]


def _measured(
    metrics: Sequence[CustomMetric],
    inputs_at: Callable[[np.ndarray], Inputs],
    index: np.ndarray,
    plan: Plan,
    batches: np.ndarray,
    combined: Combined,
) -> Iterator[tuple[int, str, int, Parts | str]]:
    """Yields number, metric, examples and value of each batch; in place of a value, what went wrong."""
    for batch in batches.tolist():
        rows = plan.batch(batch)
        places = np.searchsorted(index, rows)
        is_there = places < len(index)  # those that failed are not
        is_there[is_there] = index[places[is_there]] == rows[is_there]
        part = inputs_at(places[is_there])
        for metric in metrics if len(part) else ():
            if isinstance(combined[metric.name], str):
                continue
            try:
                yield batch, metric.name, len(part), parts_of(metric.measure(part))
            except Exception as error:  # its own code runs: all ranks have to learn of it
                yield batch, metric.name, len(part), _reason(error)


def custom_results(metrics: Sequence[CustomMetric], inputs: Inputs, combined: Combined) -> CustomResults:
    """Computes all metrics.

    A metric that fails now, after it has worked on made-up examples, is undefined: all else stands.

    Args:
        metrics: the metrics.
        inputs: all examples, in dataset order; needed for metrics without a reduction only.
        combined: what `reduce_batches` gave.

    Returns:
        Their figures.
    """
    results = CustomResults()
    for metric in metrics:
        try:
            if metric.reduction is None:
                value = metric.measure(inputs)
            else:
                reduced = combined[metric.name]
                if isinstance(reduced, str):
                    results.values[metric.name], results.undefined[metric.name] = None, reduced
                    continue
                value = metric.finish(reduced.value())
            figures = figures_of(metric.name, value)
        except Exception as error:  # its own code runs
            results.values[metric.name], results.undefined[metric.name] = None, _reason(error)
            continue
        for name, figure in figures.items():
            results.values[name] = figure if np.isfinite(figure) else None
            if results.values[name] is None:
                results.undefined[name] = f"the metric gave {figure}"
    return results


def _reason(error: Exception) -> str:
    return f"the metric gave {error}" if isinstance(error, NoResult) else f"the metric raised {told(error)}"
