"""Metrics in words."""

from __future__ import annotations

import pytest

from dist_eval.report.document import format_metric


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("accuracy", 0.5, "0.5000"),
        ("accuracy", 0.0, "0.0000"),
        ("accuracy", 0.00001234, "1.234e-05"),
        ("mae", 0.0, "0.000"),
        ("mae", 0.000012345, "1.234e-05"),
        ("mae", 12.345678, "12.35"),
        ("rmse", 1234.56, "1235"),
        ("mse", 123456.7, "1.235e+05"),
        ("r2", -123.45678, "-123.4568"),
        ("my_metric", 3.2e-9, "3.200e-09"),
    ],
)
def test_metrics_without_a_natural_scale_have_four_significant_digits(name: str, value: float, words: str) -> None:
    assert format_metric(name, value) == words
