"""How many examples a precision takes, before any of them is evaluated."""

from __future__ import annotations

import math

from dist_eval.statistics.intervals import wilson


def half_width(examples: int, confidence: float = 0.95, population: int | None = None) -> float:
    """Returns half of the width of Wilson's interval in the worst case, which is a proportion of 1/2.

    Args:
        examples: number of examples, at least 1.
        confidence: confidence level.
        population: number of rows of the dataset that they are a random sample of; None if that is not to be taken
            into account.
    """
    low, high = wilson(examples / 2, examples, confidence, examples / population if population else 0.0)
    return (high - low) / 2


def examples_for_precision(precision: float, confidence: float = 0.95, population: int | None = None) -> int:
    """Returns the fewest examples for which the interval of any proportion is at most ± `precision`.

    The half width of Wilson's interval of 1/2 from n independent examples is z / 2√(n + z²), which is at most d from
    n = z² (1/4d² - 1) on. Of a population of N rows fewer are needed: n N / (n + N - 1) (see `effective_size`).

    Args:
        precision: largest half width, more than 0 and less than 0.5: 0.01 is one percentage point.
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
    from scipy.special import ndtri

    z = float(ndtri(0.5 + confidence / 2))
    needed = z * z * (0.25 / precision**2 - 1)
    if population is not None:
        needed = needed * population / (needed + population - 1)
    examples = max(1, math.ceil(needed))
    # the formula is rounded, the interval decides
    while examples > 1 and half_width(examples - 1, confidence, population) <= precision:
        examples -= 1
    while examples != population and half_width(examples, confidence, population) > precision:
        examples += 1
    return examples
