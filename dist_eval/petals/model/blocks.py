"""A model's blocks on a swarm: inputs of the first block → outputs of the last one."""

from __future__ import annotations

import contextvars
import functools
import math
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import closing
from typing import TYPE_CHECKING, TypeVar

import torch

from dist_eval.errors import NoCacheError, RefusedError
from dist_eval.petals.client.failures import can_have_more_room
from dist_eval.petals.client.inputs import Inputs, TokenIds
from dist_eval.petals.client.outputs import picked
from dist_eval.petals.client.petals_version import can_roll_back
from dist_eval.petals.client.reachability import CONTACT_SECONDS
from dist_eval.petals.client.records import RouteSegment
from dist_eval.petals.client.routes import RouteRecord, Span
from dist_eval.petals.client.session_room import NO_ROOM, CacheSpace, SessionRoom, room_for_sessions, with_room
from dist_eval.petals.model.shared import Shared

if TYPE_CHECKING:
    from dist_eval.petals.client.inference_session import InferenceSession, MakeInputs
    from dist_eval.petals.client.requests import SwarmRequests

Result = TypeVar("Result")

_AT_ONCE = 16  # concurrent calls, each in its own thread


class SwarmBlocks(Shared):
    """The blocks of a model.

    `keeps_texts` is whether servers can keep texts in order to continue them. Texts of more than `request_tokens`
    tokens, if given, are sent in a session. `require_open` raises an error if the connection cannot be used any more.
    """

    def __init__(
        self,
        requests: SwarmRequests,
        *,
        keeps_texts: bool,
        request_tokens: int | None = None,
        require_open: Callable[[], None] = lambda: None,
    ) -> None:
        self.requests, self._keeps_texts, self._request_tokens = requests, keeps_texts, request_tokens
        self._require_open = require_open
        self._room = CacheSpace(self.cache_tokens)  # of texts that are too long for a request

    def forward(
        self,
        given: torch.Tensor | TokenIds,
        deep_prompts: torch.Tensor | None = None,
        *,
        avoided: Sequence[RouteSegment] = (),
        record: RouteRecord | None = None,
        rows: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Sends a batch through all blocks. Thread-safe, and differentiable for texts that fit into one request.

        Returns the outputs of the last block before the final norm: in the shape of the hidden states, or of shape
        [rows, hidden]; in their dtype, or float32 for token ids.

        Args:
            given: hidden states, float tensor of shape [batch, length, hidden], or the token ids to compute them from.
            deep_prompts: tensor of shape [blocks, pre_seq_len, hidden], or None.
            avoided: segments to avoid if there is another route.
            record: records the route.
            rows: positions in batch x length whose outputs are needed, int64 of shape [rows]; by default all.
        """
        self._require_open()
        if outputs := self._with_gradients([given], deep_prompts):
            return picked(outputs[0], rows)
        return self._without_gradients(given, deep_prompts, avoided, record, rows)

    def forward_all(
        self, parts: Sequence[tuple[torch.Tensor | TokenIds, torch.Tensor]], deep_prompts: torch.Tensor | None
    ) -> list[torch.Tensor]:
        """Sends several batches concurrently, each with the positions of needed outputs (see `forward`)."""
        self._require_open()
        if outputs := self._with_gradients([given for given, _ in parts], deep_prompts):
            return [picked(found, rows) for found, (_, rows) in zip(outputs, parts, strict=True)]
        return at_once(
            [functools.partial(self._without_gradients, given, deep_prompts, (), None, rows) for given, rows in parts]
        )

    def _with_gradients(
        self, batches: Sequence[torch.Tensor | TokenIds], deep_prompts: torch.Tensor | None
    ) -> Sequence[torch.Tensor]:
        """Returns differentiable outputs of batches; empty if no input requires gradients."""
        learning = [deep_prompts, *(given.prompts if isinstance(given, TokenIds) else given for given in batches)]
        if not torch.is_grad_enabled() or not any(each is not None and each.requires_grad for each in learning):
            return ()
        from dist_eval.petals.client.gradients import through_swarm

        hidden = [given.embed(given.ids, given.prompts) if isinstance(given, TokenIds) else given for given in batches]
        return through_swarm(self.requests, hidden, deep_prompts)

    @torch.no_grad()
    def _without_gradients(
        self,
        given: torch.Tensor | TokenIds,
        deep_prompts: torch.Tensor | None,
        avoided: Sequence[RouteSegment],
        record: RouteRecord | None,
        rows: torch.Tensor | None,
    ) -> torch.Tensor:
        inputs = Inputs.of(given)
        if self.is_long(inputs.length):
            texts = inputs.hidden().split(1)
            return picked(torch.cat([self._in_session(text, deep_prompts, avoided, record) for text in texts]), rows)
        from dist_eval.petals.client.forward import forward

        return forward(self.requests, given, deep_prompts, avoided, record, rows=rows)

    def ask(
        self, segment: Span, hidden: torch.Tensor, deep_prompts: torch.Tensor | None, *, by_token: bool = False
    ) -> torch.Tensor:
        """Sends inputs of a block, of shape [batch, length, hidden], through a given server; errors name it.

        With `by_token` they are sent token by token in a session, like generated texts.
        """
        from dist_eval.petals.client.server_cache import whole_text_request

        if not by_token and not self.is_long(hidden.shape[1]):
            return self.requests.ask(segment, hidden, deep_prompts)
        tokens = hidden.shape[0] if by_token else self._request_tokens
        request = whole_text_request(self.requests.transport, segment, hidden, deep_prompts, request_tokens=tokens)
        with self._room.taken(hidden.shape[0] * hidden.shape[1]):
            return with_room(lambda: self.requests.answer_of(segment, request))

    def is_long(self, length: int) -> bool:
        """Whether texts of `length` tokens are sent in sessions, because they do not fit into a request."""
        return length > (self._request_tokens or length) and self._keeps_texts

    def _in_session(
        self,
        hidden: torch.Tensor,
        deep_prompts: torch.Tensor | None,
        avoided: Sequence[RouteSegment],
        record: RouteRecord | None,
    ) -> torch.Tensor:
        """Sends a text that is too long for one request, of shape [1, length, hidden], in several requests."""
        tokens = hidden.shape[1]
        session = self.session(lambda ids, _: Inputs.of(ids), 1, tokens, None, deep_prompts, rolls_back=False)
        try:
            with self._room.taken(tokens), closing(session):  # a failure may leave streams open
                return with_room(lambda: session.pass_through(hidden, avoided, record))
        except NoCacheError as error:
            more_room = f", or start servers with --cache-tokens {tokens} or more" if can_have_more_room(error) else ""
            refused = RefusedError(
                f"a text of {tokens} tokens, prompts included, is sent in a session, and servers have no room for it "
                f"({error}): give a lower --max-length{more_room}"
            )
            refused.transient = error.transient
            raise refused from error

    def session(
        self,
        inputs_of: MakeInputs,
        rows: int,
        max_length: int,
        prompts: torch.Tensor | None = None,
        deep_prompts: torch.Tensor | None = None,
        *,
        rolls_back: bool,
    ) -> InferenceSession:
        """Opens a session (see `InferenceSession`); nothing is sent yet."""
        from dist_eval.petals.client.inference_session import InferenceSession

        self._require_open()
        return InferenceSession(
            self.requests,
            inputs_of,
            rows=rows,
            max_length=max_length,
            prompts=prompts,
            deep_prompts=deep_prompts,
            rolls_back=rolls_back,
            request_tokens=self._request_tokens,
        )

    @property
    def has_sessions(self) -> bool:
        """Whether all blocks have servers that keep texts."""
        return self._keeps_texts and self.requests.servers.has_sessions

    def cache_tokens(self, seconds: float = CONTACT_SECONDS) -> float:
        """Returns the least free cache of all blocks, in tokens of texts; infinity without sessions.

        Servers that cannot be reached are asked again for some `seconds`.
        """
        room = [0] * self.requests.num_blocks
        for span, free in self.requests.servers.free_cache(seconds).items():
            for block in range(span.start, span.end):
                room[block] += free // (span.end - span.start)
        return min(room) if self.has_sessions else math.inf

    def room_for_sessions(self, share: float, session_tokens: int) -> SessionRoom:
        """See `room_for_sessions`."""
        spans = self.requests.servers.session_spans()
        if not share or not self.has_sessions or not any(can_roll_back(span.announced.version) for span in spans):
            return NO_ROOM
        return room_for_sessions(self.requests.servers.free_cache(), self.requests.num_blocks, share, session_tokens)


def at_once(calls: Sequence[Callable[[], Result]]) -> list[Result]:
    """Calls functions in threads, in the context of this one; when it returns or raises, none of them is running."""
    if len(calls) < 2:
        return [call() for call in calls]
    changed, running, given_up = threading.Condition(), 0, False

    def run(call: Callable[[], Result]) -> Result:
        nonlocal running
        with changed:
            if given_up:
                raise CancelledError
            running += 1
        try:
            return call()
        finally:
            with changed:
                running -= 1
                changed.notify_all()

    try:
        with ThreadPoolExecutor(min(len(calls), _AT_ONCE)) as pool:
            contexts = [contextvars.copy_context() for _ in calls]
            futures = [pool.submit(context.run, run, call) for context, call in zip(contexts, calls, strict=True)]
            return [future.result() for future in futures]
    except BaseException:  # a pool does not wait for a thread in whose start Ctrl-C arrived
        with changed:
            given_up = True
            changed.wait_for(lambda: not running)
        raise
