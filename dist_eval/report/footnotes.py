"""Footnotes of a table, such as the reason why a cell has no interval."""

from __future__ import annotations


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
        return "" if reason is None else f" ({self.number(reason)})"

    def number(self, reason: str) -> int:
        """Returns the number of a reason, a new one on first use."""
        return self._numbers.setdefault(reason, len(self._numbers) + 1)

    def lines(self) -> list[str]:
        """Returns the lines below the table."""
        return [f"({number}) {reason}" for reason, number in self._numbers.items()]

    def reasons(self) -> list[str]:
        """Returns the reasons in the order of their numbers."""
        return list(self._numbers)
