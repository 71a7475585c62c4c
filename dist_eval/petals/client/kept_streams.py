"""Streams that stay open between requests: to open one takes a round trip, and a new one is slow at first.

libp2p lets a new stream send 256 KiB, and more with each round trip. A request of 16 MiB to a server 20 ms away takes
six of them, almost as long as its bytes take at 1 Gbit/s (`benchmarks.network`).
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from typing import Any

from dist_eval.petals.client.raw_stream import RawStream

_LONGEST_IDLE = 60.0  # seconds; servers wait longer
_MOST_IDLE = 16  # of a method of a server


class KeptStreams:
    """The idle streams of a client. Belongs to one event loop."""

    def __init__(self) -> None:
        self._idle: defaultdict[Any, deque[tuple[float, RawStream]]] = defaultdict(deque)

    def take(self, peer: Any, name: str) -> RawStream | None:
        """Returns the stream to a method of a server that was used last; None if there is none."""
        self._close_old()
        idle = self._idle[peer, name]
        return idle.pop()[1] if idle else None

    def put(self, peer: Any, name: str, stream: RawStream) -> None:
        """Keeps a stream, after its answer has been read."""
        idle = self._idle[peer, name]
        idle.append((time.monotonic(), stream))
        if len(idle) > _MOST_IDLE:
            idle.popleft()[1].close()

    def close(self) -> None:
        """Closes all streams."""
        self._close_old(longest=-1.0)

    def _close_old(self, longest: float = _LONGEST_IDLE) -> None:
        oldest = time.monotonic() - longest
        for idle in self._idle.values():
            while idle and idle[0][0] < oldest:
                idle.popleft()[1].close()
