"""Streams that stay open between requests: to open one takes a round trip, and a new one is slow at first.

libp2p lets a new stream send 256 KiB, and more with each round trip. A request of 16 MiB to a server 20 ms away takes
six of them, almost as long as its bytes take at 1 Gbit/s (`benchmarks.network`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from dist_eval.petals.client.raw_stream import RawStream

_LONGEST_IDLE = 60.0  # seconds; servers wait longer
_MOST_IDLE = 64


class _Idle(NamedTuple):
    key: tuple[Any, str]  # the peer and the name of the method
    since: float
    stream: RawStream


class KeptStreams:
    """The idle streams of a client. Thread-safe."""

    def __init__(self) -> None:
        self._idle = list[_Idle]()  # in the order in which they were kept
        self._is_closed, self._lock = False, threading.Lock()

    def take(self, peer: Any, name: str) -> RawStream | None:
        """Returns a stream to a method of a server that can be used; None if there is none."""
        with self._lock:
            oldest = time.monotonic() - _LONGEST_IDLE
            self._keep(lambda one: one.since >= oldest)
            for place in reversed(range(len(self._idle))):
                if self._idle[place].key == (peer, name):
                    stream = self._idle.pop(place).stream
                    if stream.is_quiet():
                        return stream
                    stream.close()
        return None

    def put(self, peer: Any, name: str, stream: RawStream) -> None:
        """Keeps a stream, after its answer has been read."""
        with self._lock:
            self._idle.append(_Idle((peer, name), time.monotonic(), stream))
            while len(self._idle) > (0 if self._is_closed else _MOST_IDLE):
                self._idle.pop(0).stream.close()

    def drop(self, peer: Any, name: str) -> None:
        """Closes all streams to a method of a server, after one has failed."""
        with self._lock:
            self._keep(lambda one: one.key != (peer, name))

    def close(self) -> None:
        """Closes all streams, also those that are put later."""
        with self._lock:
            self._is_closed = True
            self._keep(lambda _: False)

    def _keep(self, is_kept: Callable[[_Idle], bool]) -> None:
        kept = list[_Idle]()
        for one in self._idle:
            if is_kept(one):
                kept.append(one)
            else:
                one.stream.close()
        self._idle = kept
