"""The tables of a document as plain text."""

from __future__ import annotations

from dist_eval.printable import printable_lines
from dist_eval.report.document import Cell, Document, Number, Table
from dist_eval.tables import text_table


def render_text(document: Document) -> str:
    """Renders the tables of a document, the first one without a caption, and below them what else there is to say."""
    lines: list[str] = []
    for table in (part for section in document.sections for part in section.parts if isinstance(part, Table)):
        if lines:
            lines += ["", f"{table.caption}:"]
        rows = [[_format_cell(cell) for cell in row] for row in table.rows]
        lines += [*text_table([table.columns, *rows]), *table.notes]
    notes = (line for section in document.sections for line in section.notes)
    return printable_lines("\n".join([*lines, "", *document.facts, *notes]))


def _format_cell(cell: Cell) -> str:
    if isinstance(cell, str):
        return cell
    return f"{cell.text}{cell.suffix}" if isinstance(cell, Number) else cell.text
