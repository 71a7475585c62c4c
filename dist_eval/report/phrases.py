"""What there is to say of a run on a dataset beside its tables: which examples, and what to be careful about."""

from __future__ import annotations

from collections.abc import Sequence

from dist_eval.data.problem_types import MULTI_LABEL, REGRESSION
from dist_eval.data.tokenizers import ONE_BEGINNING
from dist_eval.metrics.catalogue import OF_CLASS, OF_OUTPUT, metric_names
from dist_eval.metrics.units import FEW_UNITS
from dist_eval.report.naming import name_of
from dist_eval.results.inputs import SelectionSummary, SessionsSummary
from dist_eval.results.run import EvaluationResults
from dist_eval.results.scores import Groups, Scores, Slice
from dist_eval.results.work import Audit, Spread, Swarm
from dist_eval.runs.files import RESULTS
from dist_eval.tables import format_count

_METRICS_OF_A_SLICE, _VALUE_WIDTH = 2, 80


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
        (data.normalized_labels, f"{format_count(data.normalized_labels, 'label')} normalized, such as 5.0 for 5"),
        (data.shards, f"read from {format_count(len(data.shards or ()), 'file')}"),
    ]
    return "; ".join(part for is_said, part in parts if is_said)


def _texts_have(count: int) -> str:
    return format_count(count, "text has", "texts have")


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


def metrics_of_slices(problem: str) -> Sequence[str]:
    """Returns the names of the metrics shown for slices."""
    return metric_names(problem, "slices")[:_METRICS_OF_A_SLICE]


def slice_name(part: Slice) -> str:
    """Returns the name of a slice, in one line of bounded length."""
    name = "(missing)" if part.value is None else " ".join(part.value.split()) or "(empty)"
    return name if len(name) <= _VALUE_WIDTH else name[: _VALUE_WIDTH - 3] + "..."


def format_selection(selection: SelectionSummary | None) -> str:
    """Returns which rows of the dataset were evaluated; empty if all of them."""
    if selection is None:
        return ""
    what = f"{selection.rows:,} of {selection.population:,} row{'s' if selection.population != 1 else ''}"
    if selection.method == "first":
        return f"the first {what}"
    by = ", each class in its share," if selection.method == "stratified" else ","
    return f"{what}{by} sampled with seed {selection.seed}"


def _selection_lines(selection: SelectionSummary | None, groups: Groups | None) -> list[str]:
    """Returns a line on which rows were evaluated, and what the intervals say of the others; empty if all were."""
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
    return [f"rows: {format_selection(selection)}{of_others}"]


def _group_lines(groups: Groups | None) -> list[str]:
    """Returns a line on how intervals account for groups; empty without groups."""
    if groups is None:
        return []
    few = f"; with fewer than {FEW_UNITS} there are none" if groups.count < FEW_UNITS else ""
    return [
        f"intervals: {format_count(groups.count, 'group')} of {groups.column!r} "
        f"{'is' if groups.count == 1 else 'are'} resampled as clusters{few}"
    ]


def _precision_lines(swarm: Swarm | None) -> list[str]:
    """Returns a line about servers that computed in different precisions; none if they did not."""
    precisions = (swarm and swarm.precisions) or []
    if len(precisions) < 2:
        return []
    return [f"servers computed in {' and '.join(precisions)}: the figures depend on which of them got which batch"]


def row_caveats(selection: SelectionSummary | None, groups: Groups | None) -> list[str]:
    """Returns lines on which rows of a dataset were evaluated, and which of them belong together; empty if none do."""
    return [*_selection_lines(selection, groups), *_group_lines(groups)]


def caveats(results: EvaluationResults) -> list[str]:
    """Returns what a reader of the metrics should know: rows, groups, ranks, adapter, precisions, sessions, audit."""
    return [
        *row_caveats(results.data.selection, results.groups),
        *_spread_lines(results.spread),
        *([f"adapter: {name_of(results.model.adapter)}"] if results.model.adapter else []),
        *_precision_lines(results.swarm),
        *_session_lines(results.sessions),
        *audit_lines(results.audit),
    ]


def _session_lines(sessions: SessionsSummary | None) -> list[str]:
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
