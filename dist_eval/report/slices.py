"""What every run on a dataset may have: slices, and examples that failed."""

from __future__ import annotations

from collections.abc import Sequence

from dist_eval.report.document import Number, Rows, Section, Table, metric_number
from dist_eval.report.phrases import slice_name
from dist_eval.results.inputs import FailedExample
from dist_eval.results.scores import Slice
from dist_eval.tables import Footnotes, format_count

_ROWS_IN_SUMMARY, _SLICE_WIDTH = 30, 40


def slice_sections(slices: Sequence[Slice], names: Sequence[str]) -> list[Section]:
    """Returns a section with the slices by each column; none without slices.

    Args:
        slices: the section `slices` of `results.json`.
        names: of the metrics to show, the most important one first.
    """
    by_column: dict[str, list[Slice]] = {}
    for part in slices:
        by_column.setdefault(part.by, []).append(part)
    tables = [_slice_table(column, of_column, names) for column, of_column in by_column.items()]
    return [Section("Slices", tables)] if tables else []


def _slice_table(column: str, slices: Sequence[Slice], names: Sequence[str]) -> Table:
    """Returns the table of slices by a column, without metrics that are undefined in all of them."""
    notes = Footnotes()
    missing = [name for name in names[1:] if all(part.metrics[name] is None for part in slices)]
    shown = [name for name in names if name not in missing]
    rows: Rows = [
        [slice_name(part), Number(str(part.n)), *(metric_number(name, part, notes) for name in shown)]
        for part in slices
    ]
    left_out = [_why_left_out(name, slices) for name in missing]
    return Table(
        f"By {column}",
        [column, "examples", *shown],
        rows,
        [*notes.lines(), *left_out],
        summary_rows=_ROWS_IN_SUMMARY,
        longest_text=_SLICE_WIDTH,
    )


def _why_left_out(name: str, slices: Sequence[Slice]) -> str:
    first, *others = (part.undefined[name] for part in slices)
    if all(reason == first for reason in others):
        return f"No slice has {name}: {first}."
    return f"No slice has {name}. In {slice_name(slices[0])!r}: {first}. The reasons of the others are in results.json."


def failure_sections(failures: Sequence[FailedExample]) -> list[Section]:
    """Returns a section with the examples that failed; none without any."""
    if not failures:
        return []
    rows: Rows = [[f"#{failure.index}", failure.reason] for failure in failures]
    caption = f"{format_count(len(failures), 'example')} without a prediction"
    return [Section("Failures", [Table(caption, ["example", "reason"], rows, is_folded=True)])]
