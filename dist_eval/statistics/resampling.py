"""Bootstrap resampling: metrics as functions of how often each kind of example, or group of examples, was drawn.

Free of side effects.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from dist_eval.statistics.units import CHUNK_SIZE, SEED, Units


class Statistic(ABC):
    """One or several metrics, by name, that can be computed on resamples.

    Attributes:
        names: names of the metrics.
        units: the resampling units.
        bounds: smallest and largest possible value of the metrics.
        most_resamples: upper limit of resamples, if computing the metrics is expensive.
        no_interval: the reason why bootstrap intervals of the metrics would not be valid; None if they are.
    """

    names: tuple[str, ...]
    units: Units
    bounds: tuple[float, float] = (-np.inf, np.inf)
    most_resamples: int | None = None
    no_interval: str | None = None

    @abstractmethod
    def values(self, weights: np.ndarray) -> dict[str, np.ndarray]:
        """Computes the metrics of resamples.

        Args:
            weights: how often each kind was drawn, float64 of shape [kinds, resamples].

        Returns:
            By name, float64 of shape [resamples], NaN where a resample leaves the metric undefined.
        """

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
        """Returns the magnitude of the operands of metrics that are differences, by name; else an empty dict."""
        return {}

    def resampled(self, resamples: int, seed: int = SEED) -> dict[str, np.ndarray]:
        """Computes the metrics of resamples of the data.

        Args:
            resamples: number of resamples.
            seed: see `Units.draws`.

        Returns:
            By name, float64 of shape [resamples], NaN where a resample leaves the metric undefined.
        """
        parts: dict[str, list[np.ndarray]] = {}
        for weights in self.units.draws(resamples, seed):
            for name, values in self.values(weights).items():
                parts.setdefault(name, []).append(values)
        return {name: np.concatenate(values) for name, values in parts.items()}


class Sums(Statistic):
    """Metrics that are functions of sums over examples, such as correct predictions, losses or squared errors.

    Args:
        units: the resampling units.
        rows: the addends, float64 of shape [k, n], a list of arrays or a SciPy sparse array. As groups may differ in
            size, the denominator of a metric has to be one of the rows.
        function: sums of shape [k, any] → metrics by name, of shape [any], NaN where undefined.
        no_interval: see `Statistic`.
        of_kinds: whether the rows are addends of an example of each kind instead, of shape [k, kinds].
    """

    def __init__(
        self,
        units: Units,
        rows: Any,
        function: Callable[[np.ndarray], dict[str, np.ndarray]],
        no_interval: str | None = None,
        *,
        of_kinds: bool = False,
    ) -> None:
        from scipy import sparse

        self.units, self._function, self.no_interval = units, function, no_interval
        are_columns = of_kinds or units.are_examples
        if isinstance(rows, list) and not are_columns:
            rows = np.stack([np.bincount(units.kind_of, row, units.kinds) for row in rows]) / units.multiplicity
            are_columns = True
        # a sparse product always sums in the same order; a dense one may depend on the number of threads
        self._rows = sparse.csr_array(np.stack(rows) if isinstance(rows, list) else rows)
        if not are_columns:
            examples = np.arange(len(units.kind_of))
            members = sparse.csr_array((np.ones(len(examples)), (examples, units.kind_of)))
            self._rows = self._rows @ members
            self._rows.data /= units.multiplicity[self._rows.indices]
        self.names = tuple(self.values(units.whole()))

    @property
    def work(self) -> int:
        """See `Statistic.work`."""
        return self.units.work + self._rows.shape[0] + self._rows.nnz // 2

    def values(self, weights: np.ndarray) -> dict[str, np.ndarray]:
        """See `Statistic.values`."""
        return self._function(self._rows @ weights)

    def influence(self) -> dict[str, np.ndarray]:
        """See `Statistic.influence`."""
        whole, columns = self._rows @ self.units.whole(), self._rows.tocsc()
        step = max(1, CHUNK_SIZE // len(whole))
        left: dict[str, list[np.ndarray]] = {}
        for start in range(0, self.units.kinds, step):
            values_without = self._function(whole - columns[:, start : start + step].toarray())
            for name, values in values_without.items():
                left.setdefault(name, []).append(values)
        return {name: influence_of(np.concatenate(values), self.units) for name, values in left.items()}


def influence_of(left_out: np.ndarray, units: Units) -> np.ndarray:
    """Converts leave-one-out values of a metric into influence values, as `Statistic.influence` returns them.

    Args:
        left_out: the metric without one unit of each kind, float64 of shape [kinds].
        units: the resampling units.
    """
    return (units.count - 1) * (np.average(left_out, weights=units.multiplicity) - left_out)


class OfRows(Statistic):
    """Arbitrary metrics: functions of the positions of the examples that were drawn.

    Each resample costs one call, so the number of resamples decreases with the number of examples, and there is no
    jackknife, which would take a call for each example.

    Args:
        units: the resampling units.
        functions: by name: positions, int64 of any length, sorted, with repeats → the metric, `None` if undefined.
    """

    def __init__(self, units: Units, functions: Mapping[str, Callable[[np.ndarray], float | None]]) -> None:
        self.names, self.units, self._functions = tuple(functions), units, functions
        self.most_resamples = most_resamples_of_calls(units)

    def values(self, weights: np.ndarray) -> dict[str, np.ndarray]:
        """See `Statistic.values`.

        Raises:
            ValueError: a kind has several units, which a function of positions could not distinguish.
        """
        if not self.units.grouped and self.units.kinds < self.units.count:
            raise ValueError("a function of positions needs units that are single examples or groups of them")
        times = weights.astype(np.int64)
        found = {name: np.empty(weights.shape[1]) for name in self._functions}
        for number in range(weights.shape[1]):
            positions = np.repeat(np.arange(len(self.units.kind_of)), times[self.units.kind_of, number])
            for name, function in self._functions.items():
                value = function(positions)
                found[name][number] = np.nan if value is None else value
        return found


def most_resamples_of_calls(units: Units) -> int:
    """Returns an upper limit of resamples for metrics that look at all examples of each one."""
    return min(999, max(199, 20_000_000 // max(1, len(units.kind_of))))


class Difference(Statistic):
    """The metrics of a second model minus those of a first one, on the same examples.

    Args:
        first: the first model's metrics.
        second: the second model's, over the same units.
    """

    def __init__(self, first: Statistic, second: Statistic) -> None:
        self.names = tuple(name for name in first.names if name in second.names)
        self.units, self._first, self._second = first.units, first, second
        self.most_resamples, self.no_interval = first.most_resamples, first.no_interval
        self.bounds = first.bounds[0] - first.bounds[1], first.bounds[1] - first.bounds[0]

    @property
    def work(self) -> int:
        """See `Statistic.work`."""
        return self._first.work + self._second.work - self.units.work

    def values(self, weights: np.ndarray) -> dict[str, np.ndarray]:
        """See `Statistic.values`."""
        return _minus(self._second.values(weights), self._first.values(weights))

    def influence(self) -> dict[str, np.ndarray]:
        """See `Statistic.influence`."""
        return _minus(self._second.influence(), self._first.influence())

    def scales(self) -> dict[str, float]:
        """See `Statistic.scales`."""
        first, second = (one.values(self.units.whole()) for one in (self._first, self._second))
        return {name: float(max(abs(first[name][0]), abs(second[name][0]))) for name in first if name in second}


def _minus(second: dict[str, np.ndarray], first: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: second[name] - first[name] for name in second if name in first}
