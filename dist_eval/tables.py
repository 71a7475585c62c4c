"""Tables of text, aligned for a terminal or in Markdown, and the footnotes of any table."""

from __future__ import annotations

import itertools
import re
import shutil
import sys
import textwrap
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from dist_eval.printable import printable

_WIDTH = 120  # width of lines outside a terminal
_NAME_PART = 24  # characters of a name that fit without a break
_GAP = "  "
_RULES = {"<": "---", ">": "---:"}
_NUMBER = re.compile(r"[+-]?\d+(\.\d+)?")
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")


def output_width() -> int:
    """Returns the width of a line in characters: that of the terminal, or a constant without one."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else _WIDTH


def text_table(
    rows: Sequence[Sequence[str]], formats: Sequence[str] = (), *, width: int | None = None, keys: int = 1
) -> list[str]:
    """Returns the lines of an aligned table; none without rows.

    If a table is too wide, names are broken into several lines. If that does not suffice, further columns follow in
    tables below, which repeat the key columns.

    Args:
        rows: the cells of each row; the first row is the header.
        formats: alignment of each column, "<" for names or ">" for numbers, whose cells below the header are not
            broken. By default all are "<".
        width: maximum width of a line, exceeded only by columns that cannot be narrower; None for no limit.
        keys: number of key columns, at the left.

    Examples:
        >>> rows = [["class", "n", "kind"], ["a", "12", "one with a long name"]]
        >>> for line in text_table(rows, ["<", ">", "<"]):
        ...     print(line)
        class   n  kind
        a      12  one with a long name
        >>> for line in text_table(rows, ["<", ">", "<"], width=25):
        ...     print(line)
        class   n  kind
        a      12  one with a
                   long name
    """
    if not rows:
        return []
    columns = [
        _Column([printable(cell) for cell in cells], alignment)
        for cells, alignment in zip(zip(*rows, strict=True), formats or ["<"] * len(rows[0]), strict=True)
    ]
    if width is None:
        return _table_lines(columns, [column.widest() for column in columns])
    least = min(_NAME_PART, max(1, width // (2 * keys)))
    tables = [columns[:keys]]
    for column in columns[keys:]:
        has_room = _total([each.narrowest(least) for each in (*tables[-1], column)]) <= width
        if has_room or len(tables[-1]) == keys:
            tables[-1].append(column)
        else:
            tables.append([*columns[:keys], column])
    first, *further = [_table_lines(table, _fit(table, width, least)) for table in tables]
    return first + [line for lines in further for line in ("", *lines)]


@dataclass(frozen=True)
class _Column:
    cells: Sequence[str]  # the header, then the cells of the rows
    alignment: str

    def widest(self) -> int:
        return max(map(len, self.cells))

    def narrowest(self, least: int) -> int:
        """Returns the minimum width: numbers in one line, and `least` characters of each name."""
        unbroken = self.cells[1:] if self.alignment == ">" else ()
        return max([min(self.widest(), least), *map(len, unbroken)])


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + len(_GAP) * (len(widths) - 1)


def _fit(columns: Sequence[_Column], width: int, least: int) -> list[int]:
    """Returns the width of each column, making the widest ones narrower until all fit."""
    widths = [column.widest() for column in columns]
    narrowest = [column.narrowest(least) for column in columns]

    def cut_to(most: int) -> list[int]:
        return [max(need, min(wide, most)) for wide, need in zip(widths, narrowest, strict=True)]

    if _total(widths) <= width:
        return widths
    most = bisect_right(range(max(widths) + 1), width, key=lambda most: _total(cut_to(most))) - 1
    return cut_to(max(0, most))


def _table_lines(columns: Sequence[_Column], widths: Sequence[int]) -> list[str]:
    lines = []
    for cells in zip(*(column.cells for column in columns), strict=True):
        broken = [
            [cell] if len(cell) <= wide else textwrap.wrap(cell, wide) or [""]
            for cell, wide in zip(cells, widths, strict=True)
        ]
        for parts in itertools.zip_longest(*broken, fillvalue=""):
            aligned = zip(parts, columns, widths, strict=True)
            lines.append(_GAP.join(f"{part:{column.alignment}{wide}}" for part, column, wide in aligned).rstrip())
    return lines


def markdown_table(rows: Sequence[Sequence[str]], formats: Sequence[str]) -> list[str]:
    """Returns the lines of a table in Markdown (see `text_table`); "|" in cells is already escaped.

    Examples:
        >>> for line in markdown_table([["class", "n"], ["a", "12"]], ["<", ">"]):
        ...     print(line)
        | class | n |
        | --- | ---: |
        | a | 12 |
    """
    head, *others = rows
    rule = [_RULES[alignment] for alignment in formats]
    return [f"| {' | '.join(map(printable, cells))} |" for cells in (head, rule, *others)]


def csv_text(text: str) -> str:
    """Returns a text for a cell of CSV, with an apostrophe before text that a spreadsheet would read as a formula.

    Examples:
        >>> csv_text("=1+1"), csv_text("-3"), csv_text("a=b")
        ("'=1+1", '-3', 'a=b')
    """
    return f"'{text}" if text.startswith(_FORMULA) and not _NUMBER.fullmatch(text) else text


def format_count(count: int, noun: str, plural: str = "") -> str:
    """Returns a number with a noun; the plural has an s unless another form is given.

    Examples:
        >>> format_count(1, "row"), format_count(0, "row"), format_count(2, "batch", "batches")
        ('1 row', '0 rows', '2 batches')
    """
    return f"{count} {noun if count == 1 else plural or noun + 's'}"


class Footnotes:
    """Numbers reasons in the order of their first use; equal reasons share a number.

    Examples:
        >>> notes = Footnotes()
        >>> notes.mark("too few examples"), notes.mark(None), notes.mark("too few examples")
        (' (1)', '', ' (1)')
        >>> notes.lines()
        ['(1) too few examples']
    """

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def mark(self, reason: str | None) -> str:
        """Returns the suffix of a cell; empty without a reason."""
        return "" if reason is None else f" ({self._numbers.setdefault(reason, len(self._numbers) + 1)})"

    def lines(self) -> list[str]:
        """Returns the lines below the table."""
        return [f"({number}) {reason}" for reason, number in self._numbers.items()]
