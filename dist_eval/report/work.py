"""What ranks and servers did, as a section of any run."""

from __future__ import annotations

from typing import Any

import numpy as np

from dist_eval.report.document import Number, Results, Rows, Section, Table
from dist_eval.results.work import ServerTraffic
from dist_eval.tables import format_count

_SLOW = 1.2  # times the median duration


def format_speed(results: Results, unit: str) -> str:
    """Returns the speed of all ranks together, with what was evaluated in the plural."""
    speed, ranks = results.throughput, format_count(len(results.ranks), "rank")
    return f"{speed.examples_per_second:.1f} {unit}/s, {speed.tokens_per_second:.0f} tokens/s on {ranks}"


def work_details(results: Results) -> dict[str, Any]:
    """Returns where, when and with what a run was made, by name."""
    environment = results.environment
    return {
        "ranks": f"{len(results.ranks)} on {format_count(len({rank.host for rank in results.ranks}), 'host')}",
        "started": results.started,
        "finished": results.finished,
        "swarm": results.swarm and results.swarm.dht_prefix,
        "versions": ", ".join(f"{name} {version}" for name, version in environment.packages.items()),
        "git commit": environment.git_commit,
    }


def work_section(results: Results, unit: str, *, with_hosts: bool) -> Section:
    """Returns what each rank and each server did."""
    tables = [_rank_table(results, unit, with_hosts=with_hosts), *_server_tables(results)]
    return Section("Ranks and servers", tables)


def _rank_table(results: Results, unit: str, *, with_hosts: bool) -> Table:
    hosts = {
        host: f"host {number}" for number, host in enumerate(dict.fromkeys(rank.host for rank in results.ranks), 1)
    }
    seconds = [rank.seconds for rank in results.ranks]
    longest, median = max(seconds), float(np.median(seconds))
    rows: Rows = [
        [
            str(rank.rank),
            rank.host if with_hosts else hosts[rank.host],
            *(Number(str(count)) for count in (rank.samples, rank.resumed, rank.batches)),
            Number(f"{rank.seconds:.2f}"),
            Number(_share(rank.seconds, longest) + (" (slow)" if rank.seconds > _SLOW * median else "")),
            Number(f"{rank.samples / rank.seconds:.1f}" if rank.seconds else "-"),
            Number(str(rank.in_flight)),
        ]
        for rank in results.ranks
    ]
    columns = ["rank", "host", unit, "resumed", "batches", "seconds", "of the slowest", f"{unit}/s", "in flight"]
    return Table("What each rank did", columns, rows)


def _share(seconds: float, longest: float) -> str:
    return f"{100 * seconds / longest:.0f} %" if longest else "-"


def _server_tables(results: Results) -> list[Table]:
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
    caption = "What servers did for all ranks; the latency is that of the rank that waited longest"
    columns = ["server", "requests", "failed", "wrong answers", "latency, median", "95th percentile"]
    return [Table(caption, columns, rows)] if rows else []


def _longest(seconds: list[float | None]) -> Number:
    known = [value for value in seconds if value is not None]
    return Number(f"{1000 * max(known):.0f} ms" if known else "-")
