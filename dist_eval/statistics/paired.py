"""Comparing two models on the same examples: McNemar's test, the paired bootstrap, and Holm's correction.

Both models have met the same examples, so what counts is where they differ. The data must be the same; this module sees
arrays only and cannot know, `dist_eval.compare` does.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dist_eval.data.problems import SINGLE_LABEL, exact_matches, problem_of
from dist_eval.statistics.classification import losses_of, statistics_of_classes
from dist_eval.statistics.evidence import gather_evidence
from dist_eval.statistics.intervals import Interval
from dist_eval.statistics.metrics import PROPORTIONS, statistics_of
from dist_eval.statistics.resampling import SEED, Difference, Statistic, Units

_EXACT_UP_TO = 1_000


@dataclass(frozen=True)
class McNemar:
    """McNemar's test of whether two models are right equally often.

    Attributes:
        only_first: examples that only the first model gets right.
        only_second: examples that only the second model gets right.
        p_value: two-sided.
        method: "exact" or "chi-square".
    """

    only_first: int
    only_second: int
    p_value: float
    method: str


def mcnemar(first_right: np.ndarray, second_right: np.ndarray) -> McNemar:
    """Tests whether two models are right equally often on the same examples.

    Q. McNemar (1947), "Note on the sampling error of the difference between correlated proportions or percentages",
    Psychometrika 12, 153-157. Of the examples that exactly one model gets right, half should be the first one's. Up to
    1,000 such examples the p-value is the exact binomial one; beyond, the chi-square approximation with the continuity
    correction of A. L. Edwards (1948), Psychometrika 13, 185-187, is as good.

    Args:
        first_right: whether the first model is right, bool of shape [n].
        second_right: whether the second model is right, bool of shape [n].

    Examples:
        >>> mcnemar(np.array([True] * 8 + [False] * 2), np.array([True] * 3 + [False] * 7))
        McNemar(only_first=5, only_second=0, p_value=0.0625, method='exact')
    """
    from scipy.stats import binomtest, chi2

    first, second = int((first_right & ~second_right).sum()), int((second_right & ~first_right).sum())
    differing = first + second
    if differing == 0:
        return McNemar(first, second, 1.0, "exact")
    if differing <= _EXACT_UP_TO:
        return McNemar(first, second, float(binomtest(first, differing).pvalue), "exact")
    distance = max(0.0, abs(first - second) - 1.0)
    return McNemar(first, second, float(chi2.sf(distance**2 / differing, df=1)), "chi-square")


def bonett_price(only_first: int, only_second: int, examples: int, confidence: float = 0.95) -> tuple[float, float]:
    """Computes an interval for by how much the second model is right more often than the first one.

    D. G. Bonett and R. M. Price (2012), "Adjusted Wald confidence interval for a difference of binomial proportions
    based on paired data", Journal of Educational and Behavioral Statistics 37, 479-488; recommended by M. W. Fagerland,
    S. Lydersen and P. Laake (2014), "Recommended tests and confidence intervals for paired binomial proportions",
    Statistics in Medicine 33, 2850-2875. Unlike resamples it is right also where few examples differ.

    Args:
        only_first: examples that only the first model gets right.
        only_second: examples that only the second model gets right.
        examples: number of all examples.
        confidence: level.

    Returns:
        Its ends.
    """
    from scipy.special import ndtri

    first, second = (only_first + 1) / (examples + 2), (only_second + 1) / (examples + 2)
    error = float(np.sqrt((first + second - (second - first) ** 2) / (examples + 2)))
    half = float(ndtri(0.5 + confidence / 2)) * error
    return max(-1.0, second - first - half), min(1.0, second - first + half)


def holm(p_values: Sequence[float]) -> list[float]:
    """Corrects p-values for their number, so that all claims together are wrong as rarely as one would be.

    S. Holm (1979), "A simple sequentially rejective multiple test procedure", Scandinavian Journal of Statistics 6,
    65-70. It assumes nothing of how the tests depend on each other.

    Args:
        p_values: of any number of tests.

    Returns:
        The corrected ones, in the same order.

    Examples:
        >>> holm([0.01, 0.04, 0.03])
        [0.03, 0.06, 0.06]
    """
    values = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(values, kind="stable")
    corrected = np.empty(len(values))
    corrected[order] = np.minimum(1.0, np.maximum.accumulate(values[order] * np.arange(len(values), 0, -1)))
    return corrected.tolist()


@dataclass(frozen=True)
class PairedDifference:
    """By how much a metric of the second model exceeds that of the first one.

    Attributes:
        value: the difference, None where one of the metrics is undefined.
        interval: its interval.
        p_value: two-sided, of there being no difference; None where unknown.
    """

    value: float | None
    interval: Interval
    p_value: float | None


def paired_differences(
    first: Any,
    second: Any,
    *,
    metrics: Collection[str] | None = None,
    confidence: float = 0.95,
    groups: np.ndarray | None = None,
    extra_statistics: Sequence[tuple[Statistic, Statistic]] = (),
    resamples: int | None = None,
    seed: int = SEED,
) -> dict[str, PairedDifference]:
    """Compares all metrics of two models on the same examples, which are drawn together: the paired bootstrap.

    Where a metric is the share of right predictions (`statistics.metrics.PROPORTIONS`), and examples are drawn one by
    one, the test is McNemar's, and the interval `bonett_price`'s. For all others:
    B. Efron and R. J. Tibshirani (1993), "An Introduction to the Bootstrap", chapter 8; the p-value is
    `Evidence.p_value`'s.

    Args:
        first: the first model's predictions: `dist_eval.Predictions`, at least one example (or what is `Classified`,
            `Regressed` or `Labelled`).
        second: the second model's, of the same examples in the same order.
        metrics: names of the metrics to compare, by default all.
        confidence: level of the intervals.
        groups: what examples belong together (see `metric_intervals`).
        extra_statistics: statistics for metrics that this module does not know, the first and the second model's, of
            the units that `Units.single` or `Units.groups` makes.
        resamples: their number (see `gather_evidence`).
        seed: of the resamples.

    Returns:
        By name of the metric; a name that is no metric is left out.

    Raises:
        ValueError: the labels or the classes differ, so that these are no predictions of the same examples.

    Examples:
        >>> from dist_eval import Predictions
        >>> label = np.arange(200) % 2
        >>> first, second = label.copy(), label.copy()
        >>> first[:50], second[:30] = 1 - first[:50], 1 - second[:30]
        >>> one, other = (Predictions.from_logits(np.arange(200), label, np.eye(2)[each]) for each in (first, second))
        >>> found = paired_differences(one, other, metrics=["accuracy"])["accuracy"]
        >>> print(f"{found.value:.2f}, between {found.interval.low:.3f} and {found.interval.high:.3f}")
        0.10, between 0.056 and 0.142
        >>> found.p_value < 0.001
        True
    """
    if first.num_labels != second.num_labels or not np.array_equal(first.label, second.label):
        raise ValueError("only predictions of the same examples, with the same labels, can be compared")
    undefined = Interval(confidence, reason="the metric is undefined for one of the two")
    found: dict[str, PairedDifference] = {}
    for pair in (*_statistics_of_both(first, second, groups), *extra_statistics):
        difference = Difference(*pair)
        if metrics is not None and not set(metrics) & set(difference.names):
            continue
        whole = {
            name: float(value[0])
            for name, value in difference.values(difference.units.whole()).items()
            if metrics is None or name in metrics
        }
        values = {name: value for name, value in whole.items() if not np.isnan(value)}
        found.update({name: PairedDifference(None, undefined, None) for name in whole})
        for name, one in gather_evidence(difference, values, resamples=resamples, seed=seed).items():
            found[name] = PairedDifference(one.value, one.interval(confidence), one.p_value())
    proportions = found.keys() & set(PROPORTIONS[problem_of(first.label.dtype).name])
    if groups is None and proportions:
        test = mcnemar(*(exact_matches(one.label, one.prediction) for one in (first, second)))
        low, high = bonett_price(test.only_first, test.only_second, len(first.label), confidence)
        interval = Interval(confidence, low, high, "bonett-price")
        for name in proportions:
            value = found[name].value
            if value is not None:
                found[name] = PairedDifference(value, interval.around(value), test.p_value)
    return found


def _statistics_of_both(first: Any, second: Any, groups: np.ndarray | None) -> Iterator[tuple[Statistic, Statistic]]:
    """Yields the statistics of two models, of the same units."""
    if groups is not None or problem_of(first.label.dtype) is not SINGLE_LABEL:
        units = Units.single(len(first.label)) if groups is None else Units.groups(groups)
        yield from zip(statistics_of(first, units), statistics_of(second, units), strict=True)
        return
    units = Units.single(len(first.label))
    cells = Units.alike(first.label, first.prediction, second.prediction)
    changes = [after - before for before, after in zip(losses_of(first), losses_of(second), strict=True)]
    losses = Units.similar(changes[0], *changes)
    both = (statistics_of_classes(one, units, cells, losses) for one in (first, second))
    yield from zip(*both, strict=True)
