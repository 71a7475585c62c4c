"""A summary of a run in Markdown, for a pull request or a CI job."""

from __future__ import annotations

import re
from collections.abc import Mapping
from html import escape
from typing import Any

from dist_eval.report.footnotes import Footnotes
from dist_eval.report.naming import base_name, checkpoint_name, dataset_name
from dist_eval.report.sections import by_class, confusion, figure, slices
from dist_eval.report.table import figures_shown, group_lines
from dist_eval.tables import markdown_table

_CONFUSIONS, _CLASSES = 5, 30


def summary(results: Mapping[str, Any], name: str) -> str:
    """Writes the summary of a run.

    Args:
        results: content of `results.json` of a complete run.
        name: name of the run.

    Returns:
        Markdown. Names from the data are in code spans, so that they cannot contain markup or mentions.
    """
    coverage, speed, ranks = (results[name] for name in ("coverage", "throughput", "ranks"))
    what, data = checkpoint_name(results) or base_name(results), dataset_name(results)
    names = figures_shown(results["problem_type"], results["metrics"], results["custom_metrics"])
    interval = f"{100 * results['config']['confidence']:g}% interval"
    notes = Footnotes()
    lines = [
        f"### {code(name)}",
        "",
        f"{code(what)} on {code(data)}: "
        f"{coverage['seen']} of {coverage['expected']} examples, each exactly once"
        + (f"; {coverage['failed']} failed and are in no figure" if coverage["failed"] else "")
        + f"; {speed['examples_per_second']:.1f} examples/s on {len(ranks)} rank{'s' if len(ranks) > 1 else ''}.",
        "",
        *_table(["metric", "value", interval], [_figure_cells(figure(one, results), notes) for one in names]),
        *_notes(notes),
    ]
    lines += [line for note in group_lines(results["groups"]) for line in ("", code(note))]
    matrix = confusion(results)
    if matrix and matrix["pairs"]:
        pairs = matrix["pairs"][:_CONFUSIONS]
        rows = [[code(one["label"]), code(one["prediction"]), str(one["count"])] for one in pairs]
        lines += ["", "Most frequent confusions:", "", *_table(["true", "predicted", "examples"], rows)]
    classes = by_class(results, _CLASSES)
    if classes:
        columns, more = classes["columns"], classes["omitted"]
        rows = [
            [code(row["label"]), *(_number(row[name]) + row["ends"].get(name, "") for name in columns)]
            for row in classes["rows"]
        ]
        lines += ["", "<details>", f"<summary>By {classes['what']}</summary>", ""]
        lines += _table([classes["what"], *columns], rows)
        lines += [line for note in classes["notes"] for line in ("", code(note))]
        lines += ["", f"{more} more are in results.json."] if more else []
        lines += ["", "</details>"]
    for table in slices(results):
        columns, notes = [cell for one in table["names"] for cell in (one, interval)], Footnotes()
        lines += ["", "<details>", f"<summary>By <code>{escape(' '.join(table['by'].split()))}</code></summary>", ""]
        lines += _table(["slice", "examples", *columns], [_slice_cells(row, notes) for row in table["rows"]])
        left_out = (line for words in table["left_out"] for line in ("", code(words)))
        lines += [*_notes(notes), *left_out, "", "</details>"]
    return "\n".join(lines) + "\n"


def code(text: object) -> str:
    """Returns any text as a code span that is safe in a table."""
    plain = " ".join(str(text).split()).replace("|", "\\|") or " "
    fence = "`" * (1 + max(map(len, re.findall("`+", plain)), default=0))
    pad = " " if plain.startswith("`") or plain.endswith("`") else ""
    return f"{fence}{pad}{plain}{pad}{fence}"


def _table(head: list[str], rows: list[list[str]]) -> list[str]:
    return markdown_table([head, *rows], ["<", *[">"] * (len(head) - 1)])


def _notes(notes: Footnotes) -> list[str]:
    return [line for note in notes.lines() for line in ("", code(note))]


def _figure_cells(one: Mapping[str, Any], notes: Footnotes) -> list[str]:
    interval, reason = one["interval"], one["why"] or one["no_interval"]
    words = f"{interval['low']} to {interval['high']}" if interval else f"–{notes.mark(reason)}"
    return [code(one["name"]), _number(one["value"]), words]


def _slice_cells(row: Mapping[str, Any], notes: Footnotes) -> list[str]:
    cells = (cell for one in row["figures"] for cell in _figure_cells(one, notes)[1:])
    return [code(row["name"]), str(row["n"]), *cells]


def _number(value: float | str | None) -> str:
    return "–" if value is None else str(value) if isinstance(value, int | str) else f"{value:.4f}"
