"""Idle streams: only one that can be used is given out."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import pytest

from dist_eval.petals.client import kept_streams
from dist_eval.petals.client.kept_streams import KeptStreams
from dist_eval.petals.client.raw_stream import RawStream

Pair = tuple[RawStream, socket.socket]


def in_loop(check: Callable[[KeptStreams, Callable[[], Pair]], None]) -> None:
    pairs = list[Pair]()

    def pair() -> Pair:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        pairs.append((RawStream(ours), theirs))
        return pairs[-1]

    async def run() -> None:
        check(KeptStreams(), pair)

    asyncio.run(run())
    for stream, theirs in pairs:
        stream.close()
        theirs.close()


def is_closed(theirs: socket.socket) -> bool:
    theirs.setblocking(False)
    try:
        return not theirs.recv(1)
    except BlockingIOError:
        return False
    except ConnectionResetError:  # it was closed with unread bytes
        return True


def test_the_latest_usable_stream_to_a_method_is_given_out_once() -> None:
    def check(kept: KeptStreams, pair: Callable[[], Pair]) -> None:
        (one, _), (other, _), (ended, at_ended), (loud, at_loud) = (pair() for _ in range(4))
        for stream in (one, other, ended, loud):
            kept.put("peer", "method", stream)
        at_ended.close()
        at_loud.send(b"an answer to nothing")
        assert kept.take("peer", "another") is None and kept.take("stranger", "method") is None
        assert kept.take("peer", "method") is other
        assert kept.take("peer", "method") is one
        assert kept.take("peer", "method") is None
        assert is_closed(at_loud)

    in_loop(check)


def test_a_failure_closes_the_other_streams_to_its_server() -> None:
    def check(kept: KeptStreams, pair: Callable[[], Pair]) -> None:
        (one, at_one), (other, at_other) = pair(), pair()
        kept.put("peer", "method", one)
        kept.put("stranger", "method", other)
        kept.drop("peer", "method")
        assert is_closed(at_one) and not is_closed(at_other)

    in_loop(check)


def test_streams_are_bounded_in_number_and_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def check(kept: KeptStreams, pair: Callable[[], Pair]) -> None:
        pairs = [pair() for _ in range(4)]
        monkeypatch.setattr(kept_streams, "_MOST_IDLE", 2)
        for number, (stream, _) in enumerate(pairs[:3]):
            kept.put(number, "method", stream)
        assert [is_closed(theirs) for _, theirs in pairs[:3]] == [True, False, False]
        monkeypatch.setattr(kept_streams, "_LONGEST_IDLE", -1.0)
        assert kept.take(2, "method") is None
        kept.close()
        kept.put(3, "method", pairs[3][0])
        assert all(is_closed(theirs) for _, theirs in pairs)

    in_loop(check)
