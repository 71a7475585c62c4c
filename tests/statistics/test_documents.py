"""Intervals of the harness' metrics from documents' values."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from dist_eval.statistics.documents import FORMS, NO_MEAN, VALUE, document_interval, document_statistic, find_form
from dist_eval.statistics.intervals import wilson

DRAW = np.random.default_rng(0)
LIKELIHOODS = DRAW.normal(-30, 8, 200).tolist()
WEIGHTED = [(value, int(words)) for value, words in zip(LIKELIHOODS, DRAW.integers(3, 30, 200), strict=True)]
RATIO = sum(value for value, _ in WEIGHTED) / sum(words for _, words in WEIGHTED)


def test_a_share_has_wilsons_interval() -> None:
    interval = document_interval([1.0] * 30 + [0.0] * 10, 0.75, 0.9)
    assert interval.limits == wilson(30, 40, 0.9)
    assert (interval.method, interval.confidence) == ("wilson", 0.9)


@pytest.mark.parametrize(
    ("values", "value"),
    [
        (LIKELIHOODS, float(np.mean(LIKELIHOODS))),
        ([value / 10 for value in LIKELIHOODS], math.exp(-float(np.mean(LIKELIHOODS)) / 10)),
        (WEIGHTED, RATIO),
        (WEIGHTED, math.exp(-RATIO)),
        ([list(pair) for pair in WEIGHTED], -RATIO / math.log(2)),
    ],
    ids=["mean", "perplexity", "weighted mean", "weighted perplexity", "bits"],
)
def test_means_and_functions_of_them_are_resampled(values: list[Any], value: float) -> None:
    interval = document_interval(values, value, 0.95)
    assert interval.low is not None and interval.high is not None
    assert interval.low < value < interval.high
    assert interval.high - interval.low < abs(value) / 2
    assert interval.method == "bca"


@pytest.mark.parametrize(
    ("values", "value", "reason"),
    [
        (LIKELIHOODS, 17.0, NO_MEAN),
        ([(1, 0)] * 30, 0.3, NO_MEAN),
        (["a", "b"], 0.5, NO_MEAN),
        ([(1, 2, 3)] * 30, 2.0, NO_MEAN),
        ([], 0.5, NO_MEAN),
        (LIKELIHOODS, None, "undefined"),
        (LIKELIHOODS[:5], float(np.mean(LIKELIHOODS[:5])), "fewer than 20 examples: too few for the bootstrap"),
    ],
)
def test_anything_else_has_a_reason(values: list[Any], value: float | None, reason: str) -> None:
    assert document_interval(values, value, 0.95).reason == reason


def test_a_metric_that_several_functions_give_is_the_mean() -> None:
    assert find_form([0.0] * 30, 0.0) is FORMS[0]
    assert document_statistic([0.0] * 30, FORMS[0]).names == (VALUE,)
