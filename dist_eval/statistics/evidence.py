"""Evidence: the bootstrap distribution or jackknife of a metric, and the interval and p-value that follow from it.

If the data do not support an interval, a metric gets a reason instead. If nearly all resamples give the same value, as
with perfect predictions, a bootstrap interval would have zero width, because the bootstrap cannot anticipate errors
that did not occur: Wilson's interval for the accuracy remains valid, and other metrics have none. The same holds for
few examples or groups, and for metrics whose bootstrap distribution is biased (see `Statistic.no_interval`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dist_eval.metrics.catalogue import range_of
from dist_eval.metrics.statistic import Statistic
from dist_eval.metrics.units import FEW_UNITS, SEED
from dist_eval.results.scores import Interval, IntervalMethod
from dist_eval.statistics.intervals import (
    SAME,
    bca,
    jackknife,
    make_interval,
    median_bias,
    percentile,
    standard_error,
    symmetric,
    too_few,
)
from dist_eval.statistics.sampling import finite_population_correction

# resamples for an interval; (9,999 + 1) α is an integer for the usual levels (Davison & Hinkley 1997, section 2.4)
RESAMPLES = 9_999

_FEWEST_RESAMPLES = 1_999
_TARGET_WORK, _MOST_WORK = 200_000_000, 400_000_000
# maximum fraction of undefined resamples; above it, the others are not used
_MOST_UNDEFINED = 0.02

# largest median bias of the resamples, in standard errors: above it, as with 200 classes of 15 examples, intervals of
# averages over classes contained the true value in fewer than 90% of simulations instead of 95%
_MOST_BIAS = 0.75

_BIASED = "the resamples are biased, because there are too few examples for this metric (such as of each class)"
_FEW_RESAMPLES = "too few resamples for this confidence level"
_NO_SPREAD = "nearly all resamples give the same value, so no spread can be estimated"
_TOO_RARE = "undefined in too many resamples: the examples that it needs are too rare"

# share of the resamples that must not all give the same value: the others may lack a rare class
_USUAL = 0.95


def affordable_resamples(statistic: Statistic, most: int | None = None) -> int | None:
    """Returns the number of resamples for a fixed amount of work; None if the jackknife must replace them."""
    enough = RESAMPLES if most is None else most
    if statistic.most_resamples is not None:
        return min(enough, statistic.most_resamples)
    work = max(1, statistic.work)
    if work * _FEWEST_RESAMPLES > _MOST_WORK:
        return None
    return min(enough, max(_FEWEST_RESAMPLES, _TARGET_WORK // work))


@dataclass(frozen=True)
class Evidence:
    """The bootstrap distribution of a metric, or its jackknife where resampling would take too long.

    Attributes:
        value: the metric on the data.
        bounds: its smallest and largest possible value.
        multiplicity: units of each kind, int64 of shape [kinds].
        influence: see `Statistic.influence`; None if unknown.
        distribution: the metric on each resample, float64 of shape [resamples], NaN where undefined; None
            without resamples.
        are_groups: whether the units are groups of examples.
        scale: magnitude of the operands if the metric is a difference, whose rounding error it inherits; else
            0.
        no_interval: see `Statistic.no_interval`.
        is_difference: whether it is a difference; its interval is then consistent with its
            p-value.
    """

    value: float
    bounds: tuple[float, float]
    multiplicity: np.ndarray
    influence: np.ndarray | None
    distribution: np.ndarray | None
    are_groups: bool = False
    scale: float = 0.0
    no_interval: str | None = None
    is_difference: bool = False

    def interval(self, confidence: float = 0.95, sampling_fraction: float = 0.0) -> Interval:
        """Returns the BCa interval (the symmetric one for a difference), or the best that the data support."""
        if self.no_interval is not None:
            return Interval(confidence=confidence, reason=self.no_interval)
        if self._has_few_units:
            return too_few(confidence, self.are_groups)
        if self._undefined > _MOST_UNDEFINED:
            return Interval(confidence=confidence, reason=_TOO_RARE)
        if self._has_no_spread:
            return Interval(confidence=confidence, reason=_NO_SPREAD)
        if self.distribution is None:
            error = self._error * float(np.sqrt(1 - sampling_fraction))
            ends = jackknife(self.value, error, self.bounds, confidence)
            return make_interval(self.value, ends, "jackknife", confidence=confidence)
        defined, resamples = self.distribution[~np.isnan(self.distribution)], len(self.distribution)
        # beyond the outermost resamples, intervals of either kind would be too short
        if round((1 - confidence) * (1 if self.is_difference else 0.5) * (len(defined) + 1), 6) < 1:
            return Interval(confidence=confidence, reason=_FEW_RESAMPLES)
        if self.is_difference:
            ends = symmetric(defined, self.value, confidence)
            if self._are_equal(*ends):
                return Interval(confidence=confidence, reason=_NO_SPREAD)
            ends = max(self.bounds[0], ends[0]), min(self.bounds[1], ends[1])
            return make_interval(self.value, ends, "symmetric", confidence=confidence, resamples=resamples)
        if self.influence is not None:
            if abs(median_bias(defined, self.value)) > _MOST_BIAS:
                return Interval(confidence=confidence, reason=_BIASED)
            ends = bca(defined, self.value, self.influence, self.multiplicity, confidence)
            if not np.isnan(ends).any():
                return self._of_ends(ends, "bca", confidence, sampling_fraction)
        return self._of_ends(percentile(defined, confidence), "percentile", confidence, sampling_fraction)

    def _of_ends(
        self, ends: tuple[float, float], method: IntervalMethod, confidence: float, sampling_fraction: float
    ) -> Interval:
        """Returns the interval with these ends, corrected for sampling; none if they are equal."""
        assert self.distribution is not None
        if self._are_equal(*ends):
            return Interval(confidence=confidence, reason=_NO_SPREAD)
        ends = finite_population_correction(ends, self.value, sampling_fraction)
        return make_interval(self.value, ends, method, confidence=confidence, resamples=len(self.distribution))

    def _are_equal(self, low: float, high: float) -> bool:
        return high - low <= self._rounding

    def p_value(self) -> float | None:
        """Returns the two-sided p-value of the hypothesis that the true value is 0; None if unknown.

        It is the share of resamples at least as far from the value as the value is from 0, counting the data themselves
        as one resample (A. C. Davison and D. V. Hinkley 1997, "Bootstrap Methods and their Application", section 4.4);
        without resamples it is that of the normal approximation.
        """
        from scipy.special import ndtr

        if self.no_interval is not None or self._has_few_units or self._undefined > _MOST_UNDEFINED:
            return None
        if self._has_no_spread:
            return 1.0 if abs(self.value) <= self._rounding else None
        if self.distribution is None:
            return float(2 * ndtr(-abs(self.value) / self._error))
        defined = self.distribution[~np.isnan(self.distribution)]
        extreme = np.abs(defined - self.value) >= abs(self.value) - self._rounding
        return float((1 + extreme.sum()) / (1 + len(defined)))

    @property
    def _has_few_units(self) -> bool:
        return bool(self.multiplicity.sum() < FEW_UNITS)

    @property
    def _rounding(self) -> float:
        """Rounding error up to which values count as equal; 0 if all values are 0."""
        drawn = 0.0 if self.distribution is None else float(np.nanmax(np.abs(self.distribution), initial=0.0))
        return SAME * max(self.scale, abs(self.value), drawn)

    @property
    def _error(self) -> float:
        assert self.influence is not None, "a statistic without resamples has an influence"
        return standard_error(self.influence, self.multiplicity)

    @property
    def _undefined(self) -> float:
        """Fraction of resamples on which the metric is undefined."""
        if self.distribution is None:
            return float(np.isnan(self._error))
        return float(np.isnan(self.distribution).mean())

    @property
    def _has_no_spread(self) -> bool:
        if self.distribution is None:
            spread = self._error
        else:
            spread = float(np.nanquantile(np.abs(self.distribution - np.nanmedian(self.distribution)), _USUAL))
        return spread <= self._rounding


def _bounds(statistic: Statistic, name: str) -> tuple[float, float]:
    """Returns the smallest and largest possible value of a metric, or of the difference of two of its values."""
    low, high = range_of(name) if statistic.has_usual_range else (-np.inf, np.inf)
    return (low - high, high - low) if statistic.scales() else (low, high)


def bootstrap_intervals(
    statistic: Statistic, values: Mapping[str, float], confidence: float, sampling_fraction: float = 0.0, **options: Any
) -> dict[str, Interval]:
    """Returns the intervals of metrics by name; the options are those of `gather_evidence`."""
    evidence = gather_evidence(statistic, values, **options)
    return {name: one.interval(confidence, sampling_fraction) for name, one in evidence.items()}


def gather_evidence(
    statistic: Statistic,
    values: Mapping[str, float],
    *,
    resamples: int | None = None,
    most: int | None = None,
    seed: int = SEED,
) -> dict[str, Evidence]:
    """Resamples the data, once for all metrics of a statistic."""
    influence: dict[str, np.ndarray] = {}
    drawn: dict[str, np.ndarray] = {}
    number = affordable_resamples(statistic, most) if resamples is None else resamples
    units = statistic.units
    if units.count > 1 and statistic.no_interval is None:
        influence, drawn = statistic.influence(), {} if number is None else statistic.resampled(number, seed)
    scales = statistic.scales()
    return {
        name: Evidence(
            value=value,
            bounds=_bounds(statistic, name),
            multiplicity=units.multiplicity,
            influence=influence.get(name),
            distribution=drawn.get(name),
            are_groups=units.grouped,
            scale=scales.get(name, 0.0),
            no_interval=statistic.no_interval,
            is_difference=bool(scales),
        )
        for name, value in values.items()
    }
