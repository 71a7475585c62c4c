"""Ranking metrics of large logits, and of ties: scikit-learn's, of log-odds in exact arithmetic."""

from __future__ import annotations

import itertools
from decimal import Decimal, localcontext
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import sklearn.metrics as sk
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from samples import names_of

from dist_eval.metrics.computing import compute_metrics
from dist_eval.metrics.predictions import Predictions
from dist_eval.metrics.ranking import probabilities_rank_alike, ranking_scores
from dist_eval.petals.base_model.problem_types import MULTI_LABEL
from dist_eval.runs.saved_samples import read_predictions, write_samples

AVERAGES = ("macro", "weighted")


def exact_ranks(logits: np.ndarray, number: int) -> np.ndarray:
    """Ranks rows by the log-odds of a class, with so many digits that only equal ones are equal.

    Rows that differ by less than float64 can keep, beside the largest of the other classes, are not asked for.
    """
    odds, margins = [], {}
    with localcontext() as context:
        context.prec = 300
        for row in logits.tolist():
            own = Fraction(row[number])
            others = sorted(Fraction(value) - own for place, value in enumerate(row) if place != number)
            differences = [Decimal(each.numerator) / Decimal(each.denominator) for each in others]
            rest = sum(((each - differences[-1]).exp() for each in differences[:-1]), Decimal(0))
            odds.append(-differences[-1].exp() * (1 + rest))
            margins[odds[-1]] = differences[-1], rest
        for one, other in itertools.pairwise(sorted(margins)):
            (margin, rest), (next_margin, next_rest) = margins[one], margins[other]
            assume(margin != next_margin or abs(rest - next_rest) > Decimal("1e-12") * max(rest, next_rest))
    return np.asarray([sorted(margins).index(each) for each in odds])


def whole_numbers(rows: int, classes: int, largest: int, seed: int) -> Predictions:
    """Predictions with logits that are whole numbers, many of which have the same differences."""
    draw = np.random.default_rng(seed)
    label = np.arange(rows) % classes
    logits = draw.integers(-largest, largest + 1, size=(rows, classes)) + 1.0
    logits[np.arange(rows), label] += largest // 3
    return Predictions.from_logits(np.arange(rows), label, logits)


@settings(max_examples=10, deadline=None)
@given(st.integers(2, 4), st.sampled_from([1, 3, 20, 100]), st.integers(0, 999))
@example(classes=3, largest=3, seed=0)
@example(classes=3, largest=100, seed=1)
def test_areas_under_roc_curves_are_those_of_exact_log_odds(classes: int, largest: int, seed: int) -> None:
    predictions = whole_numbers(40, classes, largest, seed)
    values = compute_metrics(predictions, names_of(predictions.num_labels)).values
    ranks = [exact_ranks(predictions.logits, number) for number in range(classes)]
    if classes == 2:
        assert values["roc_auc"] == pytest.approx(sk.roc_auc_score(predictions.label, ranks[1]), abs=1e-12)
        return
    areas = [sk.roc_auc_score(predictions.label == number, ranks[number]) for number in range(classes)]
    weights = np.bincount(predictions.label)
    assert values["roc_auc_ovr_macro"] == pytest.approx(np.mean(areas), abs=1e-12)
    assert values["roc_auc_ovr_weighted"] == pytest.approx(np.average(areas, weights=weights), abs=1e-12)


@pytest.mark.parametrize("shift", [-60.0, 0.0, 60.0])
def test_a_shift_of_all_margins_changes_no_rank(shift: float) -> None:
    draw = np.random.default_rng(0)
    label = np.arange(200) % 2
    margin = (draw.normal(size=200) + 1.4 * label + shift).astype(np.float32)
    binary = Predictions.from_logits(np.arange(200), label, np.stack([-margin / 2, margin / 2], axis=1))
    expected = sk.roc_auc_score(label, margin)
    assert 0.7 < expected < 0.95
    assert compute_metrics(binary, ["no", "yes"]).values["roc_auc"] == pytest.approx(expected, abs=1e-12)

    labels = np.stack([label, label[::-1]], axis=1) > 0
    logits = np.stack([margin, margin[::-1]], axis=1)
    several = Predictions.from_logits(np.arange(200), labels, logits, MULTI_LABEL)
    values = compute_metrics(several, ["a", "b"]).values
    for average in AVERAGES:
        assert values[f"roc_auc_{average}"] == pytest.approx(expected, abs=1e-12)
        precision = sk.average_precision_score(labels, logits, average=average)
        assert values[f"average_precision_{average}"] == pytest.approx(precision, abs=1e-12)


@settings(max_examples=30)
@given(st.integers(2, 6), st.integers(0, 999))
def test_ordinary_logits_are_ordered_as_their_probabilities(classes: int, seed: int) -> None:
    draw = np.random.default_rng(seed)
    predictions = Predictions.from_logits(np.arange(60), np.arange(60) % classes, draw.normal(size=(60, classes)))
    columns = zip(
        ranking_scores(predictions, range(classes)), predictions.probabilities_of(range(classes)), strict=True
    )
    for scores, probabilities in columns:
        np.testing.assert_array_equal(np.argsort(scores), np.argsort(probabilities))
    assert probabilities_rank_alike(predictions)


def test_logits_that_are_infinite_are_ranked_first_or_last() -> None:
    logits = np.array([[0, -np.inf, -np.inf], [0, 1, -np.inf], [-np.inf, 0, 1]], dtype=np.float32)
    with np.errstate(invalid="ignore"):
        predictions = Predictions.from_logits(np.arange(3), np.array([0, 1, 2]), logits)
    order = [np.argsort(scores).tolist() for scores in ranking_scores(predictions, range(3))]
    assert order[:2] == [[2, 1, 0], [0, 2, 1]] and order[2][-1] == 2


@pytest.mark.parametrize("largest", [1, 100])
def test_saved_predictions_have_logits_where_their_probabilities_would_rank_otherwise(
    tmp_path: Path, largest: int
) -> None:
    predictions = whole_numbers(60, 3, largest, seed=0)
    path, again = tmp_path / "p.parquet", tmp_path / "again.parquet"
    write_samples(path, predictions)
    saved = read_predictions(path)
    assert (saved.logits is not None) == (largest == 100)
    first, second = (compute_metrics(each, names_of(predictions.num_labels)) for each in (predictions, saved))
    assert first.values == second.values
    write_samples(again, saved)
    assert again.read_bytes() == path.read_bytes()
