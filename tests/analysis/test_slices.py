"""Slices: every row is in exactly one slice of each column, and metrics are those of the slice's examples."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from samples import synthetic

from dist_eval.analysis.slices import MOST_VALUES, Slicing, compute_slices
from dist_eval.metrics.catalogue import metric_names
from dist_eval.metrics.computing import compute_metrics
from dist_eval.metrics.metric_loading import synthetic_predictions
from dist_eval.metrics.predictions import Predictions
from dist_eval.petals.base_model.problem_types import MULTI_LABEL, PROBLEMS
from dist_eval.results.scores import Slice
from dist_eval.statistics import wilson


def sliced(values: Sequence[str | None]) -> list[tuple[str, str | None, int]]:
    slicing = Slicing.of_column("c", pa.array(values, pa.string()))
    counts = np.bincount(slicing.part_of, minlength=len(slicing.parts)).tolist()
    return [(part.kind, part.value, count) for part, count in zip(slicing.parts, counts, strict=True)]


def test_values_are_slices_the_most_frequent_first_and_the_missing_one_last() -> None:
    found = sliced(["web", "book", None, "web", "", "others"])
    assert found == [
        ("value", "web", 2),
        ("value", "", 1),
        ("value", "book", 1),
        ("value", "others", 1),
        ("missing", None, 1),
    ]


def test_of_many_values_the_most_frequent_have_a_slice_each() -> None:
    values = [f"v{number:03}" for number in range(MOST_VALUES + 7)]
    found = sliced([*values, *values[-3:]])
    assert [value for _, value, _ in found[:3]] == values[-3:]
    assert len(found) == MOST_VALUES + 1
    assert found[-1] == ("rest", "7 other values", 7)


def test_few_numbers_are_values_in_their_order() -> None:
    assert [value for _, value, _ in sliced(["10", "9", "10", "1", None])] == ["1", "9", "10", None]


@pytest.mark.parametrize(("start", "step"), [(1718000000.25, 10.5), (123456.1, 0.1), (0.1, 1.0)])
def test_ranges_of_similar_numbers_have_different_names(start: float, step: float) -> None:
    slicing = Slicing.of_column("c", pa.array([str(start + step * number) for number in range(200)]))
    ends = [end for part in slicing.parts for end in part.value.split(" to ")]
    assert len(set(ends)) == len(ends) > 4


def test_many_numbers_are_ranges_with_their_ends() -> None:
    numbers = np.random.default_rng(0).permutation(100)
    slicing = Slicing.of_column("c", pa.array([*map(str, numbers), "", None], pa.string()))
    ranges = [(part.value, part.low, part.high) for part in slicing.parts if part.kind == "range"]
    assert ranges == [
        ("0 to 19", 0, 19),
        ("20 to 39", 20, 39),
        ("40 to 59", 40, 59),
        ("60 to 79", 60, 79),
        ("80 to 99", 80, 99),
    ]
    assert [(part.kind, part.value) for part in slicing.parts[5:]] == [("value", ""), ("missing", None)]
    assert slicing.part_of.tolist() == [*(numbers // 20), 5, 6]


@pytest.mark.parametrize("odd", ["a", "nan", "inf", "1_0"])
def test_a_column_with_a_value_that_is_not_a_number_is_not_numeric(odd: str) -> None:
    slicing = Slicing.of_column("c", pa.array([*map(str, range(40)), odd], pa.string()))
    assert {part.kind for part in slicing.parts} == {"value"}


texts = st.one_of(st.none(), st.text("ab ", max_size=2), st.integers(-30, 60).map(str), st.floats(-1, 1).map(repr))


@settings(max_examples=150)
@given(st.lists(texts, min_size=1, max_size=200))
def test_every_row_is_in_one_slice_that_fits_it(values: list[str | None]) -> None:
    slicing = Slicing.of_column("c", pa.array(values, pa.string()))
    assert sorted(set(slicing.part_of.tolist())) == list(range(len(slicing.parts)))
    for value, number in zip(values, slicing.part_of, strict=True):
        part = slicing.parts[number]
        if part.kind == "range":
            assert value is not None and part.low is not None and part.high is not None
            assert part.low <= float(value) <= part.high
        elif part.kind == "rest":
            assert value not in {one.value for one in slicing.parts}
        elif value is not None and not value.strip() and part.kind == "value" and part.value is not None:
            assert not part.value.strip()
        else:
            assert part.value == value and (part.kind == "missing") == (value is None)
    ranges = [part for part in slicing.parts if part.kind == "range"]
    for first, second in itertools.pairwise(ranges):
        assert first.high is not None and second.low is not None and first.high < second.low


@settings(max_examples=80)
@given(st.lists(st.integers(1, 400), min_size=1, max_size=300))
def test_lengths_are_split_at_quantiles(lengths: list[int]) -> None:
    slicing = Slicing.of_lengths(np.asarray(lengths, dtype=np.int32))
    assert 1 <= len(slicing.parts) <= 5
    for length, number in zip(lengths, slicing.part_of, strict=True):
        part = slicing.parts[number]
        assert part.low is not None and part.high is not None and part.low <= length <= part.high
        assert (part.value or "").endswith(" tokens")
    if len(set(lengths)) == len(lengths) >= 5:
        counts = np.bincount(slicing.part_of)
        assert len(counts) == 5 and counts.max() - counts.min() <= 1


@pytest.mark.parametrize("name", PROBLEMS)
def test_metrics_are_those_of_the_examples_of_the_slice(name: str) -> None:
    predictions = synthetic_predictions(PROBLEMS[name], 3)
    names = ["a", "b", "c"]
    values = ["x" if row % 3 else "y" for row in range(len(predictions))]
    slicing = Slicing.of_column("c", pa.array(values))
    entries = compute_slices(predictions, slicing, names)
    assert sum(entry.n for entry in entries) == len(predictions)
    for number, entry in enumerate(entries):
        inside = predictions.at(np.flatnonzero(slicing.part_of == number))
        expected = compute_metrics(inside, names)
        assert entry.n == len(inside)
        gone = {"f1_macro", "balanced_accuracy"} & set(entry.undefined)  # see below
        assert entry.metrics == {
            figure: None if figure in gone else expected.values[figure] for figure in metric_names(name, "slices")
        }
        assert list(entry.intervals) == list(metric_names(name, "slices"))
        for figure, value in entry.metrics.items():
            assert (figure in entry.undefined) == (value is None)


def entry_of(examples: int, group: np.ndarray | None = None) -> Slice:
    slicing = Slicing.of_column("c", pa.array(["x"] * examples))
    return compute_slices(synthetic(examples, 3).in_groups(group), slicing, ["a", "b", "c"])[0]


def test_small_slices_have_wilsons_interval_only() -> None:
    small, large = entry_of(19), entry_of(200)
    right = round(small.metrics["accuracy"] * 19)
    ends = small.intervals["accuracy"]
    assert (ends.low, ends.high) == wilson(right, 19)
    assert small.intervals["loss"].low is None
    assert small.intervals["loss"].reason.startswith("fewer than 20 examples")
    assert large.intervals["f1_macro"].low < large.metrics["f1_macro"]
    assert large.intervals["f1_macro"].resamples == 1_999
    few_groups = entry_of(200, np.arange(200) % 12).intervals
    assert {one.reason[:20] for one in few_groups.values()} == {"fewer than 20 groups"}


def test_means_over_classes_need_enough_examples_of_every_class_of_the_data() -> None:
    predictions = synthetic(600, 3)
    kind = np.full(600, "x")
    kind[np.flatnonzero(predictions.label == 1)[19:]] = "y"  # leaves 19 examples of class b in x, and y without a and c
    x, y = sorted(
        compute_slices(predictions, Slicing.of_column("c", pa.array(kind.tolist())), ["a", "b", "c"]),
        key=lambda one: str(one.value),
    )
    why = "a class with fewer than 20 examples in the slice"
    for one in (x, y):
        assert one.undefined.items() >= dict.fromkeys(("f1_macro", "balanced_accuracy"), why).items()
        assert one.metrics["f1_macro"] is None and one.intervals["f1_macro"].reason == why
        assert one.metrics["accuracy"] is not None and one.intervals["loss"].low is not None
    half = Slicing.of_column("c", pa.array(["odd", "even"] * 300))
    for one in compute_slices(predictions, half, ["a", "b", "c"]):
        assert one.intervals["f1_macro"].low < one.metrics["f1_macro"] and not one.undefined
    lacks_c = predictions.at(np.flatnonzero(predictions.label < 2))
    for one in compute_slices(lacks_c, half, ["a", "b", "c"]):
        assert one.metrics["f1_macro"] is not None, "a class that no example has is not needed"


def test_slices_by_the_label_have_no_mean_over_classes() -> None:
    single = synthetic(300, 3)
    generator = np.random.default_rng(0)
    has = generator.random((300, 2)) < 0.5
    several = Predictions.from_logits(np.arange(300), has, generator.normal(size=(300, 2)), MULTI_LABEL)
    for predictions, labels in ((single, single.label), (several, has[:, 0].astype(int))):
        slicing = Slicing.of_column("label", pa.array(labels.astype(str).tolist()))
        entries = compute_slices(predictions, slicing, ["a", "b", "c"][: predictions.num_labels])
        lacking = [one for one in entries if "with fewer than 20 examples" in one.undefined.get("f1_macro", "")]
        # examples that have the first of two labels may have the second one, too
        assert len(lacking) == (3 if predictions is single else 1)
        assert all(next(iter(one.metrics.values())) is not None for one in entries)


def test_examples_without_a_prediction_leave_a_slice_empty_and_in_sight() -> None:
    slicing = Slicing.of_column("c", pa.array(["x", "x", "y", "x"]))
    predictions = synthetic(4, 3).at(np.array([0, 1, 3]))
    full, empty = compute_slices(predictions, slicing, ["a", "b", "c"])
    assert (full.n, empty.n) == (3, 0)
    assert set(empty.metrics.values()) == {None}
    assert set(empty.undefined.values()) == {"none of its examples has a prediction"}
