"""Metrics as functions of weights: the number of times that each kind of example or group counts.

The observed weights give the metrics of the data; the weights of a resample give those of the resample.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from dist_eval.metrics.units import CHUNK_SIZE, SEED, Units


class Statistic(ABC):
    """One or several metrics, by name, that can be computed on resamples.

    Attributes:
        names: names of the metrics.
        most_resamples: maximum number of resamples, if computing the metrics is expensive.
        has_usual_range: whether a metric named like one of the catalogue has its range; a user's may be of any kind.
        no_interval: the reason why bootstrap intervals of the metrics are invalid; None if they are valid.

    Args:
        units: the resampling units, or a function that returns them when needed.
    """

    names: tuple[str, ...]
    most_resamples: int | None = None
    has_usual_range = True
    no_interval: str | None = None

    def __init__(self, units: Units | Callable[[], Units]) -> None:
        self._units = units

    @functools.cached_property
    def units(self) -> Units:
        """The resampling units."""
        return self._units if isinstance(self._units, Units) else self._units()

    @abstractmethod
    def values(self, weights: np.ndarray) -> dict[str, np.ndarray]:
        """Computes the metrics of resamples.

        Args:
            weights: number of draws of each kind, float64 of shape [kinds, resamples].

        Returns:
            By name, float64 of shape [resamples], NaN where the metric is undefined.
        """

    def observed(self) -> dict[str, float]:
        """Computes the metrics of the data, NaN where undefined."""
        return {name: float(values[0]) for name, values in self.values(self.units.observed_weights()).items()}

    def influence(self) -> dict[str, np.ndarray]:
        """Computes jackknife influence values, leaving out one unit: (n - 1) (mean of all θ₋ᵢ - θ₋ᵢ), for n units.

        See B. Efron (1982), "The Jackknife, the Bootstrap and Other Resampling Plans".

        Returns:
            By name, float64 of shape [kinds]; empty, as here, if that would take too long.
        """
        return {}

    @property
    def work(self) -> int:
        """Cost of one resample, in numbers processed."""
        return self.units.work

    def scales(self) -> dict[str, float]:
        """Returns the magnitude of the operands of differences, by name; empty for other metrics."""
        return {}

    def resampled(self, resamples: int, seed: int = SEED) -> dict[str, np.ndarray]:
        """Computes the metrics of resamples of the data (see `values`), drawn with a seed (see `Units.draws`)."""
        parts: dict[str, list[np.ndarray]] = {}
        for weights in self.units.draws(resamples, seed):
            for name, values in self.values(weights).items():
                parts.setdefault(name, []).append(values)
        return {name: np.concatenate(values) for name, values in parts.items()}


class Sums(Statistic):
    """Metrics that are functions of sums over examples, such as correct predictions, losses or squared errors.

    Args:
        units: see `Statistic`.
        rows: the addends, of shape [k, n]: an array, a SciPy sparse array, or a list of arrays of shape [n] or [any,
            n]. Because groups may differ in size, the denominator of a metric must be one of the rows.
        function: sums of shape [k, any] → metrics by name, of shape [any], NaN where undefined.
        of_kinds: whether the rows are addends of one example per kind instead, of shape [k, kinds].
    """

    def __init__(
        self,
        units: Units | Callable[[], Units],
        rows: Any,
        function: Callable[[np.ndarray], dict[str, np.ndarray]],
        *,
        of_kinds: bool = False,
    ) -> None:
        super().__init__(units)
        self._rows, self._of_kinds, self._function = rows, of_kinds, function
        self.names = tuple(self.observed())

    @functools.cached_property
    def _addends(self) -> Any:
        """The addends of a unit of each kind: sparse, float64 of shape [k, kinds].

        A sparse product always sums in the same order; a dense one may depend on the number of threads.
        """
        from scipy import sparse

        units, rows = self.units, self._rows
        are_kinds = self._of_kinds or units.are_examples
        if isinstance(rows, list):
            if not are_kinds and all(row.ndim == 1 for row in rows):
                rows = [np.bincount(units.kind_of, row, units.kinds) / units.multiplicity for row in rows]
                are_kinds = True
            rows = sparse.vstack([sparse.csr_array(np.atleast_2d(row).astype(np.float64)) for row in rows])
        addends = sparse.csr_array(rows)
        if not are_kinds:
            examples = np.arange(len(units.kind_of))
            addends = addends @ sparse.csr_array((np.ones(len(examples)), (examples, units.kind_of)))
            addends.data /= units.multiplicity[addends.indices]
        return addends

    @property
    def work(self) -> int:
        """See `Statistic.work`."""
        return self.units.work + self._addends.shape[0] + self._addends.nnz // 2

    def values(self, weights: np.ndarray) -> dict[str, np.ndarray]:
        """See `Statistic.values`."""
        return self._function(self._addends @ weights)

    def observed(self) -> dict[str, float]:
        """See `Statistic.observed`; adds up the rows, without units."""
        if self._of_kinds:
            return super().observed()
        rows = self._rows if isinstance(self._rows, list) else [self._rows]
        sums = np.concatenate([np.asarray(row.sum(axis=-1), dtype=np.float64).reshape(-1) for row in rows])
        return {name: float(values[0]) for name, values in self._function(sums[:, np.newaxis]).items()}

    def influence(self) -> dict[str, np.ndarray]:
        """See `Statistic.influence`."""
        whole, columns = self._addends @ self.units.observed_weights(), self._addends.tocsc()
        step = max(1, CHUNK_SIZE // len(whole))
        left: dict[str, list[np.ndarray]] = {}
        for start in range(0, self.units.kinds, step):
            values_without = self._function(whole - columns[:, start : start + step].toarray())
            for name, values in values_without.items():
                left.setdefault(name, []).append(values)
        return {name: influence_of(np.concatenate(values), self.units) for name, values in left.items()}


def influence_of(left_out: np.ndarray, units: Units) -> np.ndarray:
    """Converts values of a metric without one unit of each kind into influence values (see `Statistic.influence`)."""
    return (units.count - 1) * (np.average(left_out, weights=units.multiplicity) - left_out)


class OfRows(Statistic):
    """Arbitrary metrics: functions of the positions of the examples that were drawn.

    Each resample costs one call, so the number of resamples decreases with the number of examples. There is no
    jackknife, which would need a call per example.

    Args:
        units: see `Statistic`.
        functions: by name: positions, int64 of any length, sorted, with repeats → the metric, `None` if undefined.
    """

    has_usual_range = False

    def __init__(
        self, units: Units | Callable[[], Units], functions: Mapping[str, Callable[[np.ndarray], float | None]]
    ) -> None:
        super().__init__(units)
        self.names, self._functions = tuple(functions), functions
        self.most_resamples = most_resamples_of_calls(len(self.units.kind_of))

    def values(self, weights: np.ndarray) -> dict[str, np.ndarray]:
        """See `Statistic.values`.

        Raises:
            ValueError: a kind has several units, which a function of positions could not distinguish.
        """
        if not self.units.grouped and self.units.kinds < self.units.count:
            raise ValueError("a function of positions needs units of single examples or groups of examples")
        times = weights.astype(np.int64)
        values = {name: np.empty(weights.shape[1]) for name in self._functions}
        for number in range(weights.shape[1]):
            positions = np.repeat(np.arange(len(self.units.kind_of)), times[self.units.kind_of, number])
            for name, function in self._functions.items():
                value = function(positions)
                values[name][number] = np.nan if value is None else value
        return values


def most_resamples_of_calls(examples: int) -> int:
    """Returns the maximum number of resamples for metrics that process all examples of each resample."""
    return min(999, max(199, 20_000_000 // max(1, examples)))


class Difference(Statistic):
    """The metrics of a second model minus those of a first one, on the same examples.

    Args:
        first: the first model's metrics.
        second: the second model's, over the same units.
    """

    def __init__(self, first: Statistic, second: Statistic) -> None:
        super().__init__(lambda: first.units)
        self.names = tuple(name for name in first.names if name in second.names)
        self._first, self._second = first, second
        self.most_resamples, self.no_interval = first.most_resamples, first.no_interval
        self.has_usual_range = first.has_usual_range

    @property
    def work(self) -> int:
        """See `Statistic.work`."""
        return self._first.work + self._second.work - self.units.work

    def values(self, weights: np.ndarray) -> dict[str, np.ndarray]:
        """See `Statistic.values`."""
        return _minus(self._second.values(weights), self._first.values(weights))

    def observed(self) -> dict[str, float]:
        """See `Statistic.observed`."""
        return _minus(self._second.observed(), self._first.observed())

    def influence(self) -> dict[str, np.ndarray]:
        """See `Statistic.influence`."""
        return _minus(self._second.influence(), self._first.influence())

    def scales(self) -> dict[str, float]:
        """See `Statistic.scales`."""
        first, second = self._first.observed(), self._second.observed()
        return {name: max(abs(first[name]), abs(second[name])) for name in self.names}


def _minus(second: dict[str, Any], first: dict[str, Any]) -> dict[str, Any]:
    return {name: second[name] - first[name] for name in second if name in first}
