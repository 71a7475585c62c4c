"""An upper limit to what a rank asks of a swarm that others use, too."""

from __future__ import annotations

import asyncio
import math
import time


class RateLimiter:
    """Spaces batches so that no more than a number of tokens is sent in a second. Belongs to one event loop."""

    def __init__(self, tokens_per_second: float = math.inf) -> None:
        self._rate, self._free_at = tokens_per_second, -math.inf

    async def wait(self, tokens: int) -> None:
        """Waits until a batch may be sent."""
        now = time.monotonic()
        start = max(now, self._free_at)
        self._free_at = start + tokens / self._rate
        if start > now:
            await asyncio.sleep(start - now)
