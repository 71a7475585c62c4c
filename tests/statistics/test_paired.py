"""Comparing two models on the same examples: the tests' p-values are those of references, and swapping them negates."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from dist_eval.metrics.computing import compute_metrics
from dist_eval.metrics.predictions import Predictions
from dist_eval.petals.base_model.problem_types import MULTI_LABEL, REGRESSION
from dist_eval.statistics import bonett_price, holm, mcnemar, paired_differences


def outcomes(both: int, first: int, second: int, none: int) -> tuple[np.ndarray, np.ndarray]:
    counts = [both, first, second, none]
    return np.repeat([True, True, False, False], counts), np.repeat([True, False, True, False], counts)


@settings(max_examples=100)
@given(st.integers(0, 50), st.integers(0, 60), st.integers(0, 60))
def test_few_discordant_examples_use_the_exact_test(both: int, first: int, second: int) -> None:
    test = mcnemar(*outcomes(both, first, second, 5))
    assert (test.only_first, test.only_second, test.method) == (first, second, "exact")
    # of n fair coins, the probability of a result at least as uneven
    tosses = stats.binom(first + second, 0.5)
    assert test.p_value == pytest.approx(min(1.0, 2 * tosses.cdf(min(first, second))), rel=1e-9)


@pytest.mark.parametrize(("first", "second"), [(501, 500), (600, 480), (900, 700), (2000, 0)])
def test_many_differing_examples_have_the_chi_square_of_mcnemar_and_edwards(first: int, second: int) -> None:
    test = mcnemar(*outcomes(10, first, second, 10))
    assert test.method == "chi-square"
    statistic = (abs(first - second) - 1) ** 2 / (first + second)
    assert test.p_value == pytest.approx(stats.chi2(1).sf(statistic), rel=1e-12)
    exact = stats.binomtest(first, first + second).pvalue
    assert test.p_value == pytest.approx(exact, rel=0.05, abs=1e-12)


def test_models_that_are_right_on_the_same_examples_do_not_differ() -> None:
    assert mcnemar(*outcomes(7, 0, 0, 3)).p_value == 1.0


def test_holms_correction_worked_out_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.7]) == [1.0, 1.0]
    assert holm([]) == []


@settings(max_examples=100)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_holms_correction_rejects_what_his_procedure_rejects(p_values: list[float]) -> None:
    corrected = holm(p_values)
    assert all(own <= other <= 1 for own, other in zip(p_values, corrected, strict=True))
    for level in (0.01, 0.05, 0.3):
        rejected, ordered = 0, sorted(p_values)
        while rejected < len(ordered) and ordered[rejected] * (len(ordered) - rejected) <= level:
            rejected += 1
        assert sum(value <= level for value in corrected) == rejected


def pair(examples: int, classes: int, seed: int = 0) -> tuple[Predictions, Predictions]:
    """Two models that agree more often than by chance, of which the second is better."""
    generator = np.random.default_rng(seed)
    label = generator.integers(classes, size=examples)
    logits = generator.normal(size=(examples, classes))
    logits[np.arange(examples), label] += 1
    better = logits + generator.normal(scale=0.5, size=logits.shape)
    better[np.arange(examples), label] += 0.8
    first, second = (Predictions.from_logits(np.arange(examples), label, one) for one in (logits, better))
    return first, second


@pytest.mark.parametrize("classes", [2, 3])
def test_differences_are_those_of_the_metrics(classes: int) -> None:
    first, second = pair(300, classes)
    values = [compute_metrics(one, [str(number) for number in range(classes)]).values for one in (first, second)]
    found = paired_differences(first, second, resamples=500)
    assert set(found) == set(values[0])
    for name, one in found.items():
        before, after = values[0][name], values[1][name]
        assert before is not None and after is not None
        assert one.value == pytest.approx(after - before, abs=1e-12), name
        if name == "ece":
            assert one.interval.low is None and one.p_value is None
            continue
        assert one.interval.low < one.value < one.interval.high, name
        assert one.p_value is not None and 0 < one.p_value <= 1
    assert found["loss"].p_value == pytest.approx(1 / 501)


def test_differences_of_proportions_have_mcnemars_test_and_bonett_and_prices_interval() -> None:
    first, second = pair(200, 3)
    found = paired_differences(first, second, confidence=0.9)
    test = mcnemar(first.label == first.prediction, second.label == second.prediction)
    for name in ("accuracy", "f1_micro", "recall_weighted"):
        assert found[name].p_value == test.p_value
        assert found[name].interval.method == "bonett-price"
        ends = bonett_price(test.only_first, test.only_second, 200, 0.9)
        assert (found[name].interval.low, found[name].interval.high) == ends


def test_bonett_and_prices_interval_worked_out_by_hand() -> None:
    # 5 examples of 98 favour the second model, 1 the first: shares 6/100 and 2/100, variance (0.08 - 0.0016)/100
    assert bonett_price(1, 5, 98) == pytest.approx((0.04 - 1.96 * 0.028, 0.04 + 1.96 * 0.028), abs=1e-5)
    assert bonett_price(5, 1, 98) == pytest.approx((-0.09488, 0.01488), abs=1e-5)
    low, high = bonett_price(0, 0, 100)
    assert low == -high < 0


@pytest.mark.parametrize("shares", [(0.1, 0.1), (0.1, 0.2), (0.02, 0.05), (0.3, 0.05)])
def test_bonett_and_prices_interval_contains_the_truth_as_often_as_it_says(shares: tuple[float, float]) -> None:
    examples, covered = 60, 0.0
    for first in range(examples + 1):
        for second in range(examples + 1 - first):
            low, high = bonett_price(first, second, examples)
            if low <= shares[1] - shares[0] <= high:
                counts = [first, second, examples - first - second]
                covered += stats.multinomial.pmf(counts, examples, [*shares, 1 - sum(shares)])
    assert 0.94 < covered < 0.995


def test_resampled_differences_are_near_scipys() -> None:
    first, second = pair(200, 3)
    expected = stats.bootstrap((second.loss - first.loss,), np.mean, rng=1, n_resamples=4000).confidence_interval
    found = paired_differences(first, second)["loss"]
    width = expected.high - expected.low
    assert (found.interval.low, found.interval.high) == pytest.approx((expected.low, expected.high), abs=0.07 * width)


def test_differences_of_other_problems_are_near_scipys() -> None:
    generator = np.random.default_rng(5)
    truth, noise = generator.normal(size=(200, 1)), generator.normal(size=(2, 200, 1))
    first, second = (
        Predictions.from_logits(np.arange(200), truth, truth + one, REGRESSION) for one in (noise[0], 0.8 * noise[1])
    )
    errors = [np.abs(one.prediction - one.label)[:, 0] for one in (first, second)]
    has = generator.random((200, 4)) < 0.4
    weak, strong = (
        Predictions.from_logits(
            np.arange(200), has, skill * (2.0 * has - 1) + generator.normal(size=has.shape), MULTI_LABEL
        )
        for skill in (0.5, 0.8)
    )
    wrong = [(one.prediction != one.label).mean(axis=1) for one in (weak, strong)]
    for name, models, values in (("mae", (first, second), errors), ("hamming_loss", (weak, strong), wrong)):
        found = paired_differences(*models, metrics=[name])[name]
        change = values[1] - values[0]
        expected = stats.bootstrap((change,), np.mean, rng=1, n_resamples=4000).confidence_interval
        assert found.value == pytest.approx(change.mean())
        assert (found.interval.low, found.interval.high) == pytest.approx(
            (expected.low, expected.high), abs=0.07 * (expected.high - expected.low)
        )


def test_the_share_of_examples_with_all_labels_right_has_mcnemars_test() -> None:
    generator = np.random.default_rng(6)
    has = generator.random((120, 3)) < 0.4
    models = [
        Predictions.from_logits(
            np.arange(120), has, skill * (2.0 * has - 1) + generator.normal(size=has.shape), MULTI_LABEL
        )
        for skill in (1.0, 1.5)
    ]
    test = mcnemar(*((one.label == one.prediction).all(axis=1) for one in models))
    found = paired_differences(*models, metrics=["subset_accuracy"])["subset_accuracy"]
    assert found.p_value == test.p_value and found.interval.method == "bonett-price"
    assert found.value == pytest.approx((test.only_second - test.only_first) / 120)


def test_differences_of_very_many_examples_are_those_of_few_kinds() -> None:
    first, second = pair(60_000, 2)
    found = paired_differences(first, second, metrics=["loss"])
    assert set(found) == {"loss"}
    change = second.loss - first.loss
    low, high = stats.norm.interval(0.95, change.mean(), stats.sem(change))
    assert found["loss"].value == pytest.approx(change.mean(), rel=1e-9)
    assert found["loss"].interval.resamples == 9_999
    assert (found["loss"].interval.low, found["loss"].interval.high) == pytest.approx(
        (low, high), abs=0.03 * (high - low)
    )


@settings(max_examples=40)
@given(st.integers(0, 10_000), st.sampled_from([0.8, 0.9, 0.95]), st.sampled_from([199, 999]))
def test_the_interval_of_a_difference_says_what_its_p_value_says(seed: int, confidence: float, resamples: int) -> None:
    generator = np.random.default_rng(seed)
    label = np.arange(60) % 3
    first, second = (
        Predictions.from_logits(np.arange(60), label, generator.normal(size=(60, 3)) + np.eye(3)[label]) for _ in "ab"
    )
    found = paired_differences(first, second, confidence=confidence, resamples=resamples)
    for name in ("f1_macro", "mcc", "loss", "brier", "roc_auc_ovr_macro"):
        one = found[name]
        if one.p_value is None or one.interval.low is None or one.interval.high is None:
            continue
        assert one.interval.method == "symmetric"
        excludes = not one.interval.low <= 0 <= one.interval.high
        assert excludes == (one.p_value <= 1 - confidence + 1e-9), (name, one)
        assert one.value == pytest.approx((one.interval.low + one.interval.high) / 2)


def test_swapping_the_models_negates_the_differences() -> None:
    first, second = pair(150, 3)
    there, back = paired_differences(first, second, resamples=300), paired_differences(second, first, resamples=300)
    for name, one in there.items():
        assert back[name].value == pytest.approx(-one.value, abs=1e-12)
    for name in ("loss", "roc_auc_ovr_macro"):  # the same examples are drawn both ways
        assert back[name].p_value == there[name].p_value
        assert back[name].interval.low == pytest.approx(-there[name].interval.high, abs=0.02)


def test_a_model_does_not_differ_from_itself() -> None:
    first, _ = pair(50, 2)
    for name, one in paired_differences(first, first, resamples=100).items():
        if name == "ece":
            continue
        assert (one.value, one.p_value) == (0.0, 1.0)
        if one.interval.method == "bonett-price":  # knows what few examples cannot rule out
            assert one.interval.low == -one.interval.high < 0, name
        else:
            assert one.interval.low is None and "same value" in (one.interval.reason or ""), name


def test_what_one_model_leaves_undefined_has_no_difference() -> None:
    first, _ = pair(40, 2)
    never = Predictions.from_logits(first.index, first.label, np.tile([1.0, 0.0], (40, 1)))
    found = paired_differences(first, never, resamples=100)
    assert found["mcc"].value is None and found["mcc"].p_value is None
    assert found["mcc"].interval.reason == "the metric is undefined for one of the runs"
    assert found["accuracy"].value is not None


def test_groups_are_resampled_together() -> None:
    first, second = pair(200, 2)
    rows = np.repeat(np.arange(200), 3)
    copies = [
        Predictions(*(getattr(one, name)[rows] for name in ("index", "label", "logits", "loss")))
        for one in (first, second)
    ]
    alone = paired_differences(first.in_groups(np.arange(200)), second, resamples=300)
    grouped = paired_differences(copies[0].in_groups(rows), copies[1], resamples=300)
    for name, one in alone.items():
        assert grouped[name].p_value == one.p_value, name
        tolerance = 1e-4 if name == "roc_auc" else 1e-9  # its correction adds up the influences of examples
        assert grouped[name].interval.low == pytest.approx(one.interval.low, abs=tolerance), name


def test_different_labels_are_rejected() -> None:
    first, second = pair(40, 2)
    other = Predictions.from_logits(second.index, 1 - second.label, second.logits)
    with pytest.raises(ValueError, match="same examples, with the same labels"):
        paired_differences(first, other)
    with pytest.raises(ValueError, match="same examples"):
        paired_differences(first, pair(41, 2)[1])
