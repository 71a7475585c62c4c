"""Confidence intervals: Wilson's for proportions, the bootstrap's and the jackknife's for everything else."""

from __future__ import annotations

import numpy as np

from dist_eval.metrics.units import FEW_UNITS
from dist_eval.results.scores import Interval, IntervalMethod
from dist_eval.statistics.sampling import effective_size, normal_quantile

# maximum relative rounding error of equal values
SAME = 1e-12

_EXCLUDED = "an interval would not contain the value itself"


def make_interval(
    value: float,
    limits: tuple[float, float],
    method: IntervalMethod,
    *,
    confidence: float = 0.95,
    resamples: int | None = None,
) -> Interval:
    """Returns the interval of a value, or a reason if the limits do not enclose it."""
    low, high = limits
    rounding = SAME * max(abs(value), abs(low), abs(high))
    if not low - rounding <= value <= high + rounding:
        return Interval(confidence=confidence, reason=_EXCLUDED)
    return Interval(
        confidence=confidence, low=min(low, value), high=max(high, value), method=method, resamples=resamples
    )


def too_few(confidence: float, are_groups: bool) -> Interval:
    """Returns the reason for no interval with fewer than `FEW_UNITS` examples or groups."""
    what = "groups" if are_groups else "examples"
    return Interval(confidence=confidence, reason=f"fewer than {FEW_UNITS} {what}: too few for the bootstrap")


def wilson(
    successes: float, trials: float, confidence: float = 0.95, sampling_fraction: float = 0.0
) -> tuple[float, float]:
    """Computes Wilson's score interval of a proportion, without continuity correction.

    E. B. Wilson (1927), "Probable inference, the law of succession, and statistical inference", JASA 22, 209-212;
    recommended by L. D. Brown, T. T. Cai and A. DasGupta (2001), "Interval estimation for a binomial proportion",
    Statistical Science 16, 101-133. Its width is positive even if no trial, or every trial, succeeds.

    Returns:
        Its lower and upper limit.

    Examples:
        >>> low, high = wilson(8, 10)
        >>> print(f"{low:.3f} to {high:.3f}")
        0.490 to 0.943
    """
    z, size = normal_quantile(confidence), effective_size(trials, sampling_fraction)
    share, spread = successes / trials, z * z / size
    center = share + spread / 2
    half = z * float(np.sqrt(share * (1 - share) / size + spread / (4 * size)))
    low, high = (center - half) / (1 + spread), (center + half) / (1 + spread)
    return (0.0 if successes == 0 else low), (1.0 if successes == trials else high)


def wilson_interval(successes: int, trials: int, confidence: float, sampling_fraction: float = 0.0) -> Interval:
    """Returns the interval of `wilson` as a record."""
    low, high = wilson(int(successes), int(trials), confidence, sampling_fraction)
    return Interval(confidence=confidence, low=low, high=high, method="wilson")


def percentile(distribution: np.ndarray, confidence: float = 0.95) -> tuple[float, float]:
    """Computes the percentile bootstrap interval.

    B. Efron (1979), "Bootstrap methods: another look at the jackknife", Annals of Statistics 7, 1-26.

    Args:
        distribution: the metric on each resample, float64 of shape [resamples].
        confidence: confidence level.

    Returns:
        Its lower and upper limit.
    """
    tail = (1 - confidence) / 2
    low, high = np.quantile(distribution, [tail, 1 - tail])
    return float(low), float(high)


def median_bias(distribution: np.ndarray, value: float) -> float:
    """Returns the bias-correction constant of `bca`: how far the median of the resamples is, in standard errors.

    It is infinite if all resamples lie on one side. Resamples equal to the value count half, because ratios of counts
    are often tied.
    """
    from scipy.special import ndtri

    return float(ndtri(((distribution < value).mean() + (distribution <= value).mean()) / 2))


def bca(
    distribution: np.ndarray,
    value: float,
    influence: np.ndarray,
    multiplicity: np.ndarray | None = None,
    confidence: float = 0.95,
) -> tuple[float, float]:
    """Computes the bias-corrected and accelerated (BCa) bootstrap interval.

    B. Efron (1987), "Better bootstrap confidence intervals", JASA 82, 171-185; T. J. DiCiccio and B. Efron (1996),
    "Bootstrap confidence intervals", Statistical Science 11, 189-228. The acceleration is the jackknife's,
    Σ U³ / 6 (Σ U²)^1.5 over all units.

    Args:
        distribution: the metric on each resample, float64 of shape [resamples].
        value: the metric on the data.
        influence: influence of one unit of each kind (see `Statistic.influence`), float64 of shape [kinds].
        multiplicity: number of units of each kind, int64 of shape [kinds]; None if each unit is its own kind.
        confidence: confidence level.

    Returns:
        Its limits, NaN if the correction is undefined: no unit has an influence, or all resamples lie on one side.
    """
    from scipy.special import ndtr, ndtri

    weights = np.ones(len(influence)) if multiplicity is None else multiplicity
    scale = float(np.abs(influence).max(initial=0)) or np.nan
    scaled = influence / scale  # avoids overflow and underflow of the cubes
    acceleration = float((weights * scaled**3).sum() / (6 * (weights * scaled**2).sum() ** 1.5))
    bias = median_bias(distribution, value)
    if not (np.isfinite(bias) and np.isfinite(acceleration)):
        return np.nan, np.nan
    tail = (1 - confidence) / 2
    z = bias + ndtri(np.array([tail, 1 - tail]))
    low, high = np.quantile(distribution, ndtr(bias + z / (1 - acceleration * z)))
    return float(low), float(high)


def symmetric(distribution: np.ndarray, value: float, confidence: float = 0.95) -> tuple[float, float]:
    """Computes the symmetric bootstrap interval, from the absolute distances of resamples to the value.

    P. Hall (1988), "On symmetric bootstrap confidence intervals", JRSS B 50, 35-45. It excludes 0 if and only if
    the p-value of `Evidence.p_value` is at most 1 - `confidence`.
    """
    distances = np.sort(np.abs(distribution - value))
    inside = int(np.ceil(round(confidence * (len(distances) + 1), 6)))
    half = float(distances[min(inside, len(distances)) - 1])
    return value - half, value + half


def standard_error(influence: np.ndarray, multiplicity: np.ndarray) -> float:
    """Computes the jackknife's standard error of a metric.

    J. W. Tukey (1958), "Bias and confidence in not-quite large samples", Annals of Mathematical Statistics 29, 614;
    for the area under a ROC curve it equals that of E. R. DeLong and others (1988), Biometrics 44, 837-845, up to terms
    of the order 1/n.
    """
    units = float(multiplicity.sum())
    return float(np.sqrt((multiplicity * influence**2).sum() / (units * (units - 1))))


def jackknife(
    value: float, error: float, bounds: tuple[float, float] = (-np.inf, np.inf), confidence: float = 0.95
) -> tuple[float, float]:
    """Computes the normal-approximation interval from the jackknife's standard error.

    For so many units that resampling would take long; what the bootstrap would correct is then a small part of the
    width (of the order 1/√n).
    """
    half = normal_quantile(confidence) * error
    return max(bounds[0], value - half), min(bounds[1], value + half)
