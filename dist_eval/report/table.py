"""The table of results that a run prints at the end."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from pathlib import Path
from typing import Any

from dist_eval.data.problems import MULTI_LABEL, REGRESSION
from dist_eval.metrics.catalogue import OF_CLASS, OF_OUTPUT, is_unbounded, metric_names
from dist_eval.metrics.computing import Metrics
from dist_eval.report.footnotes import Footnotes
from dist_eval.runs.figures import RELIABILITY, figure_name
from dist_eval.runs.files import PREDICTIONS, REPORT, RESULTS
from dist_eval.statistics.units import FEW_UNITS
from dist_eval.tables import text_table

_CLASSES_IN_TABLE, _NAME_WIDTH = 40, 20
_LEAST, _MOST = 5e-5, 1e6
_SLICES_IN_TABLE, _FIGURES_OF_A_SLICE, _VALUE_WIDTH = 60, 2, 40
_AVERAGES = ("macro", "micro", "weighted")


def format_results(metrics: Metrics, facts: dict[str, Any], folder: Path) -> str:
    """Formats the results of a run for the terminal.

    Args:
        metrics: the metrics.
        facts: the other sections of `results.json`.
        folder: the run's folder.
    """
    values, coverage, data = metrics.values, facts["coverage"], facts["data"]
    shown = figures_shown(metrics.problem, values, metrics.custom)
    notes = {name: why for name, why in metrics.undefined.items() if name in shown}
    if metrics.majority_share is not None:
        notes["accuracy"] = f"always guessing the most frequent class: {metrics.majority_share:.4f}"
    intervals = facts["intervals"]
    confidence = next(iter(intervals.values()))["confidence"]
    head = f" value  {100 * confidence:g}% interval"
    lines = ["", *format_figures({name: values[name] for name in shown}, notes, intervals, head)]
    lines += ["", *(_output_lines(metrics) if metrics.problem == REGRESSION.name else _class_lines(metrics, coverage))]
    lines += [f"{name}: undefined, {why}" for name, why in metrics.undefined.items() if name not in shown]
    lines += format_slices(facts.get("slices") or [], metrics.problem)
    throughput, ranks = facts["throughput"], len(facts["ranks"])
    lines += [
        "",
        f"coverage: {coverage['seen']} of {coverage['expected']} examples, each exactly once"
        + (f"; {coverage['failed']} failed and are in no figure (see failures)" if coverage["failed"] else "")
        + (f"; {data['truncated']} texts cut to {data['max_length']} tokens" if data["truncated"] else "")
        + (f"; {data['multiline']} texts have several lines" if data["multiline"] else "")
        + (f"; {data['blank']} texts have no token of their own" if data["blank"] else "")
        + (f"; {data['unknown']} texts have no token that the tokenizer knows" if data["unknown"] else ""),
        f"speed: {throughput['examples_per_second']:.1f} examples/s, {throughput['tokens_per_second']:.0f} tokens/s "
        f"on {ranks} rank{'s' if ranks > 1 else ''}",
        *group_lines(facts.get("groups")),
        *_spread_lines(facts.get("spread")),
        *_backend_lines(facts.get("backends")),
        *_audit_lines(facts["audit"]),
        "files:",
        *(f"  {folder / name}" for name in (RESULTS, PREDICTIONS, figure_name(metrics))),
        *([f"  {folder / RELIABILITY}"] if facts.get("calibration") else []),
        *([f"  {folder / REPORT}"] if (folder / REPORT).exists() else []),
    ]
    return "\n".join(lines)


def format_figures(
    values: dict[str, float | None],
    notes: dict[str, str],
    intervals: dict[str, dict[str, Any]] | None = None,
    head: str | None = None,
) -> list[str]:
    """Returns a line for each metric, with its interval and note, if any; below a header, if any."""
    rows = [] if head is None else [("", head)]
    for name, value in values.items():
        number = "     -" if value is None else figure_words(name, value)
        interval = "" if value is None else _interval(name, (intervals or {}).get(name))
        note = f"  ({notes[name]})" if name in notes else ""
        rows.append((name, f"{number}{interval}{note}"))
    return text_table(rows, [f"<{max([_NAME_WIDTH, *map(len, values)])}", "<"])


def figure_words(name: str, value: float) -> str:
    """Formats a metric: four decimals, or four significant digits for very small, large or unbounded values."""
    if is_unbounded(name) or (value and not _LEAST <= abs(value) < _MOST):
        return f"{value:#.4g}".removesuffix(".")
    return f"{value:.4f}"


def figures_shown(problem: str, values: Container[str], custom: Iterable[str]) -> list[str]:
    """Returns the names of the main metrics of a problem type, those that a run has, and of its custom metrics."""
    return [*(name for name in metric_names(problem, "table") if name in values), *custom]


def headline(metrics: dict[str, Any], problem: str) -> tuple[str, float | None]:
    """Returns name and value of the most important metric in the section `metrics` of `results.json`."""
    name = metric_names(problem, "cards")[0]
    return name, metrics.get(name)


def format_slices(slices: list[dict[str, Any]], problem: str) -> list[str]:
    """Returns a table of the slices with their main metrics; empty without slices."""
    if not slices:
        return []
    names, shown = figures_of_slices(problem), slices[:_SLICES_IN_TABLE]
    labels = [f"{one['by']}: {' '.join(slice_name(one).split())}" for one in shown]
    labels = [label if len(label) <= _VALUE_WIDTH else label[: _VALUE_WIDTH - 3] + "..." for label in labels]
    notes = Footnotes()
    rows = [["slice", "n", *names]]
    for label, one in zip(labels, shown, strict=True):
        cells = (_number(one["metrics"][name], name) + _ends_or_mark(one, name, notes) for name in names)
        rows.append([label, str(one["n"]), *cells])
    lines = ["", *text_table(rows, ["<", ">8", *["<23"] * len(names)])]
    if len(slices) > len(shown):
        lines.append(f"... and {len(slices) - len(shown)} more slices in {RESULTS}")
    return lines + notes.lines()


def _ends_or_mark(one: dict[str, Any], name: str, notes: Footnotes) -> str:
    interval = one["intervals"][name]
    return interval_words(name, {**interval, "reason": one["undefined"].get(name) or interval["reason"]}, notes)


def interval_words(name: str, interval: dict[str, Any], notes: Footnotes) -> str:
    """Returns the suffix of a metric in a table: its interval, or the number of the footnote with the reason."""
    return _ends(name, interval) or notes.mark(interval["reason"])


def figures_of_slices(problem: str) -> Sequence[str]:
    """Returns the names of the metrics shown for slices."""
    return metric_names(problem, "slices")[:_FIGURES_OF_A_SLICE]


def slice_name(entry: dict[str, Any]) -> str:
    """Returns the name of a slice, from its entry in the section `slices`."""
    return "(missing)" if entry["value"] is None else entry["value"] or "(empty)"


def group_lines(groups: dict[str, Any] | None) -> list[str]:
    """Returns a line on how intervals account for groups; empty without groups."""
    if groups is None:
        return []
    few = f"; with fewer than {FEW_UNITS} there are none" if groups["count"] < FEW_UNITS else ""
    return [f"intervals: {groups['count']} groups of {groups['column']!r} are resampled as clusters{few}"]


def _class_lines(metrics: Metrics, coverage: dict[str, int]) -> list[str]:
    what, values, rows = ("class", metrics.values, metrics.per_class[:_CLASSES_IN_TABLE])
    what = "label" if metrics.problem == MULTI_LABEL.name else what
    table = [[what, *OF_CLASS, "support"]]
    table += [[row["label"], *(_number(row[name]) for name in OF_CLASS), str(row["support"])] for row in rows]
    for average in _AVERAGES:
        numbers = (_number(values[f"{name}_{average}"]) for name in OF_CLASS)
        table.append([f"{average} avg", *numbers, str(coverage["seen"])])
    lines = text_table(table, ["<", ">9", ">6", ">6", ">7"])
    if len(metrics.per_class) > _CLASSES_IN_TABLE:
        plural = "classes" if what == "class" else "labels"
        more = f"... and {len(metrics.per_class) - _CLASSES_IN_TABLE} more {plural} in {RESULTS}"
        lines.insert(-len(_AVERAGES), more)
    return lines


def _output_lines(metrics: Metrics) -> list[str]:
    if len(metrics.per_class) < 2:
        return []
    rows = metrics.per_class[:_CLASSES_IN_TABLE]
    table = [
        ["output", *OF_OUTPUT],
        *([row["label"], *(_number(row[name], name) for name in OF_OUTPUT)] for row in rows),
    ]
    lines = text_table(table, ["<", *[">9"] * len(OF_OUTPUT)])
    if len(metrics.per_class) > len(rows):
        lines.append(f"... and {len(metrics.per_class) - len(rows)} more outputs in {RESULTS}")
    return lines


def _spread_lines(spread: dict[str, Any] | None) -> list[str]:
    if spread is None:
        return []
    return [
        f"by rank: {spread['figure']} from {spread['lowest']:.4f} (rank {spread['lowest_rank']}) to "
        f"{spread['highest']:.4f} (rank {spread['highest_rank']}), their plain mean {spread['mean']:.4f}; the figures "
        "above are over all examples"
    ]


def _backend_lines(backends: dict[str, Any] | None) -> list[str]:
    if backends is None:
        return []
    changed = backends["changed"]
    what = "" if changed is None else f"; {changed or 'no'} prediction{'s' if changed != 1 else ''} changed"
    return [
        f"swarm and local backend: largest difference of a logit {backends['largest_difference']:.1e}, over "
        f"{backends['compared']} examples{what}" + (f" (see {backends['file']})" if backends["file"] else "")
    ]


def _audit_lines(audit: dict[str, Any] | None) -> list[str]:
    if audit is None:
        return []
    without = audit["alone"] + audit["unanswered"]
    lines = [
        f"audit: {audit['batches']} batches sent twice, over different servers; "
        + (f"{audit['disputes']} differ" if audit["disputes"] else "all agree")
        + f" (largest difference that counts as equal: {audit['largest_difference']:.1e})"
        + (f"; for {without} there was no other server" if without else "")
    ]
    for server in audit["servers"]:
        if server["odd"]:
            lines.append(f"audit: {server['peer']} was outvoted by other servers; its batches were recomputed")
    for dispute in audit["first_disputes"][:1]:
        lines.append(
            f"audit: undecided which of {' and '.join(dispute['peers'])} is right ({dispute['why']}); the result "
            f"may be wrong, all disputes are in {RESULTS}"
        )
    return lines


def _number(value: float | None, name: str = "") -> str:
    return "-" if value is None else figure_words(name, value)


def _interval(name: str, interval: dict[str, Any] | None) -> str:
    if interval is None:
        return ""
    return _ends(name, interval) or f"  (no interval: {interval['reason']})"


def _ends(name: str, interval: dict[str, Any]) -> str:
    if interval["low"] is None:
        return ""
    return f" [{figure_words(name, interval['low'])}, {figure_words(name, interval['high'])}]"
