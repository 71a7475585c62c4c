"""A document as plain text, for a terminal."""

from __future__ import annotations

from dist_eval.printable import printable_lines
from dist_eval.report.document import Cell, Document, Number
from dist_eval.tables import text_table


def render_text(document: Document) -> str:
    """Renders the summary of a document: its tables, and below them all else that is said."""
    lines: list[str] = []
    for caption, table in (named for section in document.sections for named in section.summary()):
        if caption:
            lines += [""] * bool(lines) + [f"{caption}:"]
        rows = [[_format_cell(cell) for cell in row] for row in table.summary()]
        lines += [*text_table([table.columns, *rows]), *table.omission(), *table.notes]
    notes = (line for section in document.sections for line in section.notes)
    return printable_lines("\n".join([*lines, "", *document.facts, *notes]))


def _format_cell(cell: Cell) -> str:
    if isinstance(cell, str):
        return cell
    return f"{cell.text}{cell.suffix}" if isinstance(cell, Number) else cell.text
