"""The usable servers of a model: online, fit for the model, and not excluded. Also waits for them in outages."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

from dist_eval.errors import OutageError, SwarmError
from dist_eval.petals.client import event_loop
from dist_eval.petals.client.attempts import NoServer
from dist_eval.petals.client.directory import ServerDirectory
from dist_eval.petals.client.petals_version import serves, versions_needed
from dist_eval.petals.client.reachability import BETWEEN_CONTACTS, CONTACT_SECONDS
from dist_eval.petals.client.routes import Span, covers
from dist_eval.petals.client.transport import Transport

_BACKS_OFF = "dial backoff"  # the daemon's words if it did not dial because of an earlier failure
_POLL_SECONDS, _REJOIN_SECONDS = 1.0, 3.0
_NOTICE_SECONDS, _LONGEST_NOTICE_SECONDS = 15.0, 60.0  # until an outage is reported again: doubled each time


class SwarmServers:
    """The servers of a model, given its `transformers` config.

    Requests wait up to `outage_timeout` seconds for blocks that no reachable server holds; meanwhile `rejoin` is called
    every few seconds.
    """

    def __init__(
        self,
        directory: ServerDirectory,
        config: Any,
        transport: Transport,
        *,
        outage_timeout: float,
        rejoin: Callable[[], None],
    ) -> None:
        self.excluded: set[str] = set()  # peer ids of servers that are no longer used
        self.num_blocks = directory.num_blocks
        self.outage_timeout, self.rejoin = outage_timeout, rejoin
        self._outage: tuple[str, float] | None = None
        self._notice_seconds = 0.0  # until this outage is reported again; 0 if it was not reported yet
        self._has_ended = False  # whether a reported outage has ended
        self._noticed_at = self._rejoined_at = float("-inf")
        self._directory, self._config, self._transport = directory, config, transport

    def start(self, timeout: float) -> None:
        """Starts the thread that updates the list of servers, and waits up to `timeout` seconds for the first list.

        Raises `SwarmError` if a block has no server whose version of Petals computes the model.
        """
        self._directory.start(timeout)
        prefix = self._directory.dht_prefix
        if not covers(self._directory.spans(), 0, self.num_blocks):
            raise SwarmError(f"Some blocks of {prefix} have no usable server: start one, and try again.")
        if not covers(self.spans(), 0, self.num_blocks):
            raise SwarmError(
                f"Some blocks of {prefix} are held only by servers whose version of Petals would fail or compute "
                f"something else: this model needs servers with {versions_needed(self._config)}."
            )

    def close(self) -> None:
        """Stops updating the list of servers."""
        self._directory.close()

    @property
    def connection(self) -> Any:
        """The `hivemind.P2P` to the servers; None before `start`."""
        return self._directory.p2p

    def spans(self) -> Sequence[Span]:
        """Returns the online blocks, except those of excluded servers and unfit versions of Petals."""
        return [
            span
            for span in self._directory.spans()
            if serves(span.announced.version, self._config) and str(span.peer) not in self.excluded
        ]

    def session_spans(self) -> Sequence[Span]:
        """Returns those of `spans` whose servers may have sessions: servers that were not asked yet count."""
        return list(filter(self._transport.may_have_sessions, self.spans()))

    @property
    def has_sessions(self) -> bool:
        """Whether servers with sessions hold all blocks."""
        return covers(self.session_spans(), 0, self.num_blocks)

    def free_cache(self, seconds: float = CONTACT_SECONDS) -> dict[Span, int]:
        """Asks all servers for their free attention cache, for some seconds again if some cannot be reached.

        It is in tokens of a text times blocks; 0 for a server that does not answer or has no sessions.
        """

        async def ask(spans: Sequence[Span]) -> list[int | BaseException]:
            return await asyncio.gather(*map(self._transport.free_cache, spans), return_exceptions=True)

        spans, give_up = self.spans(), time.monotonic() + seconds
        answered = dict[Span, int]()
        while missing := [span for span in spans if span not in answered]:
            answers = zip(missing, event_loop.run(ask(missing)), strict=True)
            answered.update((span, left) for span, left in answers if isinstance(left, int))
            if time.monotonic() > give_up:
                break
            if len(answered) < len(spans):
                time.sleep(BETWEEN_CONTACTS)
        return {span: answered.get(span, 0) for span in spans}

    def refresh(self) -> None:
        """Requests an update of the list of servers.

        Raises `SwarmError` if this process' DHT node is dead: without it, all requests would time out one by one.
        """
        node = self._directory.dht
        if not node.is_alive():
            raise SwarmError(
                f"the hivemind node of this rank (process {node.pid}) was killed, status {node.exitcode}: "
                "if the host ran out of memory, start fewer ranks on it"
            )
        self._directory.update()

    async def wait(self, outage: NoServer) -> None:
        """Waits until it is worth looking for servers again; raises `OutageError` if the outage lasts too long."""
        now, deadline = time.monotonic(), outage.since + self.outage_timeout
        faulty = ""
        if self.excluded:
            faulty = f" (not counting {', '.join(sorted(self.excluded))}, which an audit found faulty)"
        limit = f"{self.outage_timeout:g} s (--swarm-timeout)"
        if now > deadline:
            self._notice_seconds = 0.0
            what = f"{outage.what}: {outage.why}{faulty}"
            raise OutageError(f"for {limit} there was no server to reach for {what}")
        if now - self._rejoined_at > _REJOIN_SECONDS:
            self._rejoined_at = now
            await asyncio.to_thread(self.rejoin)
        # at first, the daemon may only wait since a dial that failed before the server was ready
        if _BACKS_OFF not in outage.why or now - outage.since > CONTACT_SECONDS:
            self._outage = (f"no server to reach for {outage.brief}{faulty}; the run waits up to {limit}", now)
        await asyncio.sleep(min(_POLL_SECONDS, max(0.0, deadline - now)))

    def came_back(self) -> None:
        """Records that a request that waited for servers was answered."""
        self._has_ended = self._notice_seconds > 0

    def notice(self) -> str:
        """Describes an outage at growing intervals, and once that it is over; empty at other times."""
        now = time.monotonic()
        is_over = self._outage is None or now - self._outage[1] > 2 * _POLL_SECONDS  # no request waits any more
        if self._has_ended and is_over:
            self._outage, self._notice_seconds, self._has_ended = None, 0.0, False
            return "servers can be reached again, the run goes on"
        if self._outage is None or now - self._noticed_at < self._notice_seconds:
            return ""
        what, seen_at = self._outage
        if now - seen_at > 2 * _POLL_SECONDS:
            return ""
        self._noticed_at = now
        self._notice_seconds = min(max(2 * self._notice_seconds, _NOTICE_SECONDS), _LONGEST_NOTICE_SECONDS)
        return what
