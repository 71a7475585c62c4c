"""A document about one run or several, in no particular format: sections with tables and plots.

`evaluation` and `tasks` describe runs of their kind as documents; `html`, `markdown` and `text` render them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from dist_eval.metrics.catalogue import is_unbounded
from dist_eval.results.run import AnyCompleteRun
from dist_eval.results.scores import Interval, Slice
from dist_eval.tables import Footnotes, format_count

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LEAST, _MOST = 5e-5, 1e6


@dataclass(frozen=True)
class Number:
    """A cell with a number."""

    text: str  # the number
    suffix: str = ""  # follows it, after a space: a confidence interval, a footnote mark, a share; or nothing


@dataclass(frozen=True)
class Link:
    """A cell with a name that links to another page."""

    text: str  # the name
    address: str  # of the page, relative to this one


Cell: TypeAlias = str | Number | Link  # a text may be a name from the data
Rows: TypeAlias = list[list[Cell]]


@dataclass(frozen=True)
class Table:
    """A table."""

    caption: str  # "" if the heading of its section suffices
    columns: Sequence[str]  # names of the columns
    rows: Sequence[Sequence[Cell]]  # the cells of each row
    notes: Sequence[str] = ()  # lines below it, such as footnotes
    keys: int = 1  # number of columns on the left that identify a row
    is_folded: bool = False  # whether a page hides it behind its caption until it is opened
    summary_rows: int = 0  # number of rows in a summary; 0 if it is not part of one
    filters_mistakes: bool = False  # whether rows begin with label and prediction, and can filter the mistakes
    further_rows: int = 0  # number of rows that only results.json has
    # on a terminal, which is narrow: the caption to use when suffixes and notes are left out, "" to show them; and the
    # number of characters after which texts are cut, 0 for no limit
    values_caption: str = ""
    longest_text: int = 0

    def summary(self) -> Sequence[Sequence[Cell]]:
        """Returns the rows that are part of a summary."""
        return self.rows[: self.summary_rows]

    @property
    def alignments(self) -> list[str]:
        """The alignment of each column: right for numbers (">"), else left ("<")."""
        return [">" if isinstance(cell, Number) else "<" for cell in self.rows[0]]

    def omission(self, shown: int) -> list[str]:
        """Returns a line about the rows after the first `shown`; none if there are no others."""
        omitted = max(0, len(self.rows) - shown) + self.further_rows
        return [f"{format_count(omitted, 'more is', 'more are')} in results.json."] if omitted else []


@dataclass(frozen=True)
class Plot:
    """A plot."""

    description: str  # the alternative text
    draw: Callable[[], Figure]  # draws it


@dataclass(frozen=True)
class Section:
    """A section."""

    title: str  # its heading
    parts: Sequence[Table | Plot]  # tables and plots
    lines: Sequence[str] = ()  # text above them
    notes: Sequence[str] = ()  # text below them, also in a summary

    def summary(self) -> list[Table]:
        """Returns the tables that are part of a summary."""
        return [part for part in self.parts if isinstance(part, Table) and part.summary()]


@dataclass(frozen=True)
class Mistakes:
    """A list of mistakes that can be searched and filtered."""

    title: str  # its heading
    note: str  # says how many there are and which are listed
    rows: Sequence[Sequence[str]]  # position, right label, prediction, score and text of each
    what_is_right: Literal["true", "label", "target"]  # the word for a right label


@dataclass(frozen=True)
class Document:
    """One run or several."""

    title: str  # name of the run
    facts: Sequence[str]  # how much was evaluated, then how fast
    sections: Sequence[Section]  # the first one has the metrics
    facts_first: bool = False  # whether a terminal also shows the facts above the tables
    kind: str = ""  # kind of evaluation
    model: str = ""  # name of the model
    data: str = ""  # name of the data
    cards: Sequence[tuple[str, Number]] = ()  # the most important metrics
    find_mistakes: Callable[[], Mistakes] | None = None  # lists the mistakes, by reading all predictions; or None
    details: Sequence[tuple[str, str]] = ()  # further facts by name
    files: Sequence[str] = ()  # names of the files in the run's folder


@dataclass(frozen=True)
class ReportOptions:
    """How much of the data a report shows."""

    texts: bool = False  # whether mistakes are shown with their texts
    dataset: str | Sequence[str] | None = None  # current location of the dataset; None for that of the run
    most: int = 1000  # maximum number of mistakes
    longest: int = 1000  # maximum number of characters of a text


def metric_number(name: str, results: AnyCompleteRun | Slice, notes: Footnotes) -> Number:
    """Returns a metric with its interval, or with a footnote on why it or the interval is undefined."""
    value, interval, why = results.metrics.get(name), results.intervals.get(name), results.undefined.get(name)
    text = "-" if value is None else format_metric(name, value)
    return Number(text, format_interval(name, interval, notes, why) if interval else notes.mark(why))


def metric_card(title: str, name: str, results: AnyCompleteRun) -> tuple[str, Number]:
    """Returns a metric under a title, with its interval, or the reason why it or the interval is undefined."""
    value, interval = results.metrics.get(name), results.intervals.get(name)
    reason = results.undefined.get(name) or (interval.reason if interval else None) or ""
    return title, Number("-" if value is None else format_metric(name, value), format_limits(name, interval) or reason)


def format_metric(name: str, value: float) -> str:
    """Formats a metric: four decimals, or four significant digits for very small, large or unbounded values."""
    if is_unbounded(name) or (value and not _LEAST <= abs(value) < _MOST):
        return f"{value:#.4g}".removesuffix(".")
    return f"{value:.4f}"


def format_limits(name: str, interval: Interval | None) -> str:
    """Returns the interval of a metric as a suffix; empty if there is none."""
    if interval is None or interval.limits is None:
        return ""
    low, high = interval.limits
    return f" [{format_metric(name, low)}, {format_metric(name, high)}]"


def format_interval(name: str, interval: Interval, notes: Footnotes, why_undefined: str | None = None) -> str:
    """Returns the suffix of a metric in a table: its interval, or the number of a footnote with the reason."""
    return format_limits(name, interval) or notes.mark(why_undefined or interval.reason)
