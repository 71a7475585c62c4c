"""A key-value store of small strings, with a time limit for each call.

torch's TCP client waits forever for an answer from a host that was cut off: the connection reports no error, and most
calls take no time limit. So each call is made by a thread that is abandoned if the call does not return.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any

from dist_eval.errors import LostRankError


class LimitedStore:
    """Forwards calls to a store."""

    def __init__(self, store: Any, limit: float, unanswered: Callable[[], str]) -> None:
        self._store, self._limit, self._unanswered = store, limit, unanswered
        self._calls: queue.SimpleQueue[Callable[[], Any] | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[tuple[Any, Exception | None]] = queue.SimpleQueue()
        self._is_lost = False
        threading.Thread(target=self._serve, name="store", daemon=True).start()

    def set(self, key: str, value: str) -> None:
        """Writes a value."""
        self._ask(lambda: self._store.set(key, value))

    def get(self, key: str) -> bytes:
        """Returns a value that is known to exist."""
        return self._ask(lambda: self._store.get(key))

    def multi_get(self, keys: list[str]) -> list[bytes]:
        """Returns values that are known to exist."""
        return self._ask(lambda: self._store.multi_get(keys))

    def add(self, key: str, amount: int) -> int:
        """Adds to a counter, and returns the sum."""
        return self._ask(lambda: self._store.add(key, amount))

    def check(self, keys: list[str]) -> bool:
        """Returns whether all of these keys exist."""
        return self._ask(lambda: self._store.check(keys))

    def delete_key(self, key: str) -> bool:
        """Removes a value."""
        return self._ask(lambda: self._store.delete_key(key))

    def close(self) -> None:
        """Ends the thread, which closes the connection."""
        self._calls.put(None)

    def _ask(self, call: Callable[[], Any]) -> Any:
        """Makes one call."""
        if not self._is_lost:
            self._calls.put(call)
            try:
                answer, error = self._answers.get(timeout=self._limit)
            except queue.Empty:
                self._is_lost = True  # for good: a late answer would be taken for that of another call
            else:
                if error is not None:
                    raise error
                return answer
        raise LostRankError(self._unanswered())

    def _serve(self) -> None:
        while (call := self._calls.get()) is not None:
            try:
                self._answers.put((call(), None))
            except Exception as error:  # raised again in the calling thread
                self._answers.put((None, error))
