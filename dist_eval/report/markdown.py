"""A summary of a run in Markdown, for a pull request or a CI job."""

from __future__ import annotations

import re
from html import escape

from dist_eval.report.naming import base_name, checkpoint_name, dataset_name, name_of
from dist_eval.report.sections import MetricCell, by_class, metric_cell, slices, top_confusions
from dist_eval.report.table import caveats, metrics_shown
from dist_eval.results.run import CompleteHarnessRun, CompleteRun
from dist_eval.tables import Footnotes, format_count, markdown_table

_CONFUSIONS, _CLASSES = 5, 30


def summary(results: CompleteRun | CompleteHarnessRun, name: str) -> str:
    """Writes the summary of a run.

    Args:
        results: content of `results.json`.
        name: name of the run.

    Returns:
        Markdown. Names from the data are in code spans, so that they cannot contain markup or mentions.
    """
    return _of_tasks(results, name) if isinstance(results, CompleteHarnessRun) else _of_dataset(results, name)


def _of_tasks(results: CompleteHarnessRun, name: str) -> str:
    coverage, notes = results.coverage, Footnotes()
    model = name_of(results.model.base, results.model.base_is_path)
    rows = [[code(one), *_metric_cells(metric_cell(one, results), notes)] for one in results.metrics]
    lines = [
        f"### {code(name)}",
        "",
        f"{code(model)} on tasks of the lm-evaluation-harness {results.harness_version}: {coverage.seen} of "
        f"{format_count(coverage.expected, 'log-likelihood')}, each exactly once; "
        f"{_speed(results, 'log-likelihoods')}.",
        "",
        *_table(["metric", "value", _interval_head(results)], rows),
        *_notes(notes),
    ]
    return "\n".join(lines) + "\n"


def _speed(results: CompleteRun | CompleteHarnessRun, unit: str) -> str:
    ranks = len(results.ranks)
    return f"{results.throughput.examples_per_second:.1f} {unit}/s on {format_count(ranks, 'rank')}"


def _interval_head(results: CompleteRun | CompleteHarnessRun) -> str:
    return f"{100 * results.confidence:g}% interval"


def _of_dataset(results: CompleteRun, name: str) -> str:
    coverage, notes = results.coverage, Footnotes()
    what, data = checkpoint_name(results.model) or base_name(results.model), dataset_name(results.data)
    interval = _interval_head(results)
    figures = [metric_cell(name, results) for name in metrics_shown(results)]
    lines = [
        f"### {code(name)}",
        "",
        f"{code(what)} on {code(data)}: "
        f"{coverage.seen} of {format_count(coverage.expected, 'example')}, each exactly once"
        + (f"; {coverage.failed} failed and are in no metric" if coverage.failed else "")
        + f"; {_speed(results, 'examples')}.",
        "",
        *_table(["metric", "value", interval], [[code(one.name), *_metric_cells(one, notes)] for one in figures]),
        *_notes(notes),
    ]
    lines += [line for note in caveats(results) for line in ("", code(note))]
    confusions = top_confusions(results)[:_CONFUSIONS]
    if confusions:
        rows = [[code(one.label), code(one.prediction), str(one.count)] for one in confusions]
        lines += ["", "Most frequent confusions:", "", *_table(["true", "predicted", "examples"], rows)]
    classes = by_class(results, _CLASSES)
    if classes:
        rows = [[code(label), *(value + end for value, end in cells)] for label, cells in classes.rows]
        lines += ["", "<details>", f"<summary>By {classes.what}</summary>", ""]
        lines += _table([classes.what, *classes.columns], rows)
        lines += [line for note in classes.notes for line in ("", code(note))]
        lines += (
            ["", f"{format_count(classes.not_shown, 'more is', 'more are')} in results.json."]
            if classes.not_shown
            else []
        )
        lines += ["", "</details>"]
    for table in slices(results):
        columns, notes = [cell for name in table.names for cell in (name, interval)], Footnotes()
        rows = [
            [code(name), str(count), *(cell for one in shown for cell in _metric_cells(one, notes))]
            for name, count, shown in table.rows
        ]
        lines += ["", "<details>", f"<summary>By <code>{escape(' '.join(table.by.split()))}</code></summary>", ""]
        lines += _table(["slice", "examples", *columns], rows)
        left_out = (line for words in table.left_out for line in ("", code(words)))
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


def _metric_cells(one: MetricCell, notes: Footnotes) -> list[str]:
    if one.limits is not None:
        return [one.value or "–", " to ".join(one.limits)]
    return [one.value or "–", f"–{notes.mark(one.why_undefined or one.why_no_interval)}"]
