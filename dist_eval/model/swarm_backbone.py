"""A base model without a head on a swarm."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from dist_eval.data.plan import SharedBeginning
from dist_eval.errors import NoCacheError
from dist_eval.model.backbone import NO_PROMPTS, Backbone, SoftPrompts
from dist_eval.model.session_pool import SessionPool
from dist_eval.model.text_session import RecomputedTextSession, TextSession
from dist_eval.petals.base_model.rope import RopeSwitch
from dist_eval.petals.client.inputs import TokenIds
from dist_eval.petals.client.records import RouteSegment, Traffic
from dist_eval.petals.client.routes import RouteRecord, Span
from dist_eval.petals.client.session_room import SessionRoom
from dist_eval.petals.model.base import SwarmBase
from dist_eval.petals.model.blocks import SwarmBlocks

if TYPE_CHECKING:
    from dist_eval.petals.client.requests import SwarmRequests


class SwarmBackbone(Backbone):
    """A base model whose blocks a swarm hosts; embeddings and final norm are in this process.

    A text of more than `request_tokens` takes several requests, in a session. By default, all are sent as they are.
    """

    def __init__(self, base: SwarmBase, dht: Any, requests: SwarmRequests, request_tokens: int | None = None) -> None:
        self.base, self.dht, self.requests, self.config = base, dht, requests, base.config
        self.final_norm, self.word_embeddings = base.final_norm, base.get_input_embeddings()
        self._rope = RopeSwitch(self.config)
        keeps_texts = base.architecture.has_attention_cache
        self.blocks = base.blocks = SwarmBlocks(requests, keeps_texts=keeps_texts, request_tokens=request_tokens)
        self._pool: SessionPool | None = None

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
        given: torch.Tensor | TokenIds = TokenIds(input_ids, prompts.tokens, self.embedded, self.config.hidden_size)
        if not self.base.architecture.has_lookup:
            given = self.embedded(input_ids, prompts.tokens)
        found = self.blocks.forward(given, prompts.deep, avoided=avoided, record=record, rows=rows)
        return found.to(self.word_embeddings.weight.device)

    def ask(
        self, segment: Span, hidden: torch.Tensor, deep_prompts: torch.Tensor | None, *, by_token: bool = False
    ) -> torch.Tensor:
        """See `SwarmBlocks.ask`."""
        return self.blocks.ask(segment, hidden, deep_prompts, by_token=by_token)

    def hidden_states_after(
        self, shared: SharedBeginning, input_ids: torch.Tensor, prompts: SoftPrompts, record: RouteRecord
    ) -> torch.Tensor:
        """See `Backbone.hidden_states_after`: servers keep the beginning in sessions."""
        if self._pool is None:
            raise NoCacheError("there are no sessions")
        return self._pool.hidden_states(shared, input_ids, prompts, record)

    def embedded(self, input_ids: torch.Tensor, prompts: torch.Tensor | None) -> torch.Tensor:
        """Returns the first block's inputs, of shape [batch, pre_seq_len + length, hidden]."""
        return self.base.embedded(input_ids, prompts)

    def session(
        self, rows: int, max_length: int, prompts: SoftPrompts = NO_PROMPTS, *, rolls_back: bool = True
    ) -> TextSession:
        """See `Backbone.session`: servers keep what they have computed, if model and servers can.

        They do not where texts may become so long that other rotary embeddings apply from their first token on.
        """
        is_switching = self._rope.kind(len(prompts) + max_length) > 0  # what was computed before would not fit
        if is_switching or not self.blocks.has_sessions:
            return RecomputedTextSession(lambda ids, record: self.hidden_states(ids, prompts, record=record), rows)
        return self.blocks.session(self.embedded, rows, max_length, prompts.tokens, prompts.deep, rolls_back=rolls_back)

    def cache_tokens(self) -> float:
        """See `Backbone.cache_tokens`: of the block with the least."""
        return self.blocks.cache_tokens()

    def room_for_sessions(self, share: float, session_tokens: int) -> SessionRoom:
        return self.blocks.room_for_sessions(share, session_tokens)

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
        self.base.to(device)

    def close(self) -> None:
        """Closes the sessions, stops the thread that updates the list of servers, then leaves the swarm."""
        if self._pool is not None:
            self._pool.close()
        from dist_eval.petals.client.client import leave_swarm

        leave_swarm(self.dht, self.requests.servers.connection, self.requests.servers.close)
