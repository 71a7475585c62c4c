"""Pairs of runs side by side: paired tests, and the examples that changed, in words."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from dist_eval.compare.tables import (
    change_words,
    metric_rows,
    p_words,
    signed_words,
    words_of_changes,
    words_of_test,
)
from dist_eval.errors import EvaluationError
from dist_eval.report.differences import differing_options
from dist_eval.report.layout import Contents, cut
from dist_eval.report.naming import without_directories
from dist_eval.report.sections import words
from dist_eval.runs.overview import Measured
from dist_eval.tables import Footnotes

if TYPE_CHECKING:
    from dist_eval.compare.comparing import Comparison
    from dist_eval.statistics import PairedDifference


@dataclass(frozen=True)
class Shown:
    """A complete run on the page.

    Attributes:
        number: its number on the page.
        name: its name on the page.
        folder: its folder.
        results: its results.
    """

    number: int
    name: str
    folder: Path
    results: Measured


@dataclass(frozen=True)
class Change:
    """An example, or a document of a task, that the two runs answer differently.

    Attributes:
        position: its number.
        label: what is right.
        before: what the first run predicts.
        after: what the other one predicts.
        what: what became of it.
        index: its number in the dataset; None for a document.
        text: its text; empty unless texts are shown.
    """

    position: str
    label: str
    before: str
    after: str
    what: str
    index: int | None = None
    text: str = ""


@dataclass(frozen=True)
class Pair:
    """Two runs side by side.

    Attributes:
        first: the one that the other is compared with.
        other: the other one.
        options: the options that differ, with the values of both.
        reason: why they cannot be compared; empty if they can.
        headline: the difference of the main metric, and its p-value after Holm's procedure.
        is_significant: whether that is significant.
        lines: how many predictions changed, and the test of equal accuracy.
        heads: of the columns of `rows`.
        rows: for each metric, the cells of `compare.tables.metric_rows`, or `compare.tasks.task_rows`.
        notes: the footnotes of `rows`.
        changes: the most remarkable changes.
        changed: number of all changes.
    """

    first: Shown
    other: Shown
    options: dict[str, list[str]]
    reason: str = ""
    headline: str = ""
    is_significant: bool = False
    lines: Sequence[str] = ()
    heads: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    notes: Sequence[str] = ()
    changes: Sequence[Change] = ()
    changed: int = 0

    @property
    def runs(self) -> tuple[Shown, Shown]:
        """Both runs."""
        return self.first, self.other


def choose_pairs(group: Sequence[Shown], most: int) -> list[tuple[Shown, Shown]]:
    """Returns all pairs of runs on the same data; of more than `most`, those with the first run, at most as many."""
    every = list(itertools.combinations(group, 2))
    return every if len(every) <= most else [(group[0], other) for other in group[1 : most + 1]]


def compare_on_data(
    pairs: Sequence[tuple[Shown, Shown]], contents: Contents, most: int, metrics: Sequence[str] = ()
) -> list[Pair]:
    """Compares the runs of each pair, example by example; the tests of all of them are one family.

    Args:
        pairs: pairs of runs on the same dataset.
        contents: whether the examples that changed have their texts, and where these are.
        most: maximum number of changes of each pair.
        metrics: names of the metrics to compare; by default the usual ones.

    Raises:
        DataError: the texts cannot be read.
    """
    from dist_eval.compare.compared_run import Run, require_comparable
    from dist_eval.compare.comparing import compare_pairs

    found, loaded, comparable = [], {}, {}
    for number, (first, other) in enumerate(pairs):
        pair = side_by_side(first, other)
        try:
            for one in (first, other):
                if one.number not in loaded:
                    loaded[one.number] = Run.load(one.folder)
            both = loaded[first.number], loaded[other.number]
            require_comparable(*both)
            comparable[number] = both
        except EvaluationError as error:
            pair = replace(pair, reason=reason_words(error, pair.runs))
        found.append(pair)
    if comparable:
        try:
            compared = compare_pairs(list(comparable.values()), metrics=metrics)
        except EvaluationError as error:
            reason = reason_words(error, [one for pair in found for one in pair.runs])
            return [replace(pair, reason=pair.reason or reason) for pair in found]
        for number, comparison in zip(comparable, compared, strict=True):
            found[number] = _described(found[number], comparison, len(comparable), most)
    return _with_texts(found, contents) if contents.texts else found


def side_by_side(first: Shown, other: Shown) -> Pair:
    """Returns two runs with the options that differ."""
    return Pair(first, other, differing_options([first.results, other.results]))


def reason_words(error: Exception, runs: Sequence[Shown]) -> str:
    """Returns why runs cannot be compared, with their names instead of their folders."""
    return without_directories(str(error), {one.folder: one.name for one in runs})


def headline(name: str, difference: PairedDifference, corrected: float | None) -> tuple[str, bool]:
    """Returns the difference of a metric and its p-value in words, and whether it is significant."""
    if difference.value is None:
        return f"{name}: no difference is defined", False
    signed = signed_words(name, difference, Footnotes()).removesuffix(" (1)")
    p_value = "" if corrected is None else f", p (Holm) {p_words(corrected, difference)}"
    return f"{name} {signed}{p_value}", corrected is not None and corrected <= 1 - difference.interval.confidence


def _described(pair: Pair, one: Comparison, many: int, most: int) -> Pair:
    import numpy as np

    notes, name = Footnotes(), next(iter(one.differences))
    rows = metric_rows(one, notes)
    headline_words, is_significant = headline(name, one.differences[name], one.corrected[name])
    first, second = one.first.predictions, one.run.predictions
    places = np.flatnonzero(one.changes.changed)
    decided = (one.changes.improved | one.changes.worsened)[places]
    order = np.lexsort((-np.abs(second.loss - first.loss)[places], ~decided))
    names, problem = one.first.label_names, one.first.problem
    changes = [
        Change(
            position=f"#{first.index[row]}",
            label=words(first.label[row], problem, names),
            before=words(first.prediction[row], problem, names),
            after=words(second.prediction[row], problem, names),
            what=change_words(one, row),
            index=int(first.index[row]),
        )
        for row in places[order[:most]].tolist()
    ]
    names_of_runs, confidence = (pair.first.name, pair.other.name), one.differences[name].interval.confidence
    return replace(
        pair,
        headline=headline_words,
        is_significant=is_significant,
        lines=[f"{words_of_changes(one)}.", *(f"{line}." for line in words_of_test(one, many, "pairs"))],
        heads=["metric", *names_of_runs, f"difference, {100 * confidence:g} % interval", "p", "p (Holm)"],
        rows=rows,
        notes=notes.lines(),
        changes=changes,
        changed=len(places),
    )


def _with_texts(pairs: Sequence[Pair], contents: Contents) -> list[Pair]:
    from dist_eval.runs.reading import FinishedRun

    wanted = {change.index for pair in pairs for change in pair.changes if change.index is not None}
    texts = FinishedRun.load(pairs[0].first.folder).texts(wanted, contents.dataset) if wanted else {}
    return [
        replace(pair, changes=[replace(one, text=cut(texts[one.index or 0], contents.longest)) for one in pair.changes])
        for pair in pairs
    ]
