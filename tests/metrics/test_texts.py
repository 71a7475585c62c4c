"""Metrics of generated texts, against SQuAD's script as torchmetrics has it, and answers that a pattern finds."""

from __future__ import annotations

import re
import sys
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dist_eval.errors import ConfigError
from dist_eval.metrics.metric_loading import load_text_metrics
from dist_eval.metrics.texts import exact_match, exact_match_raw, find_answer, normalized, rouge_l, token_f1

WORDS = ("the", "a", "an", "Cat's", "cats", "red,", "RED", "dog", "-", "", "18", "Zoë")
texts = st.lists(st.sampled_from(WORDS), max_size=6).map(" ".join)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The  Cat's\thats, an (odd) pair!", "cats hats odd pair"),
        ("A.N. Other", "other"),  # punctuation first: "an other"
        ("theatre", "theatre"),
        ("ÀÉ – «x»", "àé – «x»"),  # ASCII punctuation only
        ("the A", "the a"),  # nothing else is there
        ("+ - .", "+ - ."),
        ("-1.5 (or 2-3).", "-1.5 or 23"),
        ("(A)", "a"),
        ("**A.**", "a"),
        ("$-5$ = '-5'", "-5 -5"),
        ("-.5, .5", "-.5 .5"),
        ("-$5, $-5, -$.5", "-5 -5 -.5"),
        ("1E-5, 1.e-05, the-5", "1e-5 1e-05 the5"),
        ("- 5", "5"),  # an item of a list
    ],
)
def test_normalization_is_that_of_squad_but_for_numbers_and_empty_texts(text: str, expected: str) -> None:
    assert normalized(text) == expected


@pytest.mark.parametrize(
    ("text", "normalized", "raw"), [(" Paris\n", True, True), ("the paris.", True, False), ("Paris, US", False, False)]
)
def test_a_text_may_be_any_of_the_references(text: str, normalized: bool, raw: bool) -> None:
    assert (exact_match(text, ["Rome", "Paris"]), exact_match_raw(text, ["Rome", "Paris"])) == (normalized, raw)


@settings(max_examples=60)
@given(texts, st.lists(texts, min_size=1, max_size=3))
def test_exact_match_and_f1_are_those_of_squad(text: str, references: list[str]) -> None:
    from torchmetrics.functional.text import squad

    assume(all(set(each.split()) - {"the", "a", "an", "-"} for each in (text, *references)))
    theirs: Any = squad(
        [{"prediction_text": text, "id": "1"}],
        [{"answers": {"text": references, "answer_start": [0] * len(references)}, "id": "1"}],
    )
    assert exact_match(text, references) == (float(theirs["exact_match"]) == 100)
    assert token_f1(text, references) == pytest.approx(float(theirs["f1"]) / 100, abs=1e-6)


@pytest.mark.parametrize(
    ("text", "reference"),
    [("", "A"), ("the", "A"), ("5", "-5"), ("15", "1.5"), ("-", "+"), ("-€1.50", "€1.50"), ("1e-5", "1e5")],
)
def test_what_normalization_would_make_equal_is_not_right(text: str, reference: str) -> None:
    assert not exact_match(text, [reference]) and not token_f1(text, [reference])


def test_rouge_l_is_the_longest_common_subsequence_of_a_text_and_its_best_reference() -> None:
    pytest.importorskip("rouge_score")
    # the example of Lin (2004), section 3.1
    assert rouge_l("the gunman kill police", ["police killed the gunman"]) == pytest.approx(2 / 4)
    assert rouge_l("Police kill the gunman!", ["Rome", "police killed the gunman"]) == pytest.approx(3 / 4)
    assert rouge_l("", ["police"]) == rouge_l("–", ["–"]) == 0


@pytest.mark.parametrize(
    ("pattern", "text", "expected"),
    [
        (r"\d+", "18 or 19", "18"),
        (r"(?s).*\b(\d+)", "18\nor 19.", "19"),
        (r"#### (\d+)|is (\w+)", "it is four", "four"),
        (r"(x)?y", "y", None),
        (r"\d+", "none", None),
    ],
)
def test_a_pattern_finds_the_first_group_that_took_part(pattern: str, text: str, expected: str | None) -> None:
    assert find_answer(re.compile(pattern), text) == expected


def test_metrics_are_the_usual_ones_and_those_named() -> None:
    metrics = load_text_metrics(["f1", "exact_match", "f1", "near=sample_metrics:contains"])
    assert [metric.name for metric in metrics] == ["exact_match", "exact_match_raw", "f1", "near"]
    assert metrics[-1].measure("to Paris", ["Rome", "Paris"]) == 1


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("accuracy", "is not a metric of generated texts. Choose from exact_match, exact_match_raw, f1, rouge_l, or"),
        ("sample_metrics:nothing", "sample_metrics has no attribute 'nothing'"),
        ("sample_metrics:factor", "is int (2). A metric of generated texts must be a function of (text, references)"),
        ("torch.nn:Module", "is a class. A metric of generated texts must be a function"),
        ("sample_metrics:error_rate", "it raised TypeError: error_rate() missing 1 required positional argument"),
        ("x=sample_metrics:length_of_nothing", "it gave nan. A metric of generated texts must be a function"),
        (
            "f1=sample_metrics:contains",
            "the name 'f1' is already in use. Give this metric another name: --metric my_f1=",
        ),
        ("text=sample_metrics:contains", "the name 'text' is already in use"),
    ],
)
def test_what_is_no_metric_of_texts_is_refused(spec: str, words: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"--metric {spec}: ")) as caught:
        load_text_metrics([spec], taken=["text"])
    assert words in str(caught.value)


def test_a_metric_whose_package_is_missing_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rouge_score", None)
    with pytest.raises(ConfigError, match=r"rouge_l: the package rouge_score is not installed"):
        load_text_metrics(["rouge_l"])
