"""Calibration: scikit-learn's values, and cases computed by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.calibration import calibration_curve
from sklearn.metrics import brier_score_loss

from dist_eval.metrics.calibration import BINS, EDGES, Confidences
from dist_eval.metrics.computing import compute_metrics
from dist_eval.metrics.predictions import Predictions
from dist_eval.petals.base_model.problem_types import MULTI_LABEL


def classified(examples: int, classes: int, seed: int, scale: float) -> Predictions:
    generator = np.random.default_rng(seed)
    logits = generator.normal(scale=scale, size=(examples, classes))
    return Predictions.from_logits(np.arange(examples), generator.integers(classes, size=examples), logits)


def labelled(examples: int, labels: int, seed: int) -> Predictions:
    generator = np.random.default_rng(seed)
    label = generator.random((examples, labels)) < 0.4
    return Predictions.from_logits(np.arange(examples), label, generator.normal(size=label.shape), MULTI_LABEL)


def calibration_of(predictions: Predictions) -> dict[str, float | None]:
    values = compute_metrics(predictions, [str(number) for number in range(predictions.num_labels)]).values
    return {name: values[name] for name in ("ece", "brier")}


several = st.integers(1, 60), st.integers(2, 5), st.integers(0, 1000)


@settings(max_examples=80)
@given(*several, st.sampled_from([0.1, 1.0, 20.0]))
def test_figures_of_classes_are_scikit_learns(examples: int, classes: int, seed: int, scale: float) -> None:
    predictions = classified(examples, classes, seed, scale)
    found, probabilities = calibration_of(predictions), predictions.probabilities
    truth = np.eye(classes)[predictions.label]
    assert found["brier"] == pytest.approx(((probabilities - truth) ** 2).sum(axis=1).mean())
    if classes == 2:
        assert found["brier"] == pytest.approx(2 * brier_score_loss(predictions.label, probabilities[:, 1]))
    top = probabilities.max(axis=1).clip(0, 1)
    is_right = predictions.label == predictions.prediction
    assert found["ece"] == pytest.approx(by_scikit_learn(is_right, top), abs=1e-12)


@settings(max_examples=40)
@given(*several)
def test_figures_of_labels_are_means_of_scikit_learns(examples: int, labels: int, seed: int) -> None:
    predictions = labelled(examples, labels, seed)
    found, probabilities = calibration_of(predictions), predictions.probabilities
    columns = [(predictions.label[:, number], probabilities[:, number]) for number in range(labels)]
    assert found["ece"] == pytest.approx(np.mean([by_scikit_learn(*column) for column in columns]), abs=1e-12)
    briers = [brier_score_loss(label, probability, pos_label=True) for label, probability in columns]
    assert found["brier"] == pytest.approx(np.mean(briers))


def by_scikit_learn(correct: np.ndarray, confidence: np.ndarray) -> float:
    shares, means = calibration_curve(correct.astype(int), confidence, n_bins=BINS)
    counts = np.histogram(confidence, bins=np.nextafter(EDGES, 2))[0]  # an edge belongs to the bin below
    counts[0] += (confidence == 0).sum()
    return float((counts[counts > 0] * np.abs(shares - means)).sum() / len(confidence))


def test_a_case_worked_out_by_hand() -> None:
    # three examples in the bin 0.8 to 0.8667, two of them right; one, wrong, in 0.5333 to 0.6
    confidence = np.array([0.81, 0.82, 0.83, 0.6])
    confidences = Confidences(confidence, np.array([True, True, False, False]), np.zeros(4))
    assert confidences.error() == pytest.approx((abs(2 - 2.46) + 0.6) / 4)
    assert confidences.bins.tolist() == [12, 12, 12, 8]
    assert confidences.error(np.array([2, 0, 1, 3.0])) == pytest.approx((abs(2 - 2.45) + 1.8) / 6)


def test_an_edge_belongs_to_the_bin_below_and_the_ends_to_the_outer_ones() -> None:
    for values, bins in ((EDGES, [0, *range(BINS)]), (np.nextafter(EDGES[:-1], 2), [*range(BINS)])):
        assert Confidences(values, values > 2, values).bins.tolist() == bins


def test_confident_and_correct_is_calibrated_and_confident_and_wrong_is_the_worst_case() -> None:
    logits = np.array([[90.0, 0.0], [0.0, 90.0]])
    right, wrong = (Predictions.from_logits(np.arange(2), np.array(label), logits) for label in ([0, 1], [1, 0]))
    assert calibration_of(right) == pytest.approx({"ece": 0, "brier": 0})
    assert calibration_of(wrong) == pytest.approx({"ece": 1, "brier": 2})
