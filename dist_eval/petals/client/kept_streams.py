"""Streams that stay open between requests: to open one takes a round trip, and a new one is slow at first.

libp2p lets a new stream send 256 KiB, and more with each round trip. A request of 16 MiB to a server 20 ms away takes
six of them, almost as long as its bytes take at 1 Gbit/s (`benchmarks.network`).
"""

from __future__ import annotations

import threading
import time
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
            self._close([one for one in self._idle if one.since < oldest])
            while own := [one for one in self._idle if one.key == (peer, name)]:
                self._idle.remove(own[-1])
                if own[-1].stream.is_quiet():
                    return own[-1].stream
                own[-1].stream.close()
        return None

    def put(self, peer: Any, name: str, stream: RawStream) -> None:
        """Keeps a stream, after its answer has been read."""
        with self._lock:
            self._idle.append(_Idle((peer, name), time.monotonic(), stream))
            self._close(self._idle if self._is_closed else self._idle[:-_MOST_IDLE])

    def drop(self, peer: Any, name: str) -> None:
        """Closes all streams to a method of a server, after one has failed."""
        with self._lock:
            self._close([one for one in self._idle if one.key == (peer, name)])

    def close(self) -> None:
        """Closes all streams, also those that are put later."""
        with self._lock:
            self._is_closed = True
            self._close(self._idle)

    def _close(self, streams: list[_Idle]) -> None:
        for one in streams:
            one.stream.close()
        self._idle = [one for one in self._idle if one not in streams]
