"""Metrics of generated texts: the mean over texts of the best value over each text's references."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_MARKS = re.escape(string.punctuation.replace(".", "").replace("-", ""))
# all ASCII punctuation but the decimal point and the sign of a number, an amount or an exponent
_PUNCTUATION = re.compile(rf"[{_MARKS}]|\.(?!\d)|(?<=[^\W\d])\.|(?<=\w)(?<!\de)(?<!\d\.e)-|-(?![$£€¥]?\.?\d)")


@dataclass(frozen=True)
class TextMetric:
    """A metric of generated texts."""

    name: str
    measure: Callable[[str, Sequence[str]], float]  # returns the value of a text, given its references
    is_custom: bool = False  # whether it is a user's function


def find_answer(pattern: re.Pattern[str], text: str) -> str | None:
    r"""Returns the first match of a pattern in a text; None if it does not match.

    With groups, the first group that matched is the answer, None if none did; otherwise the whole match.

    Examples:
        >>> find_answer(re.compile(r"answer is (\d+)"), "So the answer is 18.")
        '18'
    """
    match = pattern.search(text)
    if match is None or not match.groups():
        return match and match[0]
    return next((group for group in match.groups() if group is not None), None)


def normalized(text: str) -> str:
    """Returns a text in lower case, without punctuation, articles and extra white space.

    Source: `normalize_answer` in the official evaluation script of SQuAD v1.1 (Rajpurkar et al., 2016, "SQuAD: 100,000+
    questions for machine comprehension of text"), with its ASCII punctuation and English articles. Two things differ,
    because wrong answers would count as right: numbers keep their sign and decimal point, and a text that has nothing
    else keeps its articles, such as the choice "A", or its punctuation.

    Examples:
        >>> normalized(" The Eiffel  Tower."), normalized("(-1.5)."), normalized("A.")
        ('eiffel tower', '-1.5', 'a')
    """
    lower = text.lower()
    plain = _PUNCTUATION.sub("", lower)
    return " ".join(_ARTICLES.sub(" ", plain).split() or plain.split() or lower.split())


def exact_match(text: str, references: Sequence[str]) -> bool:
    """Returns whether a text equals a reference after normalizing both."""
    wanted = normalized(text)
    return any(wanted == normalized(reference) for reference in references)


def exact_match_raw(text: str, references: Sequence[str]) -> bool:
    """Returns whether a text equals a reference, ignoring surrounding white space."""
    return any(text.strip() == reference.strip() for reference in references)


def token_f1(text: str, references: Sequence[str]) -> float:
    """Returns the F1 of the words that a text shares with a reference, after normalizing both.

    Source: `f1_score` in the official evaluation script of SQuAD; if one has no words, as in that of SQuAD 2.0
    (Rajpurkar et al., 2018, "Know what you don't know: unanswerable questions for SQuAD"), it is 1 if neither has.
    """
    words = normalized(text).split()
    return max(_f1(words, normalized(reference).split()) for reference in references)


def _f1(words: Sequence[str], wanted: Sequence[str]) -> float:
    if not words or not wanted:
        return float(words == wanted)
    common = (Counter(words) & Counter(wanted)).total()
    return 2 * common / (len(words) + len(wanted))


def rouge_l(text: str, references: Sequence[str]) -> float:
    """Returns the F-measure of the longest common subsequence of words of a text and a reference.

    Source: C.-Y. Lin (2004), "ROUGE: a package for automatic evaluation of summaries", as the package `rouge_score`
    computes it, without a stemmer; words are made of ASCII letters and digits.
    """
    return float(_rouge_scorer().score_multi(references, text)["rougeL"].fmeasure)


@cache
def _rouge_scorer() -> Any:
    from rouge_score.rouge_scorer import RougeScorer

    return RougeScorer(["rougeL"], use_stemmer=False)


USUAL_METRICS = ("exact_match", "exact_match_raw")  # computed by every run

TEXT_METRICS: dict[str, Callable[[str, Sequence[str]], float]] = {
    "exact_match": exact_match,
    "exact_match_raw": exact_match_raw,
    "f1": token_f1,
    "rouge_l": rouge_l,
}

# packages that some metrics need, which `dist_eval` alone does not install
EXTRA_PACKAGES = {"rouge_l": "rouge_score"}
