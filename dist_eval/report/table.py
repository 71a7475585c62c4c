"""What a run prints at the end, and the phrases that this and the report have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from dist_eval.data.problem_types import MULTI_LABEL, REGRESSION
from dist_eval.data.token_ids import ONE_BEGINNING
from dist_eval.metrics.catalogue import OF_CLASS, OF_OUTPUT, metric_names
from dist_eval.metrics.units import FEW_UNITS
from dist_eval.metrics.words import format_interval, format_limits, format_metric
from dist_eval.printable import printable_lines
from dist_eval.report.tasks import format_requests, unit_of
from dist_eval.results.harness import HarnessResults
from dist_eval.results.inputs import DatasetSummary, SessionsSummary
from dist_eval.results.record import MetricValues
from dist_eval.results.run import EvaluationResults
from dist_eval.results.scores import Groups, Interval, Scores, Slice
from dist_eval.results.work import Audit, Spread, Swarm
from dist_eval.runs.files import PREDICTIONS, REPORT, RESULTS
from dist_eval.runs.plots import RELIABILITY, plot_name
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
    shown, problem = metrics_shown(results), results.problem_type
    notes = {name: why for name, why in results.undefined.items() if name in shown}
    if results.majority_share is not None:
        notes["accuracy"] = f"always guessing the most frequent class: {results.majority_share:.4f}"
    values = {name: results.metrics[name] for name in shown}
    lines = [
        "",
        *format_metrics(values, notes, results.intervals, _head(next(iter(results.intervals.values())).confidence)),
        "",
        *_class_lines(results),
        *(f"{name}: undefined, {why}" for name, why in results.undefined.items() if name not in shown),
        *format_slices(results.slices, problem),
        "",
        f"coverage: {format_coverage(results)}",
        _speed(results, "examples"),
        *selection_lines(results.data, results.groups),
        *group_lines(results.groups),
        *_spread_lines(results.spread),
        *([f"adapter: {results.model.adapter}"] if results.model.adapter else []),
        *precision_lines(results.swarm),
        *audit_lines(results.audit),
    ]
    plots = [plot_name(problem), *([RELIABILITY] if results.calibration else [])]
    return _with_files(lines, folder, [RESULTS, PREDICTIONS, *plots])


def format_tasks(results: HarnessResults, folder: Path) -> str:
    """Formats the results of a run on tasks, or on prompts, for the terminal.

    Args:
        results: the sections of `results.json`.
        folder: the run's folder.
    """
    lines: list[str] = []
    for name, task in results.tasks.items():
        shots = f", {format_count(task.num_fewshot, 'example')} in front of each" if task.num_fewshot else ""
        values = {metric.key: metric.value for metric in task.metrics}
        intervals = {metric.key: metric.interval for metric in task.metrics}
        confidence = task.metrics[0].interval.confidence if task.metrics else 0.95
        lines += ["", f"{name}: {format_count(task.documents, 'document')}{shots}"]
        lines += format_metrics(values, {}, intervals, _head(confidence))
    for name, group in results.groups.items():
        lines += ["", f"{name}: {', '.join(group.tasks)}"]
        lines += format_metrics({metric.key: metric.value for metric in group.metrics}, {}, {})
    lines += ["", f"coverage: {format_requests(results)}", _speed(results, unit_of(results))]
    lines += [f"notice: {text}" for text in results.notices]
    return _with_files(lines, folder, [RESULTS, results.files.results, *results.files.samples.values()])


def _head(confidence: float) -> str:
    return f" value  {100 * confidence:g}% interval"


def _speed(results: EvaluationResults | HarnessResults, unit: str) -> str:
    throughput, ranks = results.throughput, format_count(len(results.ranks), "rank")
    speed, tokens = throughput.examples_per_second, throughput.tokens_per_second
    return f"speed: {speed:.1f} {unit}/s, {tokens:.0f} tokens/s on {ranks}"


def _with_files(lines: Sequence[str], folder: Path, names: Sequence[str | None]) -> str:
    """Returns all lines, and those that name the run's files."""
    paths = [folder / name for name in names if name]
    if (folder / REPORT).exists():
        paths.append(folder / REPORT)
    return printable_lines("\n".join([*lines, "files:", *(f"  {path}" for path in paths)]))


def format_coverage(results: EvaluationResults) -> str:
    """Returns how many examples were evaluated, and what was odd about their texts and labels."""
    coverage, data = results.coverage, results.data
    blank = format_count(data.blank, "text has no token of its own", "texts have no token of their own")
    parts = [
        (True, f"{coverage.seen} of {format_count(coverage.expected, 'example')}, each exactly once"),
        (coverage.failed, f"{coverage.failed} failed and are in no metric (see failures)"),
        (data.truncated, f"{format_count(data.truncated, 'text')} cut to {format_count(data.max_length, 'token')}"),
        (data.multiline, f"{_texts_have(data.multiline)} several lines"),
        (data.blank, blank),
        (data.unknown, f"{_texts_have(data.unknown)} no token that the tokenizer knows"),
        (data.with_begin, f"{_texts_have(data.with_begin)} {ONE_BEGINNING}"),
        (data.mended_labels, f"{format_count(data.mended_labels, 'label')} mended, such as 5.0 for 5"),
        (data.shards, f"read from {format_count(len(data.shards or ()), 'file')}"),
    ]
    return "; ".join(part for is_said, part in parts if is_said)


def _texts_have(count: int) -> str:
    return format_count(count, "text has", "texts have")


def format_metrics(
    values: MetricValues, notes: Mapping[str, str], intervals: Mapping[str, Interval], head: str | None = None
) -> list[str]:
    """Returns a line for each metric, with its interval and note, if any; below a header, if any."""
    rows = [] if head is None else [("", head)]
    for name, value in values.items():
        number = "     -" if value is None else format_metric(name, value)
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
    labels = [f"{part.by}: {' '.join(slice_name(part).split())}" for part in shown]
    labels = [label if len(label) <= _VALUE_WIDTH else label[: _VALUE_WIDTH - 3] + "..." for label in labels]
    notes = Footnotes()
    rows = [["slice", "n", *names]]
    for label, part in zip(labels, shown, strict=True):
        cells = (
            _number(part.metrics[name], name)
            + format_interval(name, part.intervals[name], notes, part.undefined.get(name))
            for name in names
        )
        rows.append([label, str(part.n), *cells])
    lines = ["", *text_table(rows, ["<", ">8", *["<23"] * len(names)])]
    if len(slices) > len(shown):
        lines.append(f"... and {format_count(len(slices) - len(shown), 'more slice')} in {RESULTS}")
    return lines + notes.lines()


def metrics_of_slices(problem: str) -> Sequence[str]:
    """Returns the names of the metrics shown for slices."""
    return metric_names(problem, "slices")[:_METRICS_OF_A_SLICE]


def slice_name(part: Slice) -> str:
    """Returns the name of a slice."""
    return "(missing)" if part.value is None else part.value or "(empty)"


def format_selection(data: DatasetSummary) -> str:
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
    return [f"rows: {format_selection(data)}{of_others}"]


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
    batches = format_count(sessions.batches, "batch was", "batches were")
    return [
        f"{sessions.fell_back} of {batches} planned for sessions, but sent as plain forwards: the last digits may "
        "differ from those of other runs"
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


def audit_lines(audit: Audit | None) -> list[str]:
    """Returns lines on what an audit found; empty without one."""
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
    return "-" if value is None else format_metric(name, value)


def _interval(name: str, interval: Interval | None) -> str:
    return format_limits(name, interval) or (f"  (no interval: {interval.reason})" if interval else "")
