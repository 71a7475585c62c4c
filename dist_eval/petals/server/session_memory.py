"""The memory of sessions on a server: waiting for room blocks nobody else, and no handler waits for the blocks."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
import weakref
from collections.abc import Iterator
from typing import Any

from dist_eval.errors import one_line

LONGEST_WAIT = 10.0
"""Longest time in seconds that a session waits for room, if its client asks for it."""

_POLL_SECONDS, _READ_SECONDS = 0.05, 1.0

logger = logging.getLogger(__name__)


def session_memory_class() -> Any:
    """Returns Petals' `MemoryCache` with a different way to read and wait for allocations.

    In Petals, the process of the blocks reads the handlers' allocations only when it runs a step, through a pipe of 64
    KiB: after some hundred sessions without a step, all handlers would wait forever. A handler that waits for room
    holds a lock that others need, and does not always release it after a timeout.
    """
    from petals.server.memory_cache import AllocationFailed, MemoryCache

    class SessionMemory(MemoryCache):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self._reading = threading.Lock()
            threading.Thread(target=_read, args=(weakref.ref(self), self._pipe_recv), daemon=True).start()

        @contextlib.contextmanager
        def use_cache(self, *handles: Any) -> Iterator[Any]:
            with self._reading, super().use_cache(*handles) as found:
                tensors = found
            yield tensors

        async def _schedule_alloc(self, size: int, *descriptors: Any, timeout: float | None) -> tuple[int, ...]:
            if size > self.max_size_bytes:
                raise AllocationFailed(f"Could not allocate {size} bytes, max cache size = {self.max_size_bytes} bytes")
            deadline = time.monotonic() + min(timeout or 0.0, LONGEST_WAIT)
            while (handles := self._allocated(size, descriptors)) is None:
                if time.monotonic() >= deadline:
                    raise AllocationFailed(f"Server's attention cache is full, could not allocate {size} bytes in time")
                await asyncio.sleep(_POLL_SECONDS)
            return handles

        def _allocated(self, size: int, descriptors: Any) -> tuple[int, ...] | None:
            with self._lock_metadata:
                if self.current_size_bytes + size > self.max_size_bytes:
                    return None
                handles = tuple(self.handle_counter + number for number in range(len(descriptors)))
                self.current_size_bytes += size
                self.handle_counter += len(handles)
                self._pipe_send.send((handles, descriptors))
                return handles

    return SessionMemory


def _read(memory: weakref.ref[Any], pipe: Any) -> None:
    """Reads the handlers' allocations and releases as long as the memory object exists."""
    while (found := memory()) is not None:
        try:
            with found.use_cache():
                pass
        except Exception as error:  # such as too little GPU memory; the session's next step fails
            logger.warning(f"a session was not allocated: {one_line(error)}")
        del found
        with contextlib.suppress(OSError):
            pipe.poll(_READ_SECONDS)
