"""Intervals of the harness' metrics from documents' values."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from dist_eval.statistics.documents import NO_MEAN, document_interval
from dist_eval.statistics.intervals import wilson

DRAW = np.random.default_rng(0)
LIKELIHOODS = DRAW.normal(-30, 8, 200).tolist()
WEIGHTED = [(value, int(words)) for value, words in zip(LIKELIHOODS, DRAW.integers(3, 30, 200), strict=True)]
RATIO = sum(value for value, _ in WEIGHTED) / sum(words for _, words in WEIGHTED)


def test_a_share_has_wilsons_interval() -> None:
    interval = document_interval([1.0] * 30 + [0.0] * 10, 0.75, "mean", 0.9, is_share=True)
    assert interval.limits == wilson(30, 40, 0.9)
    assert (interval.method, interval.confidence) == ("wilson", 0.9)


def test_what_is_0_or_1_by_chance_only_has_not() -> None:
    never = document_interval([0.0] * 60, 0.0, "mean", 0.95)
    assert never.limits is None and "same value" in (never.reason or "")
    assert document_interval([1.0] * 30 + [0.0] * 10, 0.75, "mean", 0.9).method == "bca"


def test_documents_of_a_group_are_drawn_together_and_a_sample_says_more_the_larger_it_is() -> None:
    values = [1, 1, 1, 1, 0, 0, 0, 0] * 25
    alone = document_interval(values, 0.5, "mean", 0.95, is_share=True)
    grouped = document_interval(values, 0.5, "mean", 0.95, is_share=True, groups=np.arange(200) // 4)
    most = document_interval(values, 0.5, "mean", 0.95, is_share=True, sampling_fraction=0.75)
    widths = [one.high - one.low for one in (alone, grouped, most) if one.low is not None and one.high is not None]
    assert (alone.method, grouped.method, most.limits) == ("wilson", "bca", wilson(100, 200, 0.95, 0.75))
    assert widths[1] == pytest.approx(2 * widths[0], rel=0.1), "as if there were a quarter as many"
    assert widths[2] == pytest.approx(widths[0] / 2, rel=0.1)


@pytest.mark.parametrize(
    ("values", "value", "aggregation"),
    [
        (LIKELIHOODS, float(np.mean(LIKELIHOODS)), "mean"),
        ([value / 10 for value in LIKELIHOODS], math.exp(-float(np.mean(LIKELIHOODS)) / 10), "perplexity"),
        (WEIGHTED, math.exp(-RATIO), "weighted_perplexity"),
        ([list(pair) for pair in WEIGHTED], -RATIO / math.log(2), "bits_per_byte"),
    ],
)
def test_means_and_functions_of_them_are_resampled(values: list[Any], value: float, aggregation: str) -> None:
    interval = document_interval(values, value, aggregation, 0.95)
    assert interval.low is not None and interval.high is not None
    assert interval.low < value < interval.high
    assert interval.high - interval.low < abs(value) / 2
    assert interval.method == "bca"


PAIRS = [(1, 1)] * 12 + [(1, 0)] * 4 + [(0, 1)] * 20 + [(0, 0)] * 44
"""Labels and predictions, whose F1 happens to be the ratio of their sums."""


@pytest.mark.parametrize(
    ("values", "value", "aggregation", "reason"),
    [
        (LIKELIHOODS, 17.0, "mean", NO_MEAN),
        (PAIRS, 0.5, "f1_score", NO_MEAN),
        (PAIRS, 0.5, None, NO_MEAN),
        (PAIRS, 0.5, "mean", NO_MEAN),
        (["a", "b"], 0.5, "mean", NO_MEAN),
        ([(1, 2, 3)] * 30, 2.0, "weighted_perplexity", NO_MEAN),
        ([], 0.5, "mean", NO_MEAN),
        (LIKELIHOODS, None, "mean", "undefined"),
        (LIKELIHOODS[:5], float(np.mean(LIKELIHOODS[:5])), "mean", "fewer than 20 examples: too few for the bootstrap"),
    ],
)
def test_anything_else_has_a_reason(
    values: list[Any], value: float | None, aggregation: str | None, reason: str
) -> None:
    assert document_interval(values, value, aggregation, 0.95).reason == reason
