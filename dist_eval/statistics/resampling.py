"""Resampling: metrics as functions of how often each example, or group of examples, was drawn.

To draw n examples with replacement is to draw from a multinomial distribution how often each *kind* of example occurs.
Metrics that depend on a confusion matrix know few kinds, its cells: a resample of a million examples is then a hundred
numbers, with exactly the distribution that drawing examples one by one has. Where each example is a kind of its own
(losses, scores), positions are drawn and counted.

Pure: knows neither files nor ranks. What is drawn depends on a fixed seed and the data alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

SEED = 0
"""Seed of all resampling."""

FEW_UNITS = 20
"""Examples or groups below which the bootstrap knows too little of a distribution's tails.

Measured: 95% intervals of a mean loss contain the truth in 81% of the cases with 10 examples, in 88% with 20, in 95%
with 40; those of an accuracy in 90% with 10 groups, in 92% with 20, in 94% with 50 (`benchmarks/clusters.py`)."""

_NUMBERS_IN_A_PIECE, _FEWEST_IN_A_PIECE = 1 << 17, 8
"""A piece fits into a processor's cache, but a few resamples are done together even where it then does not."""

_POSITIONS_FOR_A_KIND = 20
"""Positions that are drawn and counted in the time that a multinomial draw takes for one kind."""

_SIMILAR_KINDS, _MOST_VARIANCE_LOST = 500, 1e-4


@dataclass(frozen=True)
class Units:
    """What is drawn: examples, alike ones being of one kind, or groups of them.

    Attributes:
        kind_of: the kind that each example belongs to, int64 of shape [n].
        multiplicity: how many units are of each kind, int64 of shape [kinds].
        grouped: whether a unit is a group of examples, which are drawn together.
    """

    kind_of: np.ndarray
    multiplicity: np.ndarray
    grouped: bool = False

    @classmethod
    def single(cls, examples: int) -> Units:
        """Each example by itself."""
        return cls(np.arange(examples), np.ones(examples, dtype=np.int64))

    @classmethod
    def alike(cls, *columns: np.ndarray) -> Units:
        """Examples, those with equal values in all columns being of one kind.

        Args:
            columns: small integers of at least 0, int64 of shape [n] each.
        """
        code = np.zeros(len(columns[0]), dtype=np.int64)
        for column in columns:
            code = code * (int(column.max(initial=0)) + 1) + column
        _, kind_of, multiplicity = np.unique(code, return_inverse=True, return_counts=True)
        return cls(kind_of.reshape(-1), multiplicity)

    @classmethod
    def similar(cls, values: np.ndarray, *columns: np.ndarray) -> Units:
        """Many examples, those with nearly equal values being of one kind, so that the kind's mean speaks for it.

        The kinds' widths are those of the best quantizer: P. F. Panter and W. Dite (1951), "Quantization distortion in
        pulse-count modulation with nonuniform spacing of levels", Proceedings of the IRE 39, 44-48. What resamples lose
        is the variance within kinds. Where that is more than a ten-thousandth of all, which would make intervals
        narrower by half of that, or where few examples leave no time to save, each example is drawn by itself.

        Args:
            values: what makes examples similar, float64 of shape [n].
            columns: what will be summed up, float64 of shape [n] each; nearly equal where the values are.
        """
        examples = len(values)
        if examples <= _POSITIONS_FOR_A_KIND * _SIMILAR_KINDS:
            return cls.single(examples)
        order = np.argsort(values, kind="stable")
        widths = np.cumsum(np.diff(values[order], prepend=values[order[0]]) ** (2 / 3))
        place = np.empty(examples)
        place[order] = widths / (widths[-1] or 1.0)
        units = cls.alike(np.minimum((place * _SIMILAR_KINDS).astype(np.int64), _SIMILAR_KINDS - 1))
        return units.or_single(*columns)

    def or_single(self, *columns: np.ndarray) -> Units:
        """Returns these kinds if their means can speak for their examples, else each example by itself.

        They cannot where more than a ten-thousandth of a column's variance is within kinds, and need not where that
        would save no time.

        Args:
            columns: what will be summed up, float64 of shape [n] each.
        """
        examples = len(self.kind_of)
        if examples <= _POSITIONS_FOR_A_KIND * self.kinds:
            return Units.single(examples)
        for column in columns:
            means = np.bincount(self.kind_of, column) / self.multiplicity
            lost = ((column - means[self.kind_of]) ** 2).sum()
            if not lost <= _MOST_VARIANCE_LOST * ((column - column.mean()) ** 2).sum():
                return Units.single(examples)
        return self

    @classmethod
    def groups(cls, names: np.ndarray) -> Units:
        """Groups of examples, such as the sentences of one document.

        Args:
            names: the group that each example belongs to, of shape [n] and any dtype that can be sorted.
        """
        _, kind_of = np.unique(names, return_inverse=True)
        return cls(kind_of.reshape(-1), np.ones(int(kind_of.max(initial=-1)) + 1, dtype=np.int64), grouped=True)

    @property
    def count(self) -> int:
        """Number of units: how many are drawn."""
        return int(self.multiplicity.sum())

    @property
    def kinds(self) -> int:
        """Number of kinds."""
        return len(self.multiplicity)

    @property
    def are_examples(self) -> bool:
        """Whether the kinds are the examples themselves, in their order."""
        return self.kinds == len(self.kind_of) and bool((np.diff(self.kind_of, prepend=-1) == 1).all())

    @property
    def work(self) -> int:
        """What one resample costs, in positions drawn."""
        return min(self.count, _POSITIONS_FOR_A_KIND * self.kinds)

    def draws(self, resamples: int, seed: int = SEED) -> Iterator[np.ndarray]:
        """Draws as many units as there are, with replacement, again and again.

        Args:
            resamples: how often.
            seed: the same seed gives the same draws.

        Yields:
            How often each kind was drawn, float64 of shape [kinds, some of the resamples], in bounded memory.
        """
        generator = np.random.default_rng(seed)
        step = max(_FEWEST_IN_A_PIECE, _NUMBERS_IN_A_PIECE // self.kinds)
        by_kind = _POSITIONS_FOR_A_KIND * self.kinds < self.count
        kind_of_unit = None if self.count == self.kinds else np.repeat(np.arange(self.kinds), self.multiplicity)
        for start in range(0, resamples, step):
            size = min(step, resamples - start)
            if by_kind:
                counts = generator.multinomial(self.count, self.multiplicity / self.count, size=size)
            else:
                drawn = generator.integers(self.count, size=(size, self.count))
                if kind_of_unit is not None:
                    drawn = kind_of_unit[drawn]
                drawn += np.arange(0, size * self.kinds, self.kinds)[:, np.newaxis]
                counts = np.bincount(drawn.ravel(), minlength=size * self.kinds).reshape(size, self.kinds)
            yield counts.T.astype(np.float64, order="C")

    def whole(self) -> np.ndarray:
        """Returns the data themselves as a resample: each unit once, float64 of shape [kinds, 1]."""
        return self.multiplicity[:, np.newaxis].astype(np.float64)


class Statistic(ABC):
    """One or several metrics, by name, of which resamples can be computed.

    Attributes:
        units: what is drawn.
        bounds: the least and the largest value that the metrics can have.
        most_resamples: no interval needs, or can afford, more.
        no_interval: why resamples cannot tell how far the metrics are from the truth; None if they can.
    """

    units: Units
    bounds: tuple[float, float] = (-np.inf, np.inf)
    most_resamples: int | None = None
    no_interval: str | None = None

    @property
    @abstractmethod
    def names(self) -> tuple[str, ...]:
        """Names of the metrics."""

    @abstractmethod
    def values(self, weights: np.ndarray) -> dict[str, np.ndarray]:
        """Computes the metrics of resamples.

        Args:
            weights: how often each kind was drawn, float64 of shape [kinds, resamples].

        Returns:
            By name, float64 of shape [resamples], NaN where a resample leaves the metric undefined.
        """

    @abstractmethod
    def influence(self) -> dict[str, np.ndarray]:
        """Computes how much each unit matters, by leaving it out: (n - 1) (mean of all θ₋ᵢ - θ₋ᵢ), for n units.

        These are the jackknife's values (Efron 1982, "The Jackknife, the Bootstrap and Other Resampling Plans").

        Returns:
            By name, float64 of shape [kinds]; empty if that would take too long.
        """

    @property
    def work(self) -> int:
        """What one resample costs, in numbers looked at."""
        return self.units.work

    def scales(self) -> dict[str, float]:
        """Returns the size of the numbers that metrics are differences of, by name; nothing if they are none."""
        return {}

    def resampled(self, resamples: int, seed: int = SEED) -> dict[str, np.ndarray]:
        """Computes the metrics of resamples of the data.

        Args:
            resamples: their number.
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
    """Metrics that depend on sums over examples alone: of hits, of losses, of squared errors.

    Args:
        units: what is drawn.
        rows: what is summed up, float64 of shape [k, n], an array or a sparse one of SciPy. Groups may have different
            sizes: what the metric divides by has to be a row, too.
        function: sums of shape [k, any] → metrics by name, of shape [any], NaN where undefined.
        no_interval: see `Statistic`.
    """

    def __init__(
        self,
        units: Units,
        rows: Any,
        function: Callable[[np.ndarray], dict[str, np.ndarray]],
        no_interval: str | None = None,
    ) -> None:
        from scipy import sparse

        self.units, self._function, self.no_interval = units, function, no_interval
        # a sparse product adds up in one order always; a dense one may not, with other numbers of threads
        self._rows = sparse.csr_array(rows)
        if not units.are_examples:
            examples = np.arange(len(units.kind_of))
            members = sparse.csr_array((np.ones(len(examples)), (examples, units.kind_of)))
            self._rows = self._rows @ members
            self._rows.data /= units.multiplicity[self._rows.indices]

    @property
    def names(self) -> tuple[str, ...]:
        """See `Statistic.names`."""
        return tuple(self.values(self.units.whole()))

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
        step = max(1, _NUMBERS_IN_A_PIECE // len(whole))
        left: dict[str, list[np.ndarray]] = {}
        for start in range(0, self.units.kinds, step):
            values_without = self._function(whole - columns[:, start : start + step].toarray())
            for name, values in values_without.items():
                left.setdefault(name, []).append(values)
        return {name: influence_of(np.concatenate(values), self.units) for name, values in left.items()}


def influence_of(left_out: np.ndarray, units: Units) -> np.ndarray:
    """Turns a metric without each kind's unit into jackknife values, as `Statistic.influence` returns them.

    Args:
        left_out: the metric without one unit of each kind, float64 of shape [kinds].
        units: the units.
    """
    return (units.count - 1) * (np.average(left_out, weights=units.multiplicity) - left_out)


class OfRows(Statistic):
    """Any metrics at all: functions of the positions of the examples that were drawn.

    Each resample is a call, so there are fewer of them, the fewer the more examples there are.

    Args:
        units: what is drawn.
        functions: by name: positions, int64 of any length, sorted, with repeats → the metric, `None` where undefined.
    """

    def __init__(self, units: Units, functions: Mapping[str, Callable[[np.ndarray], float | None]]) -> None:
        self.units, self._functions = units, functions
        self.most_resamples = min(999, max(199, 20_000_000 // max(1, len(units.kind_of))))

    @property
    def names(self) -> tuple[str, ...]:
        """See `Statistic.names`."""
        return tuple(self._functions)

    def values(self, weights: np.ndarray) -> dict[str, np.ndarray]:
        """See `Statistic.values`; kinds of more than one unit are none that a function of positions could tell apart.

        Raises:
            ValueError: the units are kinds of several examples that are drawn one by one.
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

    def influence(self) -> dict[str, np.ndarray]:
        """Returns nothing: it would take a call for each example."""
        return {}


class Difference(Statistic):
    """By how much the metrics of a second model exceed those of a first one, on the same examples.

    Args:
        first: the first model's metrics.
        second: the second model's, of the same units.
    """

    def __init__(self, first: Statistic, second: Statistic) -> None:
        self.units, self._first, self._second = first.units, first, second
        self.most_resamples, self.no_interval = first.most_resamples, first.no_interval
        self.bounds = first.bounds[0] - first.bounds[1], first.bounds[1] - first.bounds[0]

    @property
    def names(self) -> tuple[str, ...]:
        """See `Statistic.names`."""
        return tuple(name for name in self._first.names if name in self._second.names)

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
