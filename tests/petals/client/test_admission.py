"""The most tokens a second that the swarm gets."""

from __future__ import annotations

import asyncio
import time

import pytest

from dist_eval.errors import NotSentError
from dist_eval.petals.client.admission import RateLimiter


def test_a_rate_limit_spaces_batches_until_it_is_closed() -> None:
    async def scenario() -> None:
        limiter, start = RateLimiter(1000.0), time.monotonic()
        for _ in range(3):
            await limiter.wait(100)
        assert time.monotonic() - start >= 0.2
        await limiter.wait(10**6)  # the next request has to wait for 1000 s
        new, begun = (asyncio.create_task(limiter.wait(100, is_new=is_new)) for is_new in (True, False))
        await asyncio.sleep(0.01)
        limiter.closed = True
        with pytest.raises(NotSentError):
            await new
        assert not begun.done()
        begun.cancel()

    asyncio.run(scenario())
