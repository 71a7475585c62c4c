"""A base model without a head on a swarm."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from dist_eval.data.plan import SharedPrefix
from dist_eval.errors import NoCacheError
from dist_eval.model.backbone import NO_PROMPTS, Backbone, SoftPrompts
from dist_eval.model.session_pool import SessionPool
from dist_eval.model.text_session import RecomputedTextSession, TextSession
from dist_eval.petals.base_model.architecture import Architecture
from dist_eval.petals.base_model.config import read_base_config
from dist_eval.petals.base_model.rope import RopeSwitch
from dist_eval.petals.client.inputs import Inputs
from dist_eval.petals.client.records import RouteSegment, Traffic
from dist_eval.petals.client.routes import RouteRecord
from dist_eval.petals.client.session_room import SessionRoom
from dist_eval.petals.model.base import SwarmBase, base_class
from dist_eval.petals.model.loading import load_client_model
from dist_eval.revisions import pinned


class SwarmBackbone(Backbone):
    """A base model whose blocks a swarm hosts; embeddings and final norm are in this process.

    `close` leaves the swarm with `dht`, a DHT node; None if its owner does so.
    """

    def __init__(self, base: SwarmBase, dht: Any = None) -> None:
        self.base, self.dht, self.config = base, dht, base.config
        self.blocks, self.requests = base.swarm_blocks, base.swarm_blocks.requests
        self.final_norm, self.word_embeddings = base.swarm_final_norm, base.get_input_embeddings()
        self._rope = RopeSwitch(self.config)
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
        """See `Backbone.hidden_states`; texts too long for a request take several, without gradients."""
        given = self.base.inputs(input_ids, prompts.tokens)
        found = self.blocks.forward(given, prompts.deep, avoided=avoided, record=record, rows=rows)
        return found.to(self.word_embeddings.weight.device)

    def hidden_states_after(
        self,
        shared: SharedPrefix,
        input_ids: torch.Tensor,
        prompts: SoftPrompts,
        record: RouteRecord,
        rows: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """See `Backbone.hidden_states_after`: servers cache the prefix in sessions."""
        if self._pool is None:
            raise NoCacheError("there are no sessions")
        return self._pool.hidden_states(shared, input_ids, prompts, record, rows)

    def embedded(self, input_ids: torch.Tensor, prompts: torch.Tensor | None) -> torch.Tensor:
        """Returns the first block's inputs, of shape [batch, pre_seq_len + length, hidden]."""
        return self.base.embedded(input_ids, prompts)

    def session(
        self, rows: int, max_length: int, prompts: SoftPrompts = NO_PROMPTS, *, rolls_back: bool = True
    ) -> TextSession:
        """See `Backbone.session`: servers cache their computations, if model and servers can.

        They cannot if texts may become so long that other rotary embeddings apply from the first token on.
        """
        is_switching = self._rope.kind(len(prompts) + max_length) > 0  # cached values would not fit
        if is_switching or not self.blocks.has_sessions:
            return RecomputedTextSession(lambda ids, record: self.hidden_states(ids, prompts, record=record), rows)

        def inputs_of(ids: torch.Tensor, soft: torch.Tensor | None) -> Inputs:
            return Inputs.of(self.base.inputs(ids.to(self.word_embeddings.weight.device), soft))

        return self.blocks.session(inputs_of, rows, max_length, prompts.tokens, prompts.deep, rolls_back=rolls_back)

    def cache_tokens(self) -> float:
        """See `Backbone.cache_tokens`: the minimum over all blocks."""
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

    def stop_sending(self) -> None:
        self.requests.rate_limiter.closed = True

    def move(self, device: torch.device) -> None:
        self.base.to(device)

    def close(self) -> None:
        """Closes the sessions, stops the thread that updates the list of servers, then leaves the swarm."""
        if self._pool is not None:
            self._pool.close()
        if self.dht is None:
            return
        from dist_eval.petals.client.client import leave_swarm

        leave_swarm(self.dht, self.requests.servers.connection, self.requests.close)


def load_swarm_backbone(
    model: str,
    dht: Any,
    *,
    dht_prefix: str,
    adapter: str | None = None,
    request_tokens: int | None = None,
    **options: Any,
) -> SwarmBackbone:
    """Loads a base model whose blocks a swarm hosts; this process loads only the embeddings and the final norm.

    For programs that are no run, such as benchmarks (a run: `backends.load_model`). Close it before the process group.
    `options` are those of `SwarmRequests`.
    """
    from dist_eval.petals.client.directory import ServerDirectory
    from dist_eval.petals.client.requests import SwarmRequests

    base = load_client_base(model)
    directory = ServerDirectory(dht, dht_prefix, base.config.num_hidden_layers, adapter)
    requests = SwarmRequests(directory, base.config, **options)
    requests.start()
    base.connect(requests, request_tokens=request_tokens)
    return SwarmBackbone(base, dht)


def load_client_base(model: str) -> SwarmBase:
    """Loads the embeddings and the final norm of a base model whose layers a swarm computes."""
    revision = pinned("model", model)
    architecture = Architecture(read_base_config(model, revision), model)
    return load_client_model(base_class(architecture), architecture, model, revision)
