"""A base model without a head on a swarm."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

import torch

from dist_eval.base_model.rope import RopeSwitch
from dist_eval.data.answers import RouteSegment
from dist_eval.data.plan import SharedBeginning
from dist_eval.errors import NoCacheError, RefusedError
from dist_eval.model.backbone import NO_PROMPTS, Backbone, SoftPrompts, picked
from dist_eval.model.session_pool import SessionPool
from dist_eval.model.text_session import RecomputedTextSession, Room, TextSession, with_room
from dist_eval.results.work import Traffic
from dist_eval.swarm.failures import can_have_more_room
from dist_eval.swarm.inputs import TokenIds
from dist_eval.swarm.petals_version import can_roll_back
from dist_eval.swarm.routes import RouteRecord, Span
from dist_eval.swarm.session_room import NO_ROOM, SessionRoom, room_for_sessions

if TYPE_CHECKING:
    from dist_eval.swarm.requests import SwarmRequests


class SwarmBackbone(Backbone):
    """A base model whose blocks a swarm hosts; embeddings and final norm are in a local `Shell`.

    A text of more than `request_tokens` takes several requests, in a session. By default, all are sent as they are.
    """

    def __init__(self, shell: Any, dht: Any, requests: SwarmRequests, request_tokens: int | None = None) -> None:
        self._request_tokens = request_tokens
        self.shell, self.dht, self.requests, self.config = shell, dht, requests, shell.config
        self.final_norm, self.word_embeddings = shell.final_norm, shell.word_embeddings
        self._rope = RopeSwitch(self.config)
        self._pool: SessionPool | None = None
        self._room = Room(self.cache_tokens)  # of texts that are too long for a request

    def hidden_states(
        self,
        input_ids: torch.Tensor,
        prompts: SoftPrompts = NO_PROMPTS,
        *,
        avoided: Sequence[RouteSegment] = (),
        record: RouteRecord | None = None,
        rows: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """See `Backbone.hidden_states`; what is too long for a request takes several, without gradients."""
        deep_prompts = prompts.deep
        if torch.is_grad_enabled():
            embedded = self.embedded(input_ids, prompts.tokens)
            if embedded.requires_grad or getattr(deep_prompts, "requires_grad", False):
                from dist_eval.swarm.gradients import through_swarm

                return picked(through_swarm(self.requests, embedded, deep_prompts), rows)
        if self._is_long(len(prompts) + input_ids.shape[1]):
            texts = self.embedded(input_ids, prompts.tokens).split(1)
            parts = [self._in_session(text, deep_prompts, avoided, record) for text in texts]
            return picked(torch.cat(parts), rows)
        given: torch.Tensor | TokenIds
        if self.shell.has_lookup:
            given = TokenIds(input_ids, prompts.tokens, self.embedded, self.config.hidden_size)
        else:
            given = self.embedded(input_ids, prompts.tokens)
        found = self.requests.forward(given, deep_prompts, avoided, record, rows=rows)
        return found.to(self.word_embeddings.weight.device)

    def ask(
        self, segment: Span, hidden: torch.Tensor, deep_prompts: torch.Tensor | None, *, by_token: bool = False
    ) -> torch.Tensor:
        """Sends inputs of a block, of shape [batch, length, hidden], through a given server, which an error names.

        They are sent token by token, if it is asked for, in a session like those of texts that are generated.
        """
        from dist_eval.swarm.server_cache import whole_text_request

        if not by_token and not self._is_long(hidden.shape[1]):
            return self.requests.ask(segment, hidden, deep_prompts)
        tokens = hidden.shape[0] if by_token else self._request_tokens
        request = whole_text_request(self.requests.transport, segment, hidden, deep_prompts, request_tokens=tokens)
        with self._room.taken(hidden.shape[0] * hidden.shape[1]):
            return with_room(lambda: self.requests.answer_of(segment, request))

    def _is_long(self, length: int) -> bool:
        """Whether texts of so many tokens are sent in sessions, because no request has room for them."""
        return length > (self._request_tokens or length) and self.shell.has_attention_cache

    def _in_session(
        self,
        hidden: torch.Tensor,
        deep_prompts: torch.Tensor | None,
        avoided: Sequence[RouteSegment],
        record: RouteRecord | None,
    ) -> torch.Tensor:
        """Sends a text that is too long for a request, of shape [1, length, hidden], in several."""
        from dist_eval.swarm.inference_session import InferenceSession

        tokens = hidden.shape[1]
        session = InferenceSession(
            self.requests,
            self.embedded,
            rows=1,
            max_length=tokens,
            deep_prompts=deep_prompts,
            rolls_back=False,
            request_tokens=self._request_tokens,
        )
        try:
            with self._room.taken(tokens), closing(session):  # closed, for what a failure leaves
                return with_room(lambda: session.pass_through(hidden, avoided, record))
        except NoCacheError as error:
            more_room = f", or start servers with --cache-tokens {tokens} or more" if can_have_more_room(error) else ""
            refused = RefusedError(
                f"a text of {tokens} tokens, prompts included, is sent in a session, and servers have no room for it "
                f"({error}): give a lower --max-length{more_room}"
            )
            refused.transient = error.transient
            raise refused from error

    def hidden_states_after(
        self, shared: SharedBeginning, input_ids: torch.Tensor, prompts: SoftPrompts, record: RouteRecord
    ) -> torch.Tensor:
        """See `Backbone.hidden_states_after`: servers keep the beginning in sessions."""
        if self._pool is None:
            raise NoCacheError("there are no sessions")
        return self._pool.hidden_states(shared, input_ids, prompts, record)

    def embedded(self, input_ids: torch.Tensor, prompts: torch.Tensor | None) -> torch.Tensor:
        """Returns the first block's inputs, of shape [batch, pre_seq_len + length, hidden]."""
        return self.shell.embedded(input_ids, prompts)

    def session(
        self, rows: int, max_length: int, prompts: SoftPrompts = NO_PROMPTS, *, rolls_back: bool = True
    ) -> TextSession:
        """See `Backbone.session`: servers keep what they have computed, if model and servers can.

        They do not where texts may become so long that other rotary embeddings apply from their first token on.
        """
        from dist_eval.swarm.inference_session import InferenceSession

        is_switching = self._rope.kind(len(prompts) + max_length) > 0  # what was computed before would not fit
        if is_switching or not self._has_sessions:
            return RecomputedTextSession(lambda ids, record: self.hidden_states(ids, prompts, record=record), rows)
        return InferenceSession(
            self.requests,
            self.embedded,
            rows=rows,
            max_length=max_length,
            prompts=prompts.tokens,
            deep_prompts=prompts.deep,
            rolls_back=rolls_back,
            request_tokens=self._request_tokens,
        )

    @property
    def _has_sessions(self) -> bool:
        return self.shell.has_attention_cache and self.requests.servers.has_sessions

    def cache_tokens(self) -> float:
        """See `Backbone.cache_tokens`: of the block with the least."""
        room = [0] * self.requests.num_blocks
        for span, free in self.requests.servers.free_cache().items():
            for block in range(span.start, span.end):
                room[block] += free // (span.end - span.start)
        return min(room) if self._has_sessions else math.inf

    def room_for_sessions(self, share: float, session_tokens: int) -> SessionRoom:
        spans = self.requests.servers.session_spans()
        if not share or not self._has_sessions or not any(can_roll_back(span.announced.version) for span in spans):
            return NO_ROOM
        return room_for_sessions(self.requests.servers.free_cache(), self.requests.num_blocks, share, session_tokens)

    def open_sessions(self, limit: int) -> None:
        self._pool = SessionPool(self.session, limit)

    def traffic(self) -> Traffic:
        return self.requests.traffic()

    @property
    def retries(self) -> int:
        return self.requests.router.retries

    def notice(self) -> str:
        return self.requests.servers.notice()

    def exclude(self, servers: Iterable[str]) -> None:
        self.requests.servers.excluded |= set(servers)

    def move(self, device: torch.device) -> None:
        self.shell.move(device)

    def close(self) -> None:
        """Closes the sessions, stops the thread that updates the list of servers, then leaves the swarm."""
        if self._pool is not None:
            self._pool.close()
        from dist_eval.swarm.client import leave_swarm

        leave_swarm(self.dht, self.requests.servers.connection, self.requests.servers.close)
