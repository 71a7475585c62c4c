"""Waiting for blocks that no server holds, or none that can be reached: for how long, and what a person hears of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from dist_eval.errors import OutageError

_LOOK_SECONDS, _REJOIN_SECONDS, _NOTICE_SECONDS = 1.0, 3.0, 5.0


class Outage:
    """Lets requests wait for servers, up to a limit.

    Args:
        timeout: seconds to wait.
        rejoin: called now and then while waiting.
    """

    def __init__(self, timeout: float, rejoin: Callable[[], None]) -> None:
        self.timeout, self.rejoin = timeout, rejoin
        self._latest: tuple[str, float, float] | None = None
        self._noticed = self._rejoined = float("-inf")

    async def wait(self, what: str, since: float) -> None:
        """Waits until it is worth looking for servers again.

        Args:
            what: the blocks that have no server, and why.
            since: moment of `time.monotonic()` since when that is so.

        Raises:
            OutageError: it has been so for too long.
        """
        now, deadline = time.monotonic(), since + self.timeout
        if now > deadline:
            raise OutageError(f"for {self.timeout:g} s (--swarm-timeout) there was no server to reach for {what}")
        if now - self._rejoined > _REJOIN_SECONDS:
            self._rejoined = now
            await asyncio.get_running_loop().run_in_executor(None, self.rejoin)
        self._latest = (f"no server to reach for {what}", now, deadline)
        await asyncio.sleep(min(_LOOK_SECONDS, max(0.0, deadline - now)))

    def notice(self) -> str:
        """Returns what requests wait for, in words for a person, once in a while; empty if for nothing."""
        now = time.monotonic()
        if self._latest is None or now - self._noticed < _NOTICE_SECONDS:
            return ""
        what, seen_at, deadline = self._latest
        if now - seen_at > 2 * _LOOK_SECONDS:
            return ""
        self._noticed = now
        return f"{what}; the run waits {max(0.0, deadline - now):.0f} s more for one (--swarm-timeout)"
