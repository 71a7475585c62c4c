"""Tables of text, aligned for a terminal or in Markdown, and the footnotes of any table."""

from __future__ import annotations

import re
from collections.abc import Sequence

from dist_eval.printable import printable

_RULES = {"<": "---", ">": "---:"}
_NUMBER = re.compile(r"[+-]?\d+(\.\d+)?")
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")


def text_table(rows: Sequence[Sequence[str]], formats: Sequence[str] = ()) -> list[str]:
    """Returns the lines of an aligned table, none without rows.

    Args:
        rows: the cells of each row, of which the first is usually the header.
        formats: alignment of each column, "<" or ">", followed by its width if that is fixed, as in a format string;
            longer cells then overflow. Other columns are as wide as their longest cell. By default all are "<".

    Examples:
        >>> for line in text_table([["class", "n", "kind"], ["a", "12", "x"]], ["<", ">5", "<"]):
        ...     print(line)
        class      n  kind
        a         12  x
    """
    if not rows:
        return []
    rows = [[printable(cell) for cell in cells] for cells in rows]
    specs = [
        spec if spec[1:] else f"{spec}{max(map(len, column))}"
        for spec, column in zip(formats or ["<"] * len(rows[0]), zip(*rows, strict=True), strict=True)
    ]
    return ["  ".join(map(format, cells, specs)).rstrip() for cells in rows]


def markdown_table(rows: Sequence[Sequence[str]], formats: Sequence[str] = ()) -> list[str]:
    """Returns the lines of a table in Markdown.

    Args:
        rows: the cells of each row, in which "|" is escaped; the first row is the header.
        formats: as for `text_table`; only the alignment counts.

    Examples:
        >>> for line in markdown_table([["class", "n"], ["a", "12"]], ["<", ">"]):
        ...     print(line)
        | class | n |
        | --- | ---: |
        | a | 12 |
    """
    head, *others = rows
    rule = [_RULES[spec[0]] for spec in formats or ["<"] * len(head)]
    return [f"| {' | '.join(map(printable, cells))} |" for cells in (head, rule, *others)]


def csv_text(text: str) -> str:
    """Returns a text for a cell of CSV: behind an apostrophe if a spreadsheet would take it for a formula.

    Examples:
        >>> csv_text("=1+1"), csv_text("-3"), csv_text("a=b")
        ("'=1+1", '-3', 'a=b')
    """
    return f"'{text}" if text.startswith(_FORMULA) and not _NUMBER.fullmatch(text) else text


def format_count(count: int, noun: str, plural: str = "") -> str:
    """Returns a number with what is counted.

    Args:
        count: the number.
        noun: its name.
        plural: the name of several, if it is not that with an s.

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
