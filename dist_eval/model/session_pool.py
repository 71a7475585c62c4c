"""The sessions of a rank, and what each of them holds: texts that begin alike continue the same one."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from dist_eval.data.shared_prefixes import rows_in_session
from dist_eval.errors import NoCacheError
from dist_eval.model.text_session import TextSession
from dist_eval.swarm.router import Routing

if TYPE_CHECKING:
    from dist_eval.model.backbone import Backbone

_PAUSE_SECONDS = 60.0
"""Time without further attempts once no server had room."""


@dataclass(frozen=True)
class Prompts:
    """The prompts before every text.

    Attributes:
        tokens: float32 of shape [pre_seq_len, hidden], or None.
        deep: float32 of shape [blocks, pre_seq_len, hidden], or None.
    """

    tokens: torch.Tensor | None = None
    deep: torch.Tensor | None = None

    def __len__(self) -> int:
        return 0 if self.tokens is None else len(self.tokens)


_Key = tuple[bytes, int]
"""Token ids of the beginning that a session holds, and its rows."""


class SessionPool:
    """Sends texts in sessions whose servers hold their common beginning. Thread-safe.

    The shape of each step follows from the batch alone: texts are padded on the right, and batches with further rows.
    So the bits of an answer depend neither on what the session was used for before, nor on the rank.

    Args:
        backbone: opens the sessions.
        sessions: how many may be open at a time.
        session_tokens: tokens that each of them may hold.
        longest: tokens that one of a single text may hold.
    """

    def __init__(self, backbone: Backbone, sessions: int, session_tokens: int, longest: int) -> None:
        self._backbone, self._limit, self._tokens, self._longest = backbone, sessions, session_tokens, longest
        self._changed = threading.Condition()
        self._idle: list[tuple[_Key, TextSession]] = []
        self._open = 0
        self._paused_until = float("-inf")

    def hidden_states(
        self, input_ids: torch.Tensor, prompts: Prompts, shared: int, routing: Routing | None = None
    ) -> torch.Tensor:
        """Runs the base model on texts with a common beginning.

        Args:
            input_ids: int64 of shape [batch, length].
            prompts: the prompts, the same in all calls.
            shared: tokens at the beginning, prompts included, that all texts have in common.
            routing: records the route.

        Returns:
            Outputs of the last block before the final norm, of shape [batch, prompts + length, hidden]; NaN for the
            common beginning, which nobody may need.

        Raises:
            NoCacheError: no server has room for a session, or this rank may not open one.
            EvaluationError: there is no answer.
        """
        common, width = shared - len(prompts), len(prompts) + input_ids.shape[1]
        rows = rows_in_session(width, self._tokens)
        missing = -len(input_ids) % rows
        padded = torch.cat([input_ids, input_ids[:1].expand(missing, -1)])
        found = []
        with self._session(input_ids[0, :common], prompts, rows) as session:
            for part in torch.split(padded, rows):
                found.append(session.step(part[:, common:], start=common, routing=routing))
        outputs = torch.cat(found)[: len(input_ids)]
        unknown = outputs.new_full((len(outputs), shared, outputs.shape[2]), torch.nan)
        return torch.cat([unknown, outputs], dim=1)

    def close(self) -> None:
        """Gives the servers' memory back; sessions that a thread still uses end with the process."""
        with self._changed:
            idle, self._idle, self._limit = self._idle, [], 0
            self._open -= len(idle)
            self._changed.notify_all()
        for _, session in idle:
            session.close()

    @contextmanager
    def _session(self, beginning: torch.Tensor, prompts: Prompts, rows: int) -> Iterator[TextSession]:
        """Lends a session that holds a beginning."""
        key = beginning.numpy().tobytes(), rows
        held, session = self._take(key)
        try:
            if held != key:
                if session is not None:
                    session.close()
                session = None  # it is closed
                # the same for all texts of this key: the next one may be longer
                longest = self._tokens // rows if rows > 1 else self._longest
                session = self._backbone.session(rows, longest - len(prompts), prompts.tokens, prompts.deep)
                session.step(beginning.expand(rows, -1))
            assert session is not None
            yield session
        except BaseException as error:
            if session is not None:
                session.close()
            with self._changed:
                self._open -= 1
                if isinstance(error, NoCacheError):
                    self._paused_until = time.monotonic() + _PAUSE_SECONDS
                self._changed.notify_all()
            raise
        with self._changed:
            self._idle.append((key, session))
            self._changed.notify_all()

    def _take(self, key: _Key) -> tuple[_Key | None, TextSession | None]:
        """Waits for a session: one that holds the beginning, or else leave to open one, in place of another if any."""
        with self._changed:
            while self._limit > 0:
                for place, (held, _) in enumerate(self._idle):
                    if held == key:
                        return self._idle.pop(place)
                if self._open < self._limit and time.monotonic() >= self._paused_until:
                    self._open += 1
                    return None, None
                if self._idle:
                    return self._idle.pop(0)
                if not self._open:
                    break
                self._changed.wait()
        raise NoCacheError("there is no room for a session")
