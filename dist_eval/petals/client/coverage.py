"""Coverage of a swarm: which servers hold which blocks, and which blocks have no server."""

from __future__ import annotations

import concurrent.futures
import functools
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dist_eval.errors import SwarmError
from dist_eval.petals.client.announcements import announcement_of, mixed_precisions, mixed_versions
from dist_eval.petals.client.dht_records import read_blocks, read_models
from dist_eval.petals.client.petals_version import serves, versions_needed
from dist_eval.petals.client.reachability import BETWEEN_CONTACTS, LateNotice, Say
from dist_eval.petals.client.records import ServerSpan, Swarm
from dist_eval.printable import printable_lines
from dist_eval.tables import format_count, output_width, text_table

_POLL_SECONDS, _PING_SECONDS, _MODELS_SECONDS = 0.25, 2.5, 5.0
_ADAPTERS_NAMED, _REASONS_NAMED = 5, 3


@dataclass(frozen=True)
class SwarmCoverage:
    """The servers of a model's blocks at one point in time."""

    dht_prefix: str  # name under which the blocks are announced
    num_blocks: int  # blocks of the model
    servers: tuple[ServerSpan, ...]  # all announced servers, by first block
    adapter: str | None = None  # a LoRA adapter, if only servers that hold it count
    # how many implausible records were dropped, by reason
    dropped: Counter[str] = field(default_factory=Counter)
    unreachable: frozenset[str] = frozenset()  # peer ids of online servers that did not answer this host

    @property
    def online(self) -> list[ServerSpan]:
        """The servers that accept requests."""
        online = [server for server in self.servers if server.state == "online"]
        return [server for server in online if self.adapter is None or self.adapter in (server.adapters or ())]

    @property
    def replicas(self) -> list[int]:
        """Number of online servers of each block."""
        online = self.online
        return [sum(s.start <= block < s.end for s in online) for block in range(self.num_blocks)]

    @property
    def missing(self) -> list[int]:
        """Blocks without an online server."""
        return [block for block, count in enumerate(self.replicas) if count == 0]

    @property
    def out_of_reach(self) -> list[int]:
        """Blocks with online servers, none of which answered this host."""
        reachable = replace(self, servers=tuple(s for s in self.servers if s.peer_id not in self.unreachable))
        return sorted({*reachable.missing} - {*self.missing})

    def serving(self, config: Any) -> SwarmCoverage:
        """Marks servers whose version of Petals does not compute a model as "unfit"."""
        if config is None:
            return self
        servers = (s if serves(s.version, config) else s.model_copy(update={"state": "unfit"}) for s in self.servers)
        return replace(self, servers=tuple(servers))

    def summary(self) -> Swarm:
        """Returns the section `swarm` of `results.json`."""
        return Swarm(
            dht_prefix=self.dht_prefix,
            num_blocks=self.num_blocks,
            missing_blocks=self.missing,
            replicas_per_block=self.replicas,
            servers=list(self.servers),
            dropped_records=self.dropped.total(),
        )

    def describe(self) -> str:
        """Returns a text table of the servers, the replicas per block and the missing blocks."""
        lines = [
            f"{self.dht_prefix}: {format_count(self.num_blocks, 'block')}, {format_count(len(self.servers), 'server')}"
        ]
        columns = {
            "server": ["..." + server.peer_id[-8:] for server in self.servers],
            "blocks": [f"{server.start}:{server.end}" for server in self.servers],
            "state": [
                "not reachable from here" if server.peer_id in self.unreachable else server.state
                for server in self.servers
            ],
            "dtype": [server.precision for server in self.servers],
            "petals": [server.version or "" for server in self.servers],
            "throughput": [f"{server.throughput:g}" for server in self.servers],
            "ms/token": [
                "" if (s := server.seconds_per_token) is None else f"{1000 * s:.3g}" for server in self.servers
            ],
            "free cache": ["" if server.free_cache is None else str(server.free_cache) for server in self.servers],
            "adapters": [", ".join(server.adapters or ()) for server in self.servers],
            "name": [server.name or "" for server in self.servers],
        }
        shown = {name: cells for name, cells in columns.items() if any(cells)}
        rows = [list(shown), *map(list, zip(*shown.values(), strict=True))]
        lines += [f"  {line}" for line in text_table(rows, width=output_width() - len("  "))]
        lines += filter(None, (mixed_precisions(self.online), mixed_versions(self.online)))
        if self.dropped:
            lines.append(f"dropped, because they are implausible: {format_dropped(self.dropped, 'record')}")
        if self.adapter is not None:
            lines.append(f"counting only servers with the adapter {self.adapter}:")
        lines.append("replicas per block: " + ranges_by_value(self.replicas))
        lines.append("missing blocks: " + (format_ranges(self.missing) or "none"))
        if self.out_of_reach:
            lines.append(f"not reachable from here: every server of blocks {format_ranges(self.out_of_reach)}")
        return printable_lines("\n".join(lines))


def format_dropped(dropped: Counter[str], what: str) -> str:
    """Describes how many records were dropped and the most frequent reasons."""
    named = [f"{reason} ({count})" for reason, count in dropped.most_common(_REASONS_NAMED)]
    named += ["..."] * (len(dropped) > _REASONS_NAMED)
    return f"{format_count(dropped.total(), what)}: {'; '.join(named)}"


def format_ranges(numbers: Sequence[int]) -> str:
    """Formats sorted numbers as ranges: [0, 1, 2, 5] becomes "0-2, 5"."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ", ".join(str(p[0]) if len(p) == 1 else f"{p[0]}-{p[-1]}" for p in parts)


def ranges_by_value(values: Sequence[int]) -> str:
    """Formats positions by value: [1, 1, 2] becomes "1 (blocks 0-1), 2 (blocks 2)"."""
    return ", ".join(
        f"{value} (blocks {format_ranges([i for i, v in enumerate(values) if v == value])})"
        for value in sorted(set(values))
    )


def look_up_coverage(
    dht: Any, dht_prefix: str, num_blocks: int, timeout: float = 30.0, *, adapter: str | None = None
) -> SwarmCoverage:
    """Looks up which servers hold a model's blocks, within `timeout` seconds; with an adapter, only those with it."""
    records = read_blocks(dht, dht_prefix, num_blocks, timeout)
    servers = [
        ServerSpan(
            peer_id=span.peer,
            start=span.start,
            end=span.end,
            state=span.server.state,
            throughput=span.server.throughput,
            name=span.server.public_name,
            seconds_per_token=rate and (span.end - span.start) / rate,
            free_cache=None if cache is None else cache // (span.end - span.start),
            **announcement_of(span.server).to_json(),
        )
        for span in records.spans()
        for rate, cache in [(span.server.forward_rps, span.server.cache_tokens_left)]
    ]
    return SwarmCoverage(dht_prefix, num_blocks, tuple(servers), adapter, records.dropped)


def measure_distances(dht: Any, peers: Sequence[str], timeout: float) -> dict[str, float | None]:
    """Pings all servers at once, and for `timeout` seconds repeats it for those that do not answer.

    Returns the seconds of a second ping's round trip by peer id, since the first may open a connection; None without an
    answer. Raises `SwarmError` if this process' own node does not answer.
    """
    from hivemind.p2p import PeerID

    from dist_eval.petals.client import protocol

    def ping(peers: Sequence[str]) -> dict[str, float]:
        ask = functools.partial(protocol.ping, [PeerID.from_base58(peer) for peer in peers], _PING_SECONDS)
        try:
            return dict(dht.run_coroutine(ask, return_future=True).result(2 * _PING_SECONDS))
        except concurrent.futures.TimeoutError as error:
            raise SwarmError("This process' own node of the swarm does not answer.") from error

    found, give_up = ping(peers), time.monotonic() + timeout
    while (missing := [peer for peer in peers if peer not in found]) and time.monotonic() < give_up:
        time.sleep(BETWEEN_CONTACTS)
        found |= ping(missing)
    found |= ping(list(found))
    return {peer: found.get(peer) for peer in peers}


def wait_until_covered(
    dht: Any,
    dht_prefix: str,
    num_blocks: int,
    timeout: float,
    *,
    config: Any = None,
    adapter: str | None = None,
    servers: int = 1,
    check: Callable[[], None] = lambda: None,
    say: Say | None = None,
    timeout_option: str = "--swarm-timeout",
) -> SwarmCoverage:
    """Waits until every block has an online server, and returns the complete coverage.

    Raises `SwarmError` after `timeout`, or at once if all blocks are online but no server announces the adapter; the
    message names what is missing.

    Args:
        dht: a running `hivemind.DHT`.
        dht_prefix: name under which the blocks are announced.
        num_blocks: blocks of the model.
        timeout: seconds.
        config: the model's `transformers` config; servers whose version of Petals does not compute it do not count.
        adapter: a LoRA adapter that servers must have to count.
        servers: number of servers that must also be online.
        check: called at every poll; raises when waiting has become pointless.
        say: called once with a description of what is still missing after a few seconds.
        timeout_option: the option that sets the timeout, for messages.
    """
    deadline, notice = time.monotonic() + timeout, LateNotice(say)

    def served() -> Mapping[str, int]:
        try:
            return read_models(dht, _MODELS_SECONDS).blocks
        except SwarmError:  # the message is shorter
            return {}

    while True:
        check()
        left = max(1.0, deadline - time.monotonic())
        coverage = look_up_coverage(dht, dht_prefix, num_blocks, left, adapter=adapter).serving(config)
        online = len(coverage.online)
        if fault := adapter_fault(coverage, is_over=time.monotonic() > deadline):
            raise SwarmError(fault)
        if not coverage.missing and online >= servers:
            return coverage
        if time.monotonic() > deadline and not coverage.missing:
            raise SwarmError(
                f"Only {online} of {format_count(servers, 'server')} of {dht_prefix} "
                f"{'is' if servers == 1 else 'are'} online after {timeout:g} s. Wait longer with "
                f"{timeout_option}."
            )
        if time.monotonic() > deadline:
            what, advice = _missing(replace(coverage, adapter=None), served, timeout_option)
            raise SwarmError(_faults(coverage, config) or f"After {timeout:g} s, {what}.{_dropped(coverage)} {advice}")
        if coverage.missing and notice.is_due():
            what = (
                _faults(coverage, config) or f"{_missing(replace(coverage, adapter=None), served, timeout_option)[0]}."
            )
            notice.say(f"waiting up to {timeout:g} s ({timeout_option}): {what}")
        time.sleep(_POLL_SECONDS)


def _faults(coverage: SwarmCoverage, config: Any) -> str:
    """Says why servers of missing blocks do not count; empty if there are no servers."""
    return adapter_fault(coverage, is_over=True) or unfit_message(replace(coverage, adapter=None), config)


def unfit_message(coverage: SwarmCoverage, config: Any) -> str:
    """Names missing blocks whose servers run an unfit version of Petals; empty if there are none."""
    unfit = [server for server in coverage.servers if server.state == "unfit"]
    held = [block for block in coverage.missing if any(server.start <= block < server.end for server in unfit)]
    if not held:
        return ""
    versions = ", ".join(sorted({f"Petals {server.version or '(unknown)'}" for server in unfit}))
    return (
        f"Blocks {format_ranges(held)} of {coverage.dht_prefix} are held only by servers with {versions}, "
        f"which would fail or compute something else: this model needs servers with {versions_needed(config)}."
    )


def adapter_fault(coverage: SwarmCoverage, *, is_over: bool) -> str:
    """Explains why an adapter is missing; empty if it is there, not required, or blocks are missing even without it.

    `coverage` is that by the servers with the adapter. Unless `is_over`, the result is also empty while a server of
    some blocks announces the adapter.
    """
    adapter, missing = coverage.adapter, coverage.missing
    if adapter is None or not missing or replace(coverage, adapter=None).missing:
        return ""
    held: dict[str, list[str]] = {}
    for server in coverage.servers:
        for name in server.adapters or ():
            held.setdefault(name, []).append(f"{server.start}:{server.end}")
    if adapter in held and not is_over:
        return ""
    others = ", ".join(f"{name} (blocks {', '.join(spans)})" for name, spans in sorted(held.items())[:_ADAPTERS_NAMED])
    return (
        f"No online server holds the adapter {adapter!r} for blocks {format_ranges(missing)} of {coverage.dht_prefix}. "
        + (f"The servers announce {others}: name one that covers all blocks" if held else "The servers announce none")
        + f"{' with --adapter,' if held else ': leave out --adapter,'} or start servers with --adapters {adapter}."
    )


def _missing(coverage: SwarmCoverage, served: Callable[[], Mapping[str, int]], timeout_option: str) -> tuple[str, str]:
    """Returns what is missing, as the end of a sentence, and what to do; `served` looks up models and their blocks."""
    prefix, total = coverage.dht_prefix, coverage.num_blocks
    wait = f"or wait longer with {timeout_option}."
    if len(coverage.missing) < total or any(server.state == "joining" for server in coverage.servers):
        what = f"no online server holds blocks {format_ranges(coverage.missing)} of {prefix} (0-{total - 1})"
        return what, f"Start servers for them, {wait}"
    what = f"the swarm serves no block of {prefix!r}"
    models = served()
    if prefix in models:
        return what, f"The model is announced, but without servers: start servers, {wait}"
    option = "--dht-prefix" if timeout_option.startswith("--") else "dht_prefix"
    if models:
        named = ", ".join(f"{name} ({format_count(blocks, 'block')})" for name, blocks in sorted(models.items())[:5])
        what += f"; it serves {named}"
        return what, f"Is this the right model? If the swarm has another name for it, give that with {option}."
    return what, f"Start servers for it, or give its name in the swarm with {option}."


def _dropped(coverage: SwarmCoverage) -> str:
    if not coverage.dropped:
        return ""
    return f" Implausible announcements of its servers were dropped, {format_dropped(coverage.dropped, 'record')}."
