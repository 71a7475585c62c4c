"""Sections that runs of several kinds share: slices, failures, ranks and servers, and caveats."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from dist_eval.data.tokenizers import HAS_BOS
from dist_eval.metrics.catalogue import metric_names
from dist_eval.metrics.units import FEW_UNITS
from dist_eval.petals.client.records import Audit, ServerTraffic
from dist_eval.report.document import Number, Rows, Section, Table, metric_number
from dist_eval.report.naming import name_of
from dist_eval.results.inputs import FailedExample, SelectionSummary
from dist_eval.results.run import AnyCompleteRun, EvaluationResults
from dist_eval.results.scores import Groups, Scores, Slice
from dist_eval.runs.files import RESULTS
from dist_eval.tables import Footnotes, format_count

_ROWS_IN_SUMMARY, _SLICE_WIDTH, _LONGEST_NAME = 30, 40, 80
_SLOW, _SLOW_SECONDS = 1.2, 1.0  # a slow rank takes that many times the median duration, and seconds more


def slice_sections(slices: Sequence[Slice], names: Sequence[str]) -> list[Section]:
    """Returns a section with the slices by each column; `names` are the metrics, most important first."""
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
        [_slice_name(part), Number(str(part.n)), *(metric_number(name, part, notes) for name in shown)]
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
    where = f"In {_slice_name(slices[0])!r}"
    return f"No slice has {name}. {where}: {first}. The reasons for the others are in results.json."


def _slice_name(part: Slice) -> str:
    name = "(missing)" if part.value is None else " ".join(part.value.split()) or "(empty)"
    return name if len(name) <= _LONGEST_NAME else name[: _LONGEST_NAME - 3] + "..."


def failure_sections(failures: Sequence[FailedExample]) -> list[Section]:
    """Returns a section with the failed examples; none if there are none."""
    if not failures:
        return []
    rows: Rows = [[f"#{failure.index}", failure.reason] for failure in failures]
    caption = f"{format_count(len(failures), 'example')} without a prediction"
    return [Section("Failures", [Table(caption, ["example", "reason"], rows, is_folded=True)])]


def format_speed(results: AnyCompleteRun, unit: str) -> str:
    """Returns the speed of all ranks together; `unit` is a plural."""
    speed, ranks = results.throughput, format_count(len(results.ranks), "rank")
    return f"{speed.examples_per_second:.1f} {unit}/s, {speed.tokens_per_second:.0f} tokens/s on {ranks}"


def work_details(results: AnyCompleteRun) -> dict[str, Any]:
    """Returns place, time and versions of a run, by name."""
    environment = results.environment
    return {
        "ranks": f"{len(results.ranks)} on {format_count(len({rank.host for rank in results.ranks}), 'host')}",
        "started": results.started,
        "finished": results.finished,
        "swarm": results.swarm and results.swarm.dht_prefix,
        "versions": ", ".join(f"{name} {version}" for name, version in environment.packages.items()),
        "git commit": environment.git_commit,
    }


def work_section(results: AnyCompleteRun, unit: str, *, with_hosts: bool) -> Section:
    """Returns the section about the work of ranks and servers."""
    tables = [_rank_table(results, unit, with_hosts=with_hosts), *_server_tables(results)]
    return Section("Ranks and servers", tables)


def _rank_table(results: AnyCompleteRun, unit: str, *, with_hosts: bool) -> Table:
    hosts = {
        host: f"host {number}" for number, host in enumerate(dict.fromkeys(rank.host for rank in results.ranks), 1)
    }
    seconds = [rank.seconds for rank in results.ranks]
    longest, median = max(seconds), statistics.median(seconds)
    rows: Rows = [
        [
            str(rank.rank),
            rank.host if with_hosts else hosts[rank.host],
            *(Number(str(count)) for count in (rank.samples, rank.resumed, rank.batches)),
            Number(f"{rank.seconds:.2f}"),
            Number(
                (f"{100 * rank.seconds / longest:.0f}%" if longest else "-")
                + (" (slow)" if rank.seconds > max(_SLOW * median, median + _SLOW_SECONDS) else "")
            ),
            Number(f"{rank.samples / rank.seconds:.1f}" if rank.seconds else "-"),
            Number(str(rank.in_flight)),
        ]
        for rank in results.ranks
    ]
    columns = ["rank", "host", unit, "resumed", "batches", "seconds", "of the slowest", f"{unit}/s", "in flight"]
    return Table("Work of each rank", columns, rows)


def _server_tables(results: AnyCompleteRun) -> list[Table]:
    servers: dict[str, list[ServerTraffic]] = {}
    for rank in results.ranks:
        for server in rank.traffic.servers if rank.traffic else ():
            servers.setdefault(server.peer, []).append(server)
    rows: Rows = [
        [
            peer,
            Number(str(sum(server.requests for server in traffic))),
            Number(str(sum(server.failures for server in traffic))),
            Number(str(sum(server.wrong_answers for server in traffic))),
            _longest([server.latency_p50 for server in traffic]),
            _longest([server.latency_p95 for server in traffic]),
        ]
        for peer, traffic in sorted(servers.items())
    ]
    caption = "Work of servers for all ranks; latencies are those of the rank that waited longest"
    columns = ["server", "requests", "failed", "wrong answers", "latency, median", "95th percentile"]
    return [Table(caption, columns, rows)] if rows else []


def _longest(seconds: list[float | None]) -> Number:
    known = [value for value in seconds if value is not None]
    return Number(f"{1000 * max(known):.0f} ms" if known else "-")


def metrics_shown(scores: Scores) -> list[str]:
    """Returns the names of the problem type's main metrics that a run has, and of its custom metrics."""
    return [
        *(name for name in metric_names(scores.problem_type, "table") if name in scores.metrics),
        *scores.custom_metrics,
    ]


def format_coverage(results: EvaluationResults) -> str:
    """Returns how many examples were evaluated, and peculiarities of their texts and labels."""
    coverage, data = results.coverage, results.data

    def texts_have(count: int) -> str:
        return format_count(count, "text has", "texts have")

    blank = format_count(data.blank, "text has no token of its own", "texts have no token of their own")
    parts = [
        (True, f"{coverage.seen} of {format_count(coverage.expected, 'example')}, each exactly once"),
        (coverage.failed, f"{coverage.failed} failed and are excluded from all metrics (see failures)"),
        (data.truncated, f"{format_count(data.truncated, 'text')} cut to {format_count(data.max_length, 'token')}"),
        (data.multiline, f"{texts_have(data.multiline)} several lines"),
        (data.blank, blank),
        (data.unknown, f"{texts_have(data.unknown)} no token that the tokenizer knows"),
        (data.with_begin, f"{texts_have(data.with_begin)} {HAS_BOS}"),
        (data.normalized_labels, f"{format_count(data.normalized_labels, 'label')} normalized, such as 5.0 for 5"),
        (data.shards, f"read from {format_count(len(data.shards or ()), 'file')}"),
    ]
    return "; ".join(part for is_said, part in parts if is_said)


def format_selection(selection: SelectionSummary | None) -> str:
    """Returns which rows of the dataset were evaluated; empty for all."""
    if selection is None:
        return ""
    what = f"{selection.rows:,} of {selection.population:,} row{'s' if selection.population != 1 else ''}"
    if not selection.is_random:
        return f"the first {what}"
    by = ", each class in its share," if selection.method == "stratified" else ","
    return f"{what}{by} sampled with seed {selection.seed}"


def row_caveats(selection: SelectionSummary | None, groups: Groups | None) -> list[str]:
    """Returns lines on a selection of rows and on groups; empty without either."""
    lines = []
    if selection:
        of_others = ""
        if groups:
            of_others = "; the intervals are for further groups of this kind"
        elif selection.is_random:
            of_others = f"; the intervals are for all {selection.population:,} rows"
        elif selection.rows < selection.population:
            of_others = "; not a random sample, so the intervals do not apply to others"
        lines.append(f"rows: {format_selection(selection)}{of_others}")
    if groups:
        few = f"; with fewer than {FEW_UNITS} there are none" if groups.count < FEW_UNITS else ""
        lines.append(
            f"intervals: {format_count(groups.count, 'group')} of {groups.column!r} "
            f"{'is' if groups.count == 1 else 'are'} resampled as clusters{few}"
        )
    return lines


def caveats(results: EvaluationResults) -> list[str]:
    """Returns caveats about the metrics: rows, groups, ranks, adapter, precisions, sessions, audit."""
    lines = row_caveats(results.data.selection, results.groups)
    if spread := results.spread:
        lines.append(
            f"by rank: {spread.figure} from {spread.lowest:.4f} (rank {spread.lowest_rank}) to {spread.highest:.4f} "
            f"(rank {spread.highest_rank}), their plain mean {spread.mean:.4f}; the metrics above are over all examples"
        )
    if results.model.adapter:
        lines.append(f"adapter: {name_of(results.model.adapter)}")
    precisions = (results.swarm and results.swarm.precisions) or []
    if len(precisions) > 1:
        computed = f"servers computed in {' and '.join(precisions)}"
        lines.append(f"{computed}: the figures depend on which server got which batch")
    if (sessions := results.sessions) and sessions.fell_back:
        batches = format_count(sessions.batches, "batch was", "batches were")
        lines.append(
            f"{sessions.fell_back} of {batches} planned for sessions but sent as plain forwards: the last digits may "
            "differ from other runs"
        )
    return lines + audit_lines(results.audit)


def audit_lines(audit: Audit | None) -> list[str]:
    """Returns lines about the findings of an audit; empty without one."""
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
            f"audit: undecided whether {' or '.join(dispute.peers)} is right ({dispute.why}); the result may be wrong; "
            f"all disputes are in {RESULTS}"
        )
    return lines
