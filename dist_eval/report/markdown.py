"""Renders a document as a summary in Markdown, for a pull request or a CI job."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape

from dist_eval.report.document import Cell, Document, Link, Number, Table
from dist_eval.tables import markdown_table

_ROWS_UNFOLDED = 5
_PLAIN = re.compile(r"(?!_)[\w ,.%()\[\]-]+(?<!_)")  # a heading without markup


def render_markdown(document: Document) -> str:
    """Renders the summary of a document; texts are in code spans, so that they cannot contain markup or mentions."""
    facts = "; ".join(document.facts)
    subject = f"{code(document.model)} on {code(document.data)}: {facts}" if document.model else facts
    blocks = [f"### {code(document.title)}", f"{subject}."]
    for section in document.sections:
        tables = section.summary()
        for table in tables:
            blocks += _table_blocks(table)
        if tables:
            blocks += _notes(section.notes)
    return "\n\n".join(blocks) + "\n"


def code(text: object) -> str:
    """Returns any text as a code span."""
    plain = " ".join(str(text).split()) or " "
    fence = "`" * (1 + max(map(len, re.findall("`+", plain)), default=0))
    pad = " " if plain.startswith("`") or plain.endswith("`") else ""
    return f"{fence}{pad}{plain}{pad}{fence}"


def _table_blocks(table: Table) -> list[str]:
    """Returns a table with its notes, below its caption if it has one; a long table with a caption is folded."""
    rows = [list(map(_cell, row)) for row in table.summary()]
    head = [name if _PLAIN.fullmatch(name) and "](" not in name else code(name) for name in table.columns]
    lines = [[cell.replace("|", "\\|") for cell in row] for row in (head, *rows)]
    blocks = [
        "\n".join(markdown_table(lines, table.alignments)),
        *_notes(table.notes),
        *table.omission(table.summary_rows),
    ]
    caption = table.caption
    if not caption:
        return blocks
    if len(rows) <= _ROWS_UNFOLDED:
        return [f"{code(caption)}:", *blocks]
    return [f"<details>\n<summary>{escape(' '.join(caption.split()))}</summary>", *blocks, "</details>"]


def _notes(lines: Sequence[str]) -> list[str]:
    return ["\n".join(f"- {code(line)}" for line in lines)] if lines else []


def _cell(cell: Cell) -> str:
    if isinstance(cell, Number):
        return f"{cell.text}{cell.suffix}"
    return f"[{code(cell.text)}]({cell.address})" if isinstance(cell, Link) else code(cell)
