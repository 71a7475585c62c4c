"""Confidence intervals: Wilson's for proportions, the bootstrap's for everything that can be resampled.

What the data do not tell has no interval but a reason. In particular, where all resamples give the same value, as with
perfect predictions, the bootstrap's interval would have no width: it cannot know errors that did not occur. Wilson's
interval for the accuracy is right even then; other metrics have none. Nor has anything of few examples or groups but
what Wilson's serves, nor a metric that resamples misjudge (see `Statistic.no_interval`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from dist_eval.statistics.resampling import FEW_UNITS, SEED, Statistic

RESAMPLES = 9_999
"""Resamples for an interval; a divisor of the usual levels when 1 is added (Davison & Hinkley 1997, section 2.4)."""

_FEWEST_RESAMPLES = 1_999
_WORK_WITHOUT_A_THOUGHT, _MOST_WORK = 200_000_000, 400_000_000
_MOST_UNDEFINED = 0.02
"""Share of resamples without a value, beyond which those that have one say too little."""

_SAME = 1e-12
"""What rounding may make of equal values, as a share of them."""


@dataclass(frozen=True)
class Interval:
    """A confidence interval of a metric.

    Attributes:
        confidence: how often such intervals contain the truth, such as 0.95.
        low: lower end, None if there is no interval.
        high: upper end.
        method: "wilson", "bca", "percentile" or "jackknife", which are functions of this module; of a difference
            "symmetric", too, or "bonett-price" (see `dist_eval.statistics.paired`).
        resamples: how many resamples it rests on, None if on none.
        reason: why there is no interval.
    """

    confidence: float
    low: float | None = None
    high: float | None = None
    method: str | None = None
    resamples: int | None = None
    reason: str | None = None

    def facts(self) -> dict[str, Any]:
        """Returns the attributes by name, for `results.json`."""
        return asdict(self)

    def around(self, value: float) -> Interval:
        """Returns this interval if it contains a value, the reason why there is none if it does not."""
        if self.low is None or self.high is None:
            return self
        rounding = _SAME * max(abs(value), abs(self.low), abs(self.high))
        if not self.low - rounding <= value <= self.high + rounding:
            return Interval(self.confidence, reason=_EXCLUDED)
        return replace(self, low=min(self.low, value), high=max(self.high, value))


def too_few(confidence: float, are_groups: bool) -> Interval:
    """Returns what stands in place of an interval where there are fewer than `FEW_UNITS` examples or groups."""
    what = "groups" if are_groups else "examples"
    return Interval(confidence, reason=f"fewer than {FEW_UNITS} {what}: too few for the bootstrap")


def wilson(successes: int, trials: int, confidence: float = 0.95) -> tuple[float, float]:
    """Computes Wilson's score interval of a proportion, without continuity correction.

    E. B. Wilson (1927), "Probable inference, the law of succession, and statistical inference", JASA 22, 209-212;
    recommended by L. D. Brown, T. T. Cai and A. DasGupta (2001), "Interval estimation for a binomial proportion",
    Statistical Science 16, 101-133. It has a width also where nothing or everything succeeds.

    Args:
        successes: how many of the trials succeeded.
        trials: at least 1.
        confidence: level.

    Returns:
        Its ends.

    Examples:
        >>> low, high = wilson(8, 10)
        >>> print(f"{low:.3f} to {high:.3f}")
        0.490 to 0.943
    """
    from scipy.special import ndtri

    z = float(ndtri(0.5 + confidence / 2))
    share, spread = successes / trials, z * z / trials
    center = share + spread / 2
    half = z * float(np.sqrt(share * (1 - share) / trials + spread / (4 * trials)))
    low, high = (center - half) / (1 + spread), (center + half) / (1 + spread)
    return (0.0 if successes == 0 else low), (1.0 if successes == trials else high)


def percentile(distribution: np.ndarray, confidence: float = 0.95) -> tuple[float, float]:
    """Takes an interval's ends from the quantiles of resamples.

    B. Efron (1979), "Bootstrap methods: another look at the jackknife", Annals of Statistics 7, 1-26.

    Args:
        distribution: the metric of each resample, float64 of shape [resamples].
        confidence: level.

    Returns:
        Its ends.
    """
    tail = (1 - confidence) / 2
    low, high = np.quantile(distribution, [tail, 1 - tail])
    return float(low), float(high)


def bca(
    distribution: np.ndarray,
    value: float,
    influence: np.ndarray,
    multiplicity: np.ndarray | None = None,
    confidence: float = 0.95,
) -> tuple[float, float]:
    """Takes an interval's ends from quantiles of resamples, corrected for bias and skewness: "BCa".

    B. Efron (1987), "Better bootstrap confidence intervals", JASA 82, 171-185; T. J. DiCiccio and B. Efron (1996),
    "Bootstrap confidence intervals", Statistical Science 11, 189-228. The acceleration is the jackknife's,
    Σ U³ / 6 (Σ U²)^1.5 over all units.

    Args:
        distribution: the metric of each resample, float64 of shape [resamples].
        value: the metric of the data.
        influence: how much each kind of unit matters (see `Statistic.influence`), float64 of shape [kinds].
        multiplicity: units of each kind, int64 of shape [kinds]; None if each unit is a kind.
        confidence: level.

    Returns:
        Its ends, NaN where the correction is undefined: no unit matters, or all resamples are on one side.
    """
    from scipy.special import ndtr, ndtri

    weights = np.ones(len(influence)) if multiplicity is None else multiplicity
    scale = float(np.abs(influence).max(initial=0)) or np.nan
    scaled = influence / scale  # cubes of very large and very small values
    acceleration = float((weights * scaled**3).sum() / (6 * (weights * scaled**2).sum() ** 1.5))
    # resamples as large as the value count half, because metrics that are ratios of counts often repeat it
    share = ((distribution < value).mean() + (distribution <= value).mean()) / 2
    bias = float(ndtri(share))
    if not (np.isfinite(bias) and np.isfinite(acceleration)):
        return np.nan, np.nan
    tail = (1 - confidence) / 2
    z = bias + ndtri(np.array([tail, 1 - tail]))
    low, high = np.quantile(distribution, ndtr(bias + z / (1 - acceleration * z)))
    return float(low), float(high)


def symmetric(distribution: np.ndarray, value: float, confidence: float = 0.95) -> tuple[float, float]:
    """Takes an interval's ends from how far resamples are from the value, whichever way.

    P. Hall (1988), "On symmetric bootstrap confidence intervals", JRSS B 50, 35-45. It excludes 0 where the p-value of
    `Evidence.p_value` is at most 1 - `confidence`, and nowhere else.

    Args:
        distribution: the metric of each resample, float64 of shape [resamples].
        value: the metric of the data.
        confidence: level.

    Returns:
        Its ends.
    """
    distances = np.sort(np.abs(distribution - value))
    inside = int(np.ceil(round(confidence * (len(distances) + 1), 6)))
    half = float(distances[min(inside, len(distances)) - 1])
    return value - half, value + half


def standard_error(influence: np.ndarray, multiplicity: np.ndarray) -> float:
    """Computes the jackknife's standard error of a metric.

    J. W. Tukey (1958), "Bias and confidence in not-quite large samples", Annals of Mathematical Statistics 29, 614;
    for the area under a ROC curve it is that of E. R. DeLong and others (1988), Biometrics 44, 837-845, but for terms
    of the order 1/n.

    Args:
        influence: how much each kind of unit matters (see `Statistic.influence`), float64 of shape [kinds].
        multiplicity: units of each kind, int64 of shape [kinds].
    """
    units = float(multiplicity.sum())
    return float(np.sqrt((multiplicity * influence**2).sum() / (units * (units - 1))))


def jackknife(
    value: float, error: float, bounds: tuple[float, float] = (-np.inf, np.inf), confidence: float = 0.95
) -> tuple[float, float]:
    """Takes an interval's ends from the normal distribution that a smooth metric of many examples has.

    For so many units that resamples would take long: what the bootstrap corrects is then a small part of the width (of
    the order 1/√n).

    Args:
        value: the metric of the data.
        error: its standard error.
        bounds: the least and largest value that the metric can have.
        confidence: level.

    Returns:
        Its ends.
    """
    from scipy.special import ndtri

    half = float(ndtri(0.5 + confidence / 2)) * error
    return max(bounds[0], value - half), min(bounds[1], value + half)


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
        return _SAME * max(self.scale, abs(self.value), drawn)

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


_NO_SPREAD = "all resamples give the same value: there is nothing from which a spread could be estimated"
_EXCLUDED = "the resamples are so biased that an interval would not contain the value itself"
_TOO_RARE = "too many resamples leave it undefined: something that it needs is too rare in the data"
