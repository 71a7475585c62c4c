"""Waiting, with a limit and notices to the user, for blocks that no reachable server holds."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from dist_eval.errors import OutageError

_POLL_SECONDS, _REJOIN_SECONDS, _NOTICE_SECONDS = 1.0, 3.0, 5.0


class Outage:
    """Lets requests wait for servers, up to a limit."""

    def __init__(self, timeout: float, rejoin: Callable[[], None]) -> None:
        self.timeout, self.rejoin = timeout, rejoin
        self._latest: tuple[str, float, float] | None = None
        self._noticed_at = self._rejoined_at = float("-inf")

    async def wait(self, what: str, since: float) -> None:
        """Waits until it is worth looking for servers again."""
        now, deadline = time.monotonic(), since + self.timeout
        if now > deadline:
            raise OutageError(f"for {self.timeout:g} s (--swarm-timeout) there was no server to reach for {what}")
        if now - self._rejoined_at > _REJOIN_SECONDS:
            self._rejoined_at = now
            await asyncio.to_thread(self.rejoin)
        self._latest = (f"no server to reach for {what}", now, deadline)
        await asyncio.sleep(min(_POLL_SECONDS, max(0.0, deadline - now)))

    def notice(self) -> str:
        """Returns a message about what requests wait for, at most every 5 s; empty if they do not wait."""
        now = time.monotonic()
        if self._latest is None or now - self._noticed_at < _NOTICE_SECONDS:
            return ""
        what, seen_at, deadline = self._latest
        if now - seen_at > 2 * _POLL_SECONDS:
            return ""
        self._noticed_at = now
        return f"{what}; the run waits {max(0.0, deadline - now):.0f} s more for one (--swarm-timeout)"
