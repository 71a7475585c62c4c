"""Renders a document as plain text, for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from dist_eval.printable import printable_lines
from dist_eval.report.document import Cell, Document, Number, Table
from dist_eval.tables import output_width, text_table


def render_text(document: Document) -> str:
    """Renders the summary of a document: its tables, then its facts and notes.

    Sentences may be wider than standard output, so that a command in them can be copied.
    """
    blocks = [_table_lines(table) for section in document.sections for table in section.summary()]
    notes = [line for section in document.sections for line in section.notes]
    if document.facts_first:
        blocks = [[*document.facts], *blocks, notes]
    else:
        blocks.append([*document.facts, *notes])
    return printable_lines("\n\n".join("\n".join(lines) for lines in blocks if lines))


def _table_lines(table: Table) -> list[str]:
    caption = table.values_caption or table.caption
    columns = [_format_column(table, column) for column in zip(*table.summary(), strict=True)]
    rows = [table.columns, *zip(*columns, strict=True)]
    return [
        *([f"{caption}:"] if caption else []),
        *text_table(rows, table.alignments, width=output_width(), keys=table.keys),
        *table.omission(table.summary_rows),
        *([] if table.values_caption else table.notes),
    ]


def _format_column(table: Table, cells: Sequence[Cell]) -> list[str]:
    """Formats the cells of a column: numbers are aligned on the right, their suffixes on the left."""
    numbers = [cell for cell in cells if isinstance(cell, Number)]
    suffixes = {id(cell): "" if table.values_caption else cell.suffix for cell in numbers}
    width = max((len(cell.text) for cell in numbers), default=0)
    suffix_width = max(map(len, suffixes.values()), default=0)
    return [
        f"{cell.text:>{width}}{suffixes[id(cell)]:<{suffix_width}}"
        if isinstance(cell, Number)
        else _cut(cell if isinstance(cell, str) else cell.text, table.longest_text)
        for cell in cells
    ]


def _cut(text: str, longest: int) -> str:
    return text if not longest or len(text) <= longest else text[: longest - 3] + "..."
