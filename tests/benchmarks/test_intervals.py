"""The benchmark of intervals and comparisons: what figures are compared with is right."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats
from sklearn import metrics as sk

from benchmarks.intervals import POPULATIONS, Population, power_of_mcnemar


@pytest.mark.parametrize("population", POPULATIONS, ids=lambda population: population.name)
def test_a_populations_truth_is_that_of_a_huge_sample(population: Population) -> None:
    cells = population.cells
    assert cells.sum() == pytest.approx(1)
    assert (cells > 0).all()
    label, prediction = (axis.ravel() for axis in np.indices(cells.shape))
    weights = cells.ravel()
    truth = population.truth()
    assert truth["mcc"] == pytest.approx(sk.matthews_corrcoef(label, prediction, sample_weight=weights))
    assert truth["f1_macro"] == pytest.approx(sk.f1_score(label, prediction, sample_weight=weights, average="macro"))


@pytest.mark.parametrize(("better", "worse"), [(0.2, 0.1), (0.15, 0.15), (0.3, 0.0)])
def test_the_power_of_the_exact_test_is_the_probability_of_what_it_rejects(better: float, worse: float) -> None:
    examples, power = 20, 0.0
    for first in range(examples + 1):
        for second in range(examples + 1 - first):
            if first + second and stats.binomtest(first, first + second).pvalue <= 0.05:
                power += stats.multinomial.pmf(
                    [first, second, examples - first - second], examples, [worse, better, 1 - better - worse]
                )
    assert power_of_mcnemar(examples, better, worse) == pytest.approx(power, rel=1e-9)
