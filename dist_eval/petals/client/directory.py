"""A list of the servers of a model's blocks, updated by a thread."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Collection, Sequence
from typing import Any

from dist_eval.petals.client.announcements import ServerRecord, announcement_of
from dist_eval.petals.client.dht_records import read_blocks
from dist_eval.petals.client.routes import Span

_UPDATE_SECONDS, _CLOSING_SECONDS = 15.0, 4.0


class ServerDirectory:
    """Lists the servers that hold a model's blocks, from the records in a running `hivemind.DHT`.

    Only servers with the LoRA adapter count, if one is given. `allowed_servers` are the only ones that count (None for
    all), and `blocked_servers` do not count: peer ids in base58, or `PeerID`s.
    """

    def __init__(
        self,
        dht: Any,
        dht_prefix: str,
        num_blocks: int,
        adapter: str | None = None,
        *,
        allowed_servers: Collection[Any] | None = None,
        blocked_servers: Collection[Any] | None = None,
    ) -> None:
        self.dht, self.dht_prefix, self.num_blocks, self.adapter = dht, dht_prefix, num_blocks, adapter
        self._allowed = None if allowed_servers is None else {*map(str, allowed_servers)}
        self._blocked = {*map(str, blocked_servers or ())}
        self.p2p: Any = None  # the connection to the servers, opened by `start`
        self._spans: Sequence[Span] = ()
        self._outdated, self._closed = threading.Event(), False
        self._thread = threading.Thread(target=_keep_up_to_date, args=(weakref.ref(self), self._outdated), daemon=True)

    def start(self, timeout: float) -> None:
        """Reads the first list and starts the thread."""
        from hivemind.moe.client.remote_expert_worker import RemoteExpertWorker

        self.p2p = RemoteExpertWorker.run_coroutine(self.dht.replicate_p2p())
        self._spans = self._read(timeout)
        self._thread.start()

    def spans(self) -> Sequence[Span]:
        """Returns the blocks that were online when the list was last read."""
        return self._spans

    def update(self) -> None:
        """Requests an update of the list."""
        self._outdated.set()

    def close(self) -> None:
        """Stops the thread, and waits for it unless it is waiting for the swarm."""
        self._closed = True
        self._outdated.set()
        if self._thread.is_alive():
            self._thread.join(_CLOSING_SECONDS)

    def _read(self, timeout: float) -> Sequence[Span]:
        from hivemind.p2p import PeerID

        held = read_blocks(self.dht, self.dht_prefix, self.num_blocks, timeout).spans()
        return [
            Span(PeerID.from_base58(peer), start, end, announcement_of(server), server.forward_rps)
            for peer, start, end, server in sorted(held, key=lambda span: (span.start - span.end, span.peer))
            if self._counts(peer, server)
        ]

    def _counts(self, peer: str, server: ServerRecord) -> bool:
        is_chosen = peer not in self._blocked and (self._allowed is None or peer in self._allowed)
        return is_chosen and server.state == "online" and self.adapter in (None, *server.adapters)


def _keep_up_to_date(reference: weakref.ref[ServerDirectory], outdated: threading.Event) -> None:
    """Runs in the thread; holds only a weak reference while it waits, so that a dropped model is freed."""
    while True:
        outdated.wait(_UPDATE_SECONDS)
        outdated.clear()
        directory = reference()
        if directory is None or directory._closed or not directory.dht.is_alive():
            return
        with contextlib.suppress(Exception):  # any error of the node's process; the old list stays in use
            directory._spans = directory._read(_UPDATE_SECONDS)
        del directory
