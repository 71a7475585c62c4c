"""Random samples of a dataset: corrections of intervals, and sample sizes for a precision.

The correction for finite populations is that of simple random samples without replacement: W. G. Cochran (1977),
"Sampling Techniques", 3rd edition, section 3.2. It also holds for a part of the sample, such as the examples of a
class, because about the same fraction of its rows is in the sample (section 2.12: domains of study).
"""

from __future__ import annotations

import math


def effective_size(examples: float, sampling_fraction: float) -> float:
    """Returns the number of independent examples that are as informative as a random sample without replacement.

    The variance of a proportion in a sample of n out of N rows is PQ/n · (N - n)/(N - 1), as if there were
    n (N - 1)/(N - n) = (n - f)/(1 - f) independent examples, with f = n/N. For intervals with such an effective size
    see E. L. Korn and B. I. Graubard (1998), "Confidence intervals for proportions with small expected number of
    positive counts estimated from survey data", Survey Methodology 24, 193-201.

    Examples:
        >>> effective_size(500, sampling_fraction=0.5)
        999.0
    """
    return (examples - sampling_fraction) / (1 - sampling_fraction) if sampling_fraction < 1 else math.inf


def finite_population_correction(
    limits: tuple[float, float], value: float, sampling_fraction: float
) -> tuple[float, float]:
    """Moves the limits of a bootstrap interval towards the value, depending on the fraction of rows in the sample.

    The bootstrap draws with replacement. For a sample of the fraction f of all rows without replacement, its spread is
    too large by 1/√(1 - f), so the distances of the limits to the value are multiplied by √(1 - f). This is correct to
    first order for metrics that are smooth functions of sums over examples:
    J. N. K. Rao and C. F. J. Wu (1988), "Resampling inference with complex survey data", JASA 83, 231-241; A. C.
    Davison and D. V. Hinkley (1997), "Bootstrap Methods and their Application", section 3.7.

    Returns:
        Its lower and upper limit.
    """
    if not sampling_fraction:
        return limits
    factor = math.sqrt(1 - sampling_fraction)
    return value + factor * (limits[0] - value), value + factor * (limits[1] - value)


def half_width(examples: int, confidence: float = 0.95, population: int | None = None) -> float:
    """Returns half of the width of Wilson's interval in the worst case, a proportion of 1/2: z / 2√(n + z²).

    Args:
        examples: number of examples, at least 1.
        confidence: confidence level.
        population: number of rows of the dataset that they are a random sample of; None for no correction.
    """
    z, size = normal_quantile(confidence), effective_size(examples, examples / population if population else 0.0)
    return z / (2 * math.sqrt(size + z * z))


def examples_for_precision(precision: float, confidence: float = 0.95, population: int | None = None) -> int:
    """Returns the fewest examples for which the interval of any proportion is at most ± `precision`.

    The half width of Wilson's interval is at most d for n ≥ z² (1/4d² - 1) independent examples. For a population of N
    rows fewer suffice: n N / (n + N - 1) (see `effective_size`).

    Args:
        precision: maximum half width, more than 0 and less than 0.5; 0.01 is one percentage point.
        confidence: confidence level.
        population: see `half_width`.

    Returns:
        At least 1, and at most `population`.

    Examples:
        >>> examples_for_precision(0.01)
        9600
        >>> examples_for_precision(0.01, population=10_000)
        4899
    """
    needed = normal_quantile(confidence) ** 2 * (0.25 / precision**2 - 1)
    if population is not None:
        needed = needed * population / (needed + population - 1)
    examples = max(1, math.ceil(needed))
    # the formula is rounded; the interval decides
    while examples > 1 and half_width(examples - 1, confidence, population) <= precision:
        examples -= 1
    while examples != population and half_width(examples, confidence, population) > precision:
        examples += 1
    return examples


def normal_quantile(confidence: float) -> float:
    """Returns the number of standard deviations between the mean and the limits of an interval."""
    from scipy.special import ndtri

    return float(ndtri(0.5 + confidence / 2))
