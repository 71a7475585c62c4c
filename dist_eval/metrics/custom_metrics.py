"""Custom metrics (`--metric`): their kinds, inputs and results.

A custom metric is one of these:

- A function of (predictions, labels, probabilities) that returns a float, or a dict of floats. It is called with all
  examples in dataset order, and with resamples of them for its interval, so it must have no side effects.
- A `torchmetrics` metric, as an object, or a class that needs no arguments.
- A metric of Hugging Face's `evaluate`, as an object, or in a file or folder on this host. Its code is run; nothing is
  downloaded.

Arrays are NumPy arrays. Single-label: predictions and labels int64 of shape [n], probabilities float64 of shape
[n, classes]. Multi-label: 0 and 1, int64 of shape [n, labels], and probabilities of that shape. Regression: float64 of
shape [n], or [n, outputs] if there are several outputs, and None. `metric_loading` loads and checks metrics.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dist_eval.errors import error_summary
from dist_eval.metrics.predictions import Predictions
from dist_eval.petals.base_model.problem_types import REGRESSION
from dist_eval.record import MetricValues, Reasons


@dataclass(frozen=True)
class MetricInputs:
    """The inputs of metrics; the module's docstring specifies shapes and dtypes."""

    predictions: np.ndarray  # predicted classes, labels or values
    labels: np.ndarray  # true classes, labels or values
    probabilities: np.ndarray | None  # of each class or label; None in a regression

    @classmethod
    def of(cls, predictions: Predictions) -> MetricInputs:
        """Converts predictions to the arrays that metrics expect."""
        given, labels = (
            column.astype(np.int64) if column.dtype == np.bool_ else column
            for column in (predictions.prediction, predictions.label)
        )
        if predictions.problem is not REGRESSION:
            return cls(given, labels, predictions.probabilities)
        return cls(given[:, 0], labels[:, 0], None) if given.shape[1] == 1 else cls(given, labels, None)

    def __post_init__(self) -> None:
        """Makes the arrays read-only, so that a metric cannot change the results of the run."""
        for name in ("predictions", "labels", "probabilities"):
            array = getattr(self, name)
            if array is not None:
                read_only = array.view()
                read_only.flags.writeable = False
                object.__setattr__(self, name, read_only)

    def __len__(self) -> int:
        return len(self.labels)

    def rows(self, which: np.ndarray | slice) -> MetricInputs:
        """Returns some of the examples."""
        probabilities = None if self.probabilities is None else self.probabilities[which]
        return MetricInputs(self.predictions[which], self.labels[which], probabilities)

    def arguments(self) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """Returns the arguments of a metric."""
        return self.predictions, self.labels, self.probabilities


@dataclass(frozen=True)
class CustomMetric:
    """A custom metric."""

    name: str  # name of its results
    spec: str  # the value of the option that names it
    measure: Callable[[MetricInputs], Any]  # computes the metric


@dataclass
class CustomResults:
    """The results of custom metrics."""

    values: MetricValues = field(default_factory=dict)  # metric by name; None if it is not a finite number
    undefined: Reasons = field(default_factory=dict)  # the reason for each metric that is None


def custom_results(metrics: Sequence[CustomMetric], inputs: MetricInputs) -> CustomResults:
    """Computes custom metrics of all examples, in dataset order.

    A metric that fails here, although it worked on synthetic examples, is undefined. The others are unaffected.
    """
    results = CustomResults()
    for metric in metrics:
        try:
            values = numbers_by_name(metric.name, metric.measure(inputs))
        except Exception as error:  # user code may raise anything
            what = f"gave {error}" if isinstance(error, NoResult) else f"raised {error_sentence(error)}"
            values = {}
            results.values[metric.name], results.undefined[metric.name] = None, f"the metric {what}"
        for name, value in values.items():
            results.values[name] = value if np.isfinite(value) else None
            if results.values[name] is None:
                results.undefined[name] = f"the metric gave {value}"
    return results


class NoResult(Exception):
    """A metric returned an invalid result; the message describes it."""


def numbers_by_name(name: str, value: Any) -> dict[str, float]:
    """Converts the return value of a metric into numbers by name."""
    if not isinstance(value, Mapping):
        return {name: number_of(value)}
    if not value:
        raise NoResult("an empty dict")
    if list(value) == [name]:
        return {name: number_of(value[name])}
    return {f"{name}/{key}": number_of(one, f" under {key!r}") for key, one in value.items()}


def number_of(value: Any, where: str = "") -> float:
    """Converts a metric's return value of any numeric type to a float; `where` locates it in messages."""
    shape = getattr(value, "shape", ())
    if isinstance(value, str | bytes | bool) or value is None or int(np.prod(shape)) != 1:
        raise NoResult(f"{described(value)}{where}")
    try:
        return float(value.item() if hasattr(value, "item") else value)
    except (TypeError, ValueError):
        raise NoResult(f"{described(value)}{where}") from None


def described(value: Any) -> str:
    """Describes the type of a value, for messages."""
    if value is None:
        return "None"
    shape = getattr(value, "shape", None)
    return f"{type(value).__name__}" + (f" of shape {list(shape)}" if shape is not None else f" ({value!r:.60})")


def error_sentence(error: BaseException) -> str:
    """Returns the type and message of an error as a sentence."""
    text = error_summary(error)
    return text if text.endswith((".", "!", "?")) else text + "."
