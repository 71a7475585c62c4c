"""Evidence: what resamples, or the jackknife, say of a metric, and the interval and p-value that follow.

What the data do not tell has no interval but a reason. In particular, where all resamples give the same value, as with
perfect predictions, the bootstrap's interval would have no width: it cannot know errors that did not occur. Wilson's
interval for the accuracy is right even then; other metrics have none. Nor has anything of few examples or groups but
what Wilson's serves, nor a metric that resamples misjudge (see `Statistic.no_interval`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from dist_eval.statistics.intervals import (
    SAME,
    Interval,
    bca,
    jackknife,
    percentile,
    standard_error,
    symmetric,
    too_few,
)
from dist_eval.statistics.resampling import FEW_UNITS, SEED, Statistic

RESAMPLES = 9_999
"""Resamples for an interval; a divisor of the usual levels when 1 is added (Davison & Hinkley 1997, section 2.4)."""

_FEWEST_RESAMPLES = 1_999
_WORK_WITHOUT_A_THOUGHT, _MOST_WORK = 200_000_000, 400_000_000
_MOST_UNDEFINED = 0.02
"""Share of resamples without a value, beyond which those that have one say too little."""

_NO_SPREAD = "all resamples give the same value: there is nothing from which a spread could be estimated"
_TOO_RARE = "too many resamples leave it undefined: something that it needs is too rare in the data"


def affordable_resamples(statistic: Statistic, wanted: int | None = None, most: int | None = None) -> int | None:
    """Returns how many resamples are worth their time: by the amount of work, so that it is the same everywhere.

    Args:
        statistic: what would be resampled.
        wanted: their number, if the caller has decided.
        most: a number that is enough, where the caller has not decided.

    Returns:
        The number, None if the jackknife has to do.
    """
    if wanted is not None:
        return wanted
    enough = RESAMPLES if most is None else most
    if statistic.most_resamples is not None:
        return min(enough, statistic.most_resamples)
    work = max(1, statistic.work)
    if work * _FEWEST_RESAMPLES > _MOST_WORK:
        return None
    return min(enough, max(_FEWEST_RESAMPLES, _WORK_WITHOUT_A_THOUGHT // work))


@dataclass(frozen=True)
class Evidence:
    """What resamples, or the jackknife where these would take too long, say of a metric.

    Attributes:
        value: the metric of the data.
        bounds: the least and largest value that it can have.
        multiplicity: units of each kind, int64 of shape [kinds].
        influence: see `Statistic.influence`; None if unknown.
        distribution: the metric of each resample, float64 of shape [resamples], NaN where undefined; None without any.
        are_groups: whether the units are groups of examples.
        scale: size of the numbers that the metric is a difference of, whose rounding it has; 0 if it is none.
        is_difference: whether it is one; then its interval is the one that agrees with its p-value.
        no_interval: see `Statistic.no_interval`.
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

    def interval(self, confidence: float = 0.95) -> Interval:
        """Returns the BCa interval, of a difference the symmetric one, or the nearest thing that the data allow."""
        if self.no_interval is not None:
            return Interval(confidence, reason=self.no_interval)
        if self._has_few_units:
            return too_few(confidence, self.are_groups)
        if self._undefined > _MOST_UNDEFINED:
            return Interval(confidence, reason=_TOO_RARE)
        if self._has_no_spread:
            return Interval(confidence, reason=_NO_SPREAD)
        if self.distribution is None:
            ends = jackknife(self.value, self._error, self.bounds, confidence)
            return Interval(confidence, *ends, "jackknife").around(self.value)
        defined = self.distribution[~np.isnan(self.distribution)]
        if self.is_difference:
            ends = symmetric(defined, self.value, confidence)
            ends = max(self.bounds[0], ends[0]), min(self.bounds[1], ends[1])
            return Interval(confidence, *ends, "symmetric", len(self.distribution)).around(self.value)
        method, ends = "bca", (np.nan, np.nan)
        if self.influence is not None:
            ends = bca(defined, self.value, self.influence, self.multiplicity, confidence)
        if np.isnan(ends).any():
            method, ends = "percentile", percentile(defined, confidence)
        return Interval(confidence, *ends, method, len(self.distribution)).around(self.value)

    def p_value(self) -> float | None:
        """Returns how likely a value at least this far from 0 is where the truth is 0, two-sided; None if unknown.

        It is the share of resamples that are at least as far from the value as the value is from 0, the data themselves
        counting as one of them (A. C. Davison and D. V. Hinkley 1997, "Bootstrap Methods and their Application",
        section 4.4); without resamples, that of the normal distribution.
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
        """What rounding may make of equal values, at the scale of the values: 0 where all of them are 0."""
        drawn = 0.0 if self.distribution is None else float(np.nanmax(np.abs(self.distribution), initial=0.0))
        return SAME * max(self.scale, abs(self.value), drawn)

    @property
    def _error(self) -> float:
        assert self.influence is not None, "whatever is not resampled has an influence"
        return standard_error(self.influence, self.multiplicity)

    @property
    def _undefined(self) -> float:
        """Share of the resamples that leave the metric undefined."""
        if self.distribution is None:
            return float(np.isnan(self._error))
        return float(np.isnan(self.distribution).mean())

    @property
    def _has_no_spread(self) -> bool:
        if self.distribution is None:
            spread = self._error
        else:
            spread = float(np.nanmax(self.distribution) - np.nanmin(self.distribution))
        return spread <= self._rounding


def gather_evidence(
    statistic: Statistic,
    values: Mapping[str, float],
    *,
    resamples: int | None = None,
    most: int | None = None,
    seed: int = SEED,
) -> dict[str, Evidence]:
    """Resamples the data, once for all metrics of a statistic.

    Args:
        statistic: the metrics.
        values: the metrics of the data, finite; those that are not named here are left out.
        resamples: their number; by default 9,999, fewer where they take long, none where there are very many units
            (see `affordable_resamples`).
        most: a smaller number than 9,999 that is enough.
        seed: of the resamples.

    Returns:
        By name of the metric.
    """
    influence: dict[str, np.ndarray] = {}
    drawn: dict[str, np.ndarray] = {}
    number = affordable_resamples(statistic, resamples, most)
    units = statistic.units
    if units.count > 1 and statistic.no_interval is None:
        influence, drawn = statistic.influence(), {} if number is None else statistic.resampled(number, seed)
    scales = statistic.scales()
    return {
        name: Evidence(
            value=value,
            bounds=statistic.bounds,
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
