"""A document as a summary in Markdown, for a pull request or a CI job."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape

from dist_eval.report.document import Cell, Document, Link, Number, Table
from dist_eval.tables import format_count, markdown_table

_ROWS_UNFOLDED = 5


def render_markdown(document: Document) -> str:
    """Renders the summary of a document; texts are in code spans, so that they cannot contain markup or mentions."""
    facts = "; ".join(document.facts)
    subject = f"{code(document.model)} on {code(document.data)}: {facts}" if document.model else facts
    blocks = [f"### {code(document.title)}", f"{subject}."]
    for number, section in enumerate(document.sections):
        tables = [part for part in section.parts if isinstance(part, Table) and part.summary_rows]
        for table in tables:
            blocks += _table_blocks(table, is_main=number == 0)
        if tables:
            blocks += _notes(section.notes)
    return "\n\n".join(blocks) + "\n"


def code(text: object) -> str:
    """Returns any text as a code span that is safe in a table."""
    plain = " ".join(str(text).split()).replace("|", "\\|") or " "
    fence = "`" * (1 + max(map(len, re.findall("`+", plain)), default=0))
    pad = " " if plain.startswith("`") or plain.endswith("`") else ""
    return f"{fence}{pad}{plain}{pad}{fence}"


def _table_blocks(table: Table, *, is_main: bool) -> list[str]:
    """Returns a table with its notes; below its caption, and folded if it is long, unless it is the main one."""
    rows = [list(map(_cell, row)) for row in table.rows[: table.summary_rows]]
    formats = [">" if isinstance(cell, Number) else "<" for cell in table.rows[0]] if rows else ()
    head = [code(name) if "|" in name or "`" in name else escape(name) for name in table.columns]
    blocks = ["\n".join(markdown_table([head, *rows], formats)), *_notes(table.notes)]
    if len(rows) < len(table.rows):
        blocks.append(f"{format_count(len(table.rows) - len(rows), 'more is', 'more are')} in results.json.")
    if is_main:
        return blocks
    caption = escape(" ".join(table.caption.split()))
    if len(rows) <= _ROWS_UNFOLDED:
        return [f"{code(table.caption)}:", *blocks]
    return [f"<details>\n<summary>{caption}</summary>", *blocks, "</details>"]


def _notes(lines: Sequence[str]) -> list[str]:
    return ["\n".join(f"- {code(line)}" for line in lines)] if lines else []


def _cell(cell: Cell) -> str:
    if isinstance(cell, Number):
        return f"{cell.text}{cell.suffix}"
    return f"[{code(cell.text)}]({cell.address})" if isinstance(cell, Link) else code(cell)
