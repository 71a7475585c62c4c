"""Paired comparison of two models: McNemar's test, the paired bootstrap, and Holm's correction.

Both models must have been evaluated on the same examples. This module sees arrays only and cannot check that the data
are the same; `dist_eval.compare` does.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from dist_eval.metrics.catalogue import accuracy_names
from dist_eval.metrics.definitions import losses_of, statistics_of, statistics_of_classes
from dist_eval.metrics.predictions import Predictions
from dist_eval.metrics.statistic import Difference, Statistic
from dist_eval.metrics.units import SEED, Units
from dist_eval.petals.base_model.problem_types import SINGLE_LABEL, exact_matches, problem_of
from dist_eval.results.scores import Interval
from dist_eval.statistics.evidence import gather_evidence
from dist_eval.statistics.intervals import make_interval
from dist_eval.statistics.sampling import normal_quantile

_EXACT_UP_TO = 1_000


@dataclass(frozen=True)
class McNemar:
    """The result of McNemar's test of equal accuracy.

    Attributes:
        only_first: examples that only the first model gets right.
        only_second: examples that only the second model gets right.
        p_value: two-sided p-value.
        method: "exact" or "chi-square".
    """

    only_first: int
    only_second: int
    p_value: float
    method: str


def mcnemar(first_right: np.ndarray, second_right: np.ndarray) -> McNemar:
    """Tests whether two models have the same accuracy on the same examples.

    Q. McNemar (1947), "Note on the sampling error of the difference between correlated proportions or percentages",
    Psychometrika 12, 153-157. Under the null hypothesis, half of the discordant examples, those that exactly one model
    gets right, are the first model's. Up to 1,000 discordant examples the p-value is the exact binomial one; above, the
    chi-square approximation with the continuity correction of A. L. Edwards (1948), Psychometrika 13, 185-187, is as
    accurate.

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
    """Computes the interval for the accuracy of the second model minus that of the first one.

    D. G. Bonett and R. M. Price (2012), "Adjusted Wald confidence interval for a difference of binomial proportions
    based on paired data", Journal of Educational and Behavioral Statistics 37, 479-488; recommended by M. W. Fagerland,
    S. Lydersen and P. Laake (2014), "Recommended tests and confidence intervals for paired binomial proportions",
    Statistics in Medicine 33, 2850-2875. Unlike the bootstrap it is valid even if few examples are discordant.

    Returns:
        Its lower and upper limit.
    """
    first, second = (only_first + 1) / (examples + 2), (only_second + 1) / (examples + 2)
    error = float(np.sqrt((first + second - (second - first) ** 2) / (examples + 2)))
    half = normal_quantile(confidence) * error
    return max(-1.0, second - first - half), min(1.0, second - first + half)


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusts p-values for multiple testing, controlling the family-wise error rate.

    S. Holm (1979), "A simple sequentially rejective multiple test procedure", Scandinavian Journal of Statistics 6,
    65-70. It is valid under any dependence between the tests.

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
    """The difference of a metric between two models, second minus first.

    Attributes:
        value: the difference, None if either metric is undefined.
        interval: its confidence interval.
        p_value: two-sided p-value of the hypothesis of no difference; None if unknown.
    """

    value: float | None
    interval: Interval
    p_value: float | None


def paired_differences(
    first: Predictions,
    second: Predictions,
    *,
    metrics: Collection[str] | None = None,
    confidence: float = 0.95,
    extra_statistics: Sequence[tuple[Statistic, Statistic]] = (),
    resamples: int | None = None,
    seed: int = SEED,
) -> dict[str, PairedDifference]:
    """Compares the metrics of two models on the same examples by the paired bootstrap.

    For the fraction of correct predictions (`metrics.catalogue.accuracy_names`), without groups, the test is McNemar's
    and the interval that of `bonett_price`. For all others both models' predictions are resampled together
    (B. Efron and R. J. Tibshirani 1993, "An Introduction to the Bootstrap", chapter 8), and the p-value is that of
    `Evidence.p_value`.

    Args:
        first: the first model's predictions, at least one example. Their groups are resampled as in
            `metric_intervals`.
        second: the second model's, of the same examples in the same order; its groups are not used.
        metrics: names of the metrics to compare; by default all. Unknown names are ignored.
        confidence: confidence level of the intervals.
        extra_statistics: statistics of metrics that this module does not cover, as pairs of the first and the second
            model's, over the units of `Units.of`.
        resamples: number of resamples (see `gather_evidence`).
        seed: seed of the resampling.

    Returns:
        The differences by name of the metric.

    Raises:
        ValueError: the labels or the number of classes differ, so these are not predictions of the same examples.

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
    found: dict[str, PairedDifference] = {}
    for pair in (*_statistics_of_both(first, second), *extra_statistics):
        found |= differences_of(pair, metrics=metrics, confidence=confidence, resamples=resamples, seed=seed)
    proportions = found.keys() & set(accuracy_names(problem_of(first.label.dtype).name))
    if first.group is None and proportions:
        before, after = (exact_matches(one.label, one.prediction) for one in (first, second))
        shares, _ = difference_of_shares(before, after, confidence)
        found |= {name: shares for name in proportions if found[name].value is not None}
    return found


def differences_of(
    pair: tuple[Statistic, Statistic],
    *,
    metrics: Collection[str] | None = None,
    confidence: float = 0.95,
    resamples: int | None = None,
    seed: int = SEED,
) -> dict[str, PairedDifference]:
    """Compares the metrics of one statistic by the paired bootstrap (see `paired_differences`)."""
    difference = Difference(*pair)
    if metrics is not None and not set(metrics) & set(difference.names):
        return {}
    undefined = Interval(confidence=confidence, reason="the metric is undefined for one of the runs")
    whole = {name: value for name, value in difference.observed().items() if metrics is None or name in metrics}
    values = {name: value for name, value in whole.items() if np.isfinite(value)}
    evidence = gather_evidence(difference, values, resamples=resamples, seed=seed)
    return {name: PairedDifference(None, undefined, None) for name in whole} | {
        name: PairedDifference(one.value, one.interval(confidence), one.p_value()) for name, one in evidence.items()
    }


def difference_of_shares(
    first_right: np.ndarray, second_right: np.ndarray, confidence: float = 0.95
) -> tuple[PairedDifference, McNemar]:
    """Compares the shares of right answers of two models by McNemar's test, with the interval of `bonett_price`.

    Args:
        first_right: whether the first model is right, bool of shape [n].
        second_right: whether the second model is right, bool of shape [n].
        confidence: confidence level of the interval.
    """
    test = mcnemar(first_right, second_right)
    value = float(second_right.mean() - first_right.mean())
    limits = bonett_price(test.only_first, test.only_second, len(first_right), confidence)
    interval = make_interval(value, limits, "bonett-price", confidence=confidence)
    return PairedDifference(value, interval, test.p_value), test


def _statistics_of_both(first: Predictions, second: Predictions) -> Iterator[tuple[Statistic, Statistic]]:
    """Yields the statistics of two models over the same units."""
    units = Units.of(len(first), first.group)
    if units.grouped or first.problem is not SINGLE_LABEL:
        yield from zip(statistics_of(first, units), statistics_of(second, units), strict=True)
        return
    cells = Units.by_value(first.label, first.prediction, second.prediction)
    changes = [after - before for before, after in zip(losses_of(first), losses_of(second), strict=True)]
    losses = Units.by_quantile(changes[0], *changes)
    both = (statistics_of_classes(one, units, cells, losses) for one in (first, second))
    yield from zip(*both, strict=True)
