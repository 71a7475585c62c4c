"""Runs the base model's blocks on a swarm, which is started or joined, or in this process."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from dist_eval.distributed.rank_store import RankStore, Topology
from dist_eval.errors import CheckpointError, ConfigError, SwarmError
from dist_eval.inference.models import AnsweringModel
from dist_eval.model.backbone import Backbone, ModelOnBackbone, load_local_backbone
from dist_eval.model.base_model_spec import BaseModelSpec, ModelTarget
from dist_eval.model.classifier import with_tuned_head
from dist_eval.model.label_words import LabelWords
from dist_eval.model.language_model import CausalModel
from dist_eval.model.pretrained_classifier import PretrainedClassifier, load_full_model, local_device
from dist_eval.model.swarm_backbone import SwarmBackbone, load_client_base
from dist_eval.options.groups import SwarmOptions
from dist_eval.petals.client.records import Swarm
from dist_eval.petals.client.router import Router
from dist_eval.petals.model.checkpoint import TunedCheckpoint
from dist_eval.petals.model.connection import connect
from dist_eval.process.programs import notify
from dist_eval.process.shared_state import SharedStates
from dist_eval.tables import format_count

_PATIENCE = 2.0  # multiple of --request-timeout after which a rank with an unanswered request counts as hanging


@dataclass(frozen=True)
class SwarmPeers:
    """How to reach a swarm."""

    addresses: list[str] = field(default_factory=list)  # empty for the public swarm, whose peers Petals knows
    # raises a `SwarmError` if a server of an embedded swarm has ended
    require_alive: Callable[[], None] = lambda: None


@contextmanager
def open_swarm(
    options: SwarmOptions, base: BaseModelSpec, topology: Topology, rank_store: RankStore, *, echo: bool = False
) -> Iterator[SwarmPeers]:
    """Finds the swarm's peers; an embedded swarm is started by the leader, which publishes its peers to other ranks.

    An embedded swarm computes `base`, shows the logs of its servers if `echo` is set, and cannot span hosts.
    """
    if not options.starts_swarm:
        yield SwarmPeers(options.initial_peers)
        return
    if topology.hosts > 1:
        raise ConfigError(
            "--swarm embedded starts servers on loopback, which the other hosts of this run cannot reach. Start a "
            "swarm with `dist-eval swarm` and name it with --initial-peers."
        )
    elif not topology.is_leader:
        yield SwarmPeers(rank_store.wait_for("peers", options.swarm_timeout).split())
    else:
        from dist_eval.petals.server.private import PrivateSwarm, split_blocks

        blocks = base.config.num_hidden_layers
        servers = format_count(options.servers, "server")
        print(f"starting a private swarm of {servers} ...", file=sys.stderr, flush=True)
        with PrivateSwarm(
            base.name,
            num_blocks=blocks,
            dht_prefix=base.dht_prefix,
            spans=split_blocks(blocks, options.servers),
            revision=base.revision,
            adapters=[base.adapter] if base.adapter else [],
            cache_tokens=base.cache_tokens,
            echo=echo,
        ) as swarm:
            rank_store.publish("peers", " ".join(swarm.initial_peers))
            try:
                yield SwarmPeers(swarm.initial_peers, swarm.require_alive)
            except SwarmError:
                swarm.require_alive()  # if one of our servers ended, that is the root cause
                raise


def load_model(
    base: BaseModelSpec,
    target: ModelTarget,
    options: SwarmOptions | None,
    peers: SwarmPeers,
    topology: Topology,
    sockets: Path,
    *,
    shared_dir: Path | None = None,
    compression: str = "none",
) -> tuple[AnsweringModel, Swarm | None]:
    """Builds the model; on a swarm, waits first until all blocks have a server.

    Returns the model and the section `swarm` of `results.json`.

    Args:
        base: the base model.
        target: the head, label words or complete classifier to evaluate.
        options: the swarm's timeouts and retries; None to load the model in this process.
        peers: how to reach the swarm.
        topology: this process's place among the ranks.
        sockets: this rank's private folder for the sockets of the p2p daemon.
        shared_dir: a folder that all ranks of this host name, to pace their requests together.
        compression: precision of transferred activations, "none" or "float16".
    """
    if options is None or isinstance(target, PretrainedClassifier):
        return load_on_host(base, target, topology), None
    from dist_eval.petals.client.client import public_peers
    from dist_eval.petals.client.hivemind_compat import prepare_hivemind

    prepare_hivemind(sockets=sockets)
    router = Router(
        topology.rank, SharedStates(shared_dir) if shared_dir else None, period=_PATIENCE * options.request_timeout
    )
    # servers of its own always take a while to start
    say = notify if topology.is_leader and not options.starts_swarm else None
    connection = connect(
        peers.addresses or public_peers(),
        base.dht_prefix,
        base.config,
        adapter=base.adapter,
        timeout=options.swarm_timeout,
        check=peers.require_alive,
        say=say,
        request_timeout=options.request_timeout,
        max_retries=options.max_retries,
        compression=compression,
        router=router,
        tokens_per_second=(options.max_tokens_per_second or math.inf) / topology.world_size,
    )
    try:
        client = load_client_base(base.name)
    except BaseException:
        connection.close()
        raise
    client.connect(connection.requests, request_tokens=base.request_tokens)
    return with_head(SwarmBackbone(client, connection.dht), base, target), connection.coverage.summary()


def load_on_host(base: BaseModelSpec, target: ModelTarget, topology: Topology) -> AnsweringModel:
    """Builds the model in this process, on a GPU if the host has one."""
    device = local_device(topology.local_rank)
    if isinstance(target, PretrainedClassifier):
        return load_full_model(target, device)
    return with_head(load_local_backbone(base.name, device), base, target)


def with_head(
    backbone: Backbone, base: BaseModelSpec, target: TunedCheckpoint | LabelWords | CausalModel
) -> ModelOnBackbone:
    """Puts the target's head on its base model; closes the base model on failure."""
    try:
        if isinstance(target, TunedCheckpoint):
            return with_tuned_head(backbone, base.name, target)
        return target.on(backbone, base.token_budget)
    except CheckpointError:
        backbone.close()
        raise
