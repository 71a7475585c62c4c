"""Classification of failed requests."""

from __future__ import annotations

import asyncio

import pytest
from hivemind.p2p import P2PDaemonError, P2PHandlerError

from dist_eval.petals.client.failures import Failure, WrongAnswer, classify, drop_traceback
from dist_eval.petals.client.router import ServerStats


@pytest.mark.parametrize(
    ("error", "failure"),
    [
        (P2PHandlerError("ValueError: Task size greater than max_batch_size (2048)"), Failure.TOO_LARGE),
        (P2PDaemonError("Message size exceeds set limit 4194304"), Failure.TOO_LARGE),
        (P2PHandlerError("Could not allocate 8192 bytes immediately: out of memory"), Failure.NO_CACHE),
        (P2PHandlerError("Server's attention cache is full, failed to allocate 8192 bytes"), Failure.NO_CACHE),
        (P2PHandlerError("Cannot allocate KV cache for 4096 tokens, max = 2048"), Failure.NO_CACHE),
        (P2PHandlerError("KeyError: 'llama.7'"), Failure.REFUSED),
        (P2PHandlerError("AssertionError: hidden_states must be a 3d tensor"), Failure.REFUSED),
        (P2PHandlerError("TimeoutError()"), Failure.NO_ANSWER),
        (asyncio.TimeoutError(), Failure.NO_ANSWER),
        (TimeoutError("timed out"), Failure.NO_ANSWER),
        (P2PDaemonError("failed to dial: connection refused"), Failure.UNREACHABLE),
        (ConnectionResetError("stream reset"), Failure.UNREACHABLE),
        (BrokenPipeError(), Failure.UNREACHABLE),
        (asyncio.IncompleteReadError(b"", 4), Failure.UNREACHABLE),
        (RuntimeError("whatever it is"), Failure.NO_ANSWER),
        (WrongAnswer("values that are not finite"), Failure.WRONG),
    ],
)
def test_errors_are_classified(error: Exception, failure: Failure) -> None:
    assert classify(error) is failure


def banned_for(failure: Failure, times: int = 1, *, together: bool = False) -> int:
    server, now = ServerStats(), 0
    for _ in range(times):
        while server.is_banned(now) and not together:
            now += 1
        server.failed(now, failure)
    return next(second for second in range(1000) if not server.is_banned(now + second))


def test_the_length_of_a_ban_depends_on_the_failure() -> None:
    assert banned_for(Failure.TOO_LARGE) == 0, "the client's fault"
    assert banned_for(Failure.REFUSED, 5) == 1, "perhaps the client's fault"
    assert banned_for(Failure.NO_CACHE, 5) == 1, "it still answers forwards"
    assert banned_for(Failure.UNREACHABLE) == 1
    assert banned_for(Failure.UNREACHABLE, 4) == 8
    assert banned_for(Failure.UNREACHABLE, 40) == 60
    assert banned_for(Failure.UNREACHABLE, 40, together=True) == 1, "all had been sent before the first one failed"
    assert banned_for(Failure.WRONG) == 60


def test_a_milder_failure_does_not_shorten_a_ban() -> None:
    server = ServerStats()
    server.failed(0.0, Failure.WRONG)
    server.failed(1.0, Failure.NO_CACHE)
    assert server.is_banned(59.0)


def test_errors_that_name_each_other_as_cause_lose_their_tracebacks() -> None:
    one, other = ValueError("one"), ValueError("other")
    one.__cause__, other.__cause__ = other, one
    with pytest.raises(ValueError) as caught:
        raise one
    drop_traceback(caught.value)
    assert one.__traceback__ is None
