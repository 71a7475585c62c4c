"""How many examples a precision takes: enough, and no more than that."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dist_eval.statistics import wilson
from dist_eval.statistics.sampling import examples_for_precision, half_width

precisions = st.floats(1e-4, 0.49)
levels = st.floats(0.5, 0.999)
populations = st.none() | st.integers(1, 10**7)


@settings(max_examples=300)
@given(precisions, levels, populations)
def test_the_interval_of_one_half_is_that_narrow_and_with_one_example_fewer_it_is_not(
    precision: float, confidence: float, population: int | None
) -> None:
    examples = examples_for_precision(precision, confidence, population)
    assert examples >= 1 and (population is None or examples <= population)
    assert half_width(examples, confidence, population) <= precision
    assert examples == 1 or half_width(examples - 1, confidence, population) > precision


@settings(max_examples=200)
@given(st.integers(1, 3000), st.floats(0, 1), levels, populations)
def test_no_proportion_has_a_wider_interval_than_one_half(
    examples: int, share: float, confidence: float, population: int | None
) -> None:
    assume(population is None or examples <= population)
    fraction = examples / population if population else 0.0
    low, high = wilson(round(share * examples), examples, confidence, fraction)
    assert (high - low) / 2 <= half_width(examples, confidence, population) * (1 + 1e-9) + 1e-15


@pytest.mark.parametrize(
    ("precision", "population", "examples"), [(0.01, None, 9600), (0.01, 67_349, 8403), (0.05, 100, 80), (1e-9, 50, 50)]
)
def test_known_numbers(precision: float, population: int | None, examples: int) -> None:
    assert examples_for_precision(precision, population=population) == examples
