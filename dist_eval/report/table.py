"""The table of results that a run prints at the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from dist_eval.data.problem_types import MULTI_LABEL, REGRESSION
from dist_eval.data.token_ids import ONE_BEGINNING
from dist_eval.metrics.catalogue import OF_CLASS, OF_OUTPUT, metric_names
from dist_eval.metrics.units import FEW_UNITS
from dist_eval.metrics.words import interval_words, limits_words, metric_words
from dist_eval.printable import printable_lines
from dist_eval.results.inputs import DatasetSummary, SessionsSummary
from dist_eval.results.record import MetricValues
from dist_eval.results.run import EvaluationResults
from dist_eval.results.scores import Groups, Interval, Scores, Slice
from dist_eval.results.work import Audit, Spread, Swarm
from dist_eval.runs.figures import RELIABILITY, figure_name
from dist_eval.runs.files import PREDICTIONS, REPORT, RESULTS
from dist_eval.tables import Footnotes, format_count, text_table

_CLASSES_IN_TABLE, _NAME_WIDTH = 40, 20
_SLICES_IN_TABLE, _METRICS_OF_A_SLICE, _VALUE_WIDTH = 60, 2, 40
_AVERAGES = ("macro", "micro", "weighted")


def format_results(results: EvaluationResults, folder: Path) -> str:
    """Formats the results of a run for the terminal.

    Args:
        results: the sections of `results.json`.
        folder: the run's folder.
    """
    coverage, data, problem = results.coverage, results.data, results.problem_type
    shown = metrics_shown(results)
    notes = {name: why for name, why in results.undefined.items() if name in shown}
    if results.majority_share is not None:
        notes["accuracy"] = f"always guessing the most frequent class: {results.majority_share:.4f}"
    confidence = next(iter(results.intervals.values())).confidence
    head = f" value  {100 * confidence:g}% interval"
    lines = ["", *format_metrics({name: results.metrics[name] for name in shown}, notes, results.intervals, head)]
    lines += ["", *_class_lines(results)]
    lines += [f"{name}: undefined, {why}" for name, why in results.undefined.items() if name not in shown]
    lines += format_slices(results.slices, problem)
    throughput, ranks = results.throughput, len(results.ranks)
    lines += [
        "",
        f"coverage: {coverage.seen} of {format_count(coverage.expected, 'example')}, each exactly once"
        + (f"; {coverage.failed} failed and are in no metric (see failures)" if coverage.failed else "")
        + (
            f"; {format_count(data.truncated, 'text')} cut to {format_count(data.max_length, 'token')}"
            if data.truncated
            else ""
        )
        + (f"; {format_count(data.multiline, 'text has', 'texts have')} several lines" if data.multiline else "")
        + (
            f"; {format_count(data.blank, 'text has no token of its own', 'texts have no token of their own')}"
            if data.blank
            else ""
        )
        + (
            f"; {format_count(data.unknown, 'text has', 'texts have')} no token that the tokenizer knows"
            if data.unknown
            else ""
        )
        + (f"; {format_count(data.with_begin, 'text has', 'texts have')} {ONE_BEGINNING}" if data.with_begin else "")
        + (f"; {format_count(data.mended_labels, 'label')} mended, such as 5.0 for 5" if data.mended_labels else "")
        + (f"; read from {format_count(len(data.shards), 'file')}" if data.shards else ""),
        f"speed: {throughput.examples_per_second:.1f} examples/s, {throughput.tokens_per_second:.0f} tokens/s "
        f"on {format_count(ranks, 'rank')}",
        *selection_lines(data, results.groups),
        *group_lines(results.groups),
        *_spread_lines(results.spread),
        *([f"adapter: {results.model.adapter}"] if results.model.adapter else []),
        *precision_lines(results.swarm),
        *_audit_lines(results.audit),
        "files:",
        *(f"  {folder / name}" for name in (RESULTS, PREDICTIONS, figure_name(problem))),
        *([f"  {folder / RELIABILITY}"] if results.calibration else []),
        *([f"  {folder / REPORT}"] if (folder / REPORT).exists() else []),
    ]
    return printable_lines("\n".join(lines))


def format_metrics(
    values: MetricValues, notes: Mapping[str, str], intervals: Mapping[str, Interval], head: str | None = None
) -> list[str]:
    """Returns a line for each metric, with its interval and note, if any; below a header, if any."""
    rows = [] if head is None else [("", head)]
    for name, value in values.items():
        number = "     -" if value is None else metric_words(name, value)
        interval = "" if value is None else _interval(name, intervals.get(name))
        note = f"  ({notes[name]})" if name in notes else ""
        rows.append((name, f"{number}{interval}{note}"))
    return text_table(rows, [f"<{max([_NAME_WIDTH, *map(len, values)])}", "<"])


def metrics_shown(scores: Scores) -> list[str]:
    """Returns the names of the main metrics of the problem type, those that a run has, and of its custom metrics."""
    return [
        *(name for name in metric_names(scores.problem_type, "table") if name in scores.metrics),
        *scores.custom_metrics,
    ]


def headline(scores: Scores) -> tuple[str, float | None]:
    """Returns name and value of the most important metric."""
    name = metric_names(scores.problem_type, "cards")[0]
    return name, scores.metrics.get(name)


def format_slices(slices: Sequence[Slice], problem: str) -> list[str]:
    """Returns a table of the slices with their main metrics; empty without slices."""
    if not slices:
        return []
    names, shown = metrics_of_slices(problem), slices[:_SLICES_IN_TABLE]
    labels = [f"{one.by}: {' '.join(slice_name(one).split())}" for one in shown]
    labels = [label if len(label) <= _VALUE_WIDTH else label[: _VALUE_WIDTH - 3] + "..." for label in labels]
    notes = Footnotes()
    rows = [["slice", "n", *names]]
    for label, one in zip(labels, shown, strict=True):
        cells = (
            _number(one.metrics[name], name) + interval_words(name, one.intervals[name], notes, one.undefined.get(name))
            for name in names
        )
        rows.append([label, str(one.n), *cells])
    lines = ["", *text_table(rows, ["<", ">8", *["<23"] * len(names)])]
    if len(slices) > len(shown):
        lines.append(f"... and {format_count(len(slices) - len(shown), 'more slice')} in {RESULTS}")
    return lines + notes.lines()


def metrics_of_slices(problem: str) -> Sequence[str]:
    """Returns the names of the metrics shown for slices."""
    return metric_names(problem, "slices")[:_METRICS_OF_A_SLICE]


def slice_name(one: Slice) -> str:
    """Returns the name of a slice."""
    return "(missing)" if one.value is None else one.value or "(empty)"


def selection_words(data: DatasetSummary) -> str:
    """Returns which rows of the dataset were evaluated; empty if all of them."""
    selection = data.selection
    if selection is None:
        return ""
    what = f"{selection.rows:,} of {selection.population:,} row{'s' if selection.population != 1 else ''}"
    if selection.method == "first":
        return f"the first {what}"
    by = ", each class in its share," if selection.method == "stratified" else ","
    return f"{what}{by} sampled with seed {selection.seed}"


def selection_lines(data: DatasetSummary, groups: Groups | None) -> list[str]:
    """Returns a line on which rows were evaluated, and what the intervals say of the others; empty if all were."""
    selection = data.selection
    if selection is None:
        return []
    if groups is not None:
        of_others = "; the intervals are for further groups of this kind"
    elif selection.method != "first":
        of_others = f"; the intervals are for the metrics of all {selection.population:,}"
    elif selection.rows < selection.population:
        of_others = "; no random sample, so the intervals say nothing of the other rows"
    else:
        of_others = ""
    return [f"rows: {selection_words(data)}{of_others}"]


def group_lines(groups: Groups | None) -> list[str]:
    """Returns a line on how intervals account for groups; empty without groups."""
    if groups is None:
        return []
    few = f"; with fewer than {FEW_UNITS} there are none" if groups.count < FEW_UNITS else ""
    return [
        f"intervals: {format_count(groups.count, 'group')} of {groups.column!r} "
        f"{'is' if groups.count == 1 else 'are'} resampled as clusters{few}"
    ]


def precision_lines(swarm: Swarm | None) -> list[str]:
    """Returns a line about servers that computed in different precisions; none if they did not."""
    precisions = (swarm and swarm.precisions) or []
    if len(precisions) < 2:
        return []
    return [f"servers computed in {' and '.join(precisions)}: the figures depend on which of them got which batch"]


def caveats(results: EvaluationResults) -> list[str]:
    """Returns the lines on which rows were evaluated, on groups, and on the servers' precisions."""
    return [
        *selection_lines(results.data, results.groups),
        *group_lines(results.groups),
        *precision_lines(results.swarm),
        *session_lines(results.sessions),
    ]


def session_lines(sessions: SessionsSummary | None) -> list[str]:
    """Returns a line on batches that servers had no room for as planned; empty without any."""
    if sessions is None or not sessions.fell_back:
        return []
    return [
        f"{sessions.fell_back} of {format_count(sessions.batches, 'batch was', 'batches were')} planned for "
        f"sessions, but sent as plain forwards: "
        "the last digits may differ from those of other runs"
    ]


def class_columns(problem: str) -> tuple[str, Sequence[str]]:
    """Returns what the entries of the section `per_class` are, class, label or output, and their columns."""
    if problem == REGRESSION.name:
        return "output", OF_OUTPUT
    return "label" if problem == MULTI_LABEL.name else "class", (*OF_CLASS, "support")


def _class_lines(results: EvaluationResults) -> list[str]:
    (what, columns), rows = class_columns(results.problem_type), results.per_class
    is_regression, hidden = what == "output", len(rows) - _CLASSES_IN_TABLE
    if is_regression and len(rows) < 2:
        return []
    table = [[what, *columns]]
    for row in rows[:_CLASSES_IN_TABLE]:
        table.append([row.label, *(_number(getattr(row, name), name) for name in columns)])
    averages = () if is_regression else _AVERAGES
    for average in averages:
        numbers = (_number(results.metrics[f"{name}_{average}"]) for name in OF_CLASS)
        table.append([f"{average} avg", *numbers, str(results.coverage.seen)])
    lines = text_table(table, ["<", *([">9"] * len(columns) if is_regression else [">9", ">6", ">6", ">7"])])
    if hidden > 0:
        count = format_count(hidden, f"more {what}", "more classes" if what == "class" else "")
        lines.insert(len(lines) - len(averages), f"... and {count} in {RESULTS}")
    return lines


def _spread_lines(spread: Spread | None) -> list[str]:
    if spread is None:
        return []
    return [
        f"by rank: {spread.figure} from {spread.lowest:.4f} (rank {spread.lowest_rank}) to {spread.highest:.4f} "
        f"(rank {spread.highest_rank}), their plain mean {spread.mean:.4f}; the metrics above are over all examples"
    ]


def _audit_lines(audit: Audit | None) -> list[str]:
    if audit is None:
        return []
    without = audit.alone + audit.unanswered
    lines = [
        f"audit: {format_count(audit.batches, 'batch', 'batches')} sent twice, over different servers; "
        + (f"{format_count(audit.disputes, 'differs', 'differ')}" if audit.disputes else "all agree")
        + f" (largest difference that counts as equal: {audit.largest_difference:.1e})"
        + (f"; for {without} there was no other server" if without else "")
    ]
    for server in audit.servers:
        if server.odd:
            lines.append(f"audit: {server.peer} was outvoted by other servers; its batches were recomputed")
    for dispute in audit.first_disputes[:1]:
        lines.append(
            f"audit: undecided which of {' and '.join(dispute.peers)} is right ({dispute.why}); the result may be "
            f"wrong, all disputes are in {RESULTS}"
        )
    return lines


def _number(value: float | None, name: str = "") -> str:
    if isinstance(value, int):
        return str(value)
    return "-" if value is None else metric_words(name, value)


def _interval(name: str, interval: Interval | None) -> str:
    return limits_words(name, interval) or (f"  (no interval: {interval.reason})" if interval else "")
