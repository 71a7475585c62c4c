"""Exact match, with the normalization of SQuAD's evaluation script."""

from __future__ import annotations

import pytest

from dist_eval.metrics.exact_match import exact_match, normalized


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The  Cat's\thats, an (odd) pair!", "cats hats odd pair"),
        ("A.N. Other", "other"),  # punctuation first: "an other"
        ("theatre", "theatre"),
        ("ÀÉ – «x»", "àé – «x»"),  # ASCII punctuation only
        ("the", ""),
    ],
)
def test_normalization_is_that_of_squad(text: str, expected: str) -> None:
    assert normalized(text) == expected


def test_a_text_may_be_any_of_the_references() -> None:
    assert exact_match(" Paris\n", ["Rome", "Paris"]) == (True, True)
    assert exact_match("the paris.", ["Rome", "Paris"]) == (True, False)
    assert exact_match("Paris, France", ["Rome", "Paris"]) == (False, False)
