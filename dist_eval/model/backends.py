"""Where the base model's blocks run: on a swarm that is started or joined, or in this process."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from dist_eval.distributed.rank_store import RankStore, Topology
from dist_eval.errors import ConfigError, SwarmError
from dist_eval.model.base_model_spec import BaseModelSpec, EvalTarget
from dist_eval.model.classifier import Classifier, load_locally, load_on_swarm
from dist_eval.model.pretrained_classifier import FullClassifier, PretrainedClassifier, load_full_model, local_device
from dist_eval.options.groups import SwarmOptions
from dist_eval.results.work import Swarm


@dataclass(frozen=True)
class SwarmPeers:
    """How to reach a swarm.

    Attributes:
        addresses: of its peers; none for the public swarm, whose peers Petals has.
        require_alive: raises a `SwarmError` when a server of an embedded swarm has ended.
    """

    addresses: list[str] = field(default_factory=list)
    require_alive: Callable[[], None] = lambda: None


@contextmanager
def open_swarm(
    options: SwarmOptions, base: BaseModelSpec, topology: Topology, rank_store: RankStore, *, echo: bool = False
) -> Iterator[SwarmPeers]:
    """Finds the swarm's peers; an embedded swarm is started by the leader, which publishes its peers to other ranks.

    Args:
        options: which swarm.
        base: the base model, for an embedded swarm.
        topology: this process's place among the ranks.
        rank_store: the store shared by the ranks.
        echo: whether servers of an embedded swarm show their logs.

    Raises:
        ConfigError: an embedded swarm was asked for on several hosts.
    """
    if options.swarm == "public" or options.initial_peers:
        yield SwarmPeers(options.initial_peers)
    elif topology.hosts > 1:
        raise ConfigError(
            "--swarm embedded starts servers on loopback, which the other hosts of this run cannot reach. Start a "
            "swarm with `dist-eval swarm` and name it with --initial-peers."
        )
    elif not topology.is_leader:
        yield SwarmPeers(rank_store.wait_for("peers", options.swarm_timeout).split())
    else:
        from dist_eval.swarm.private import PrivateSwarm, split_blocks

        blocks = base.config.num_hidden_layers
        with PrivateSwarm(
            base.name,
            num_blocks=blocks,
            dht_prefix=base.dht_prefix,
            spans=split_blocks(blocks, options.servers),
            adapters=[base.adapter] if base.adapter else [],
            echo=echo,
        ) as swarm:
            rank_store.publish("peers", " ".join(swarm.initial_peers))
            try:
                yield SwarmPeers(swarm.initial_peers, swarm.require_alive)
            except SwarmError:
                swarm.require_alive()  # if one of our servers ended, that is the root cause
                raise


def load_classifier(
    base: BaseModelSpec,
    target: EvalTarget,
    options: SwarmOptions | None,
    peers: SwarmPeers,
    topology: Topology,
    sockets: Path,
    *,
    compression: str = "none",
) -> tuple[Classifier | FullClassifier, Swarm | None]:
    """Builds the classifier; on a swarm, waits first until all blocks have a server.

    Args:
        base: the base model.
        target: what is evaluated.
        options: the swarm's timeouts and retries; None to load the model in this process.
        peers: how to reach the swarm.
        topology: this process's place among the ranks.
        sockets: this rank's private folder for the sockets of the p2p daemon.
        compression: precision of transferred activations, "none" or "float16".

    Returns:
        The classifier and the section `swarm` of `results.json`.

    Raises:
        SwarmError: the swarm does not answer or misses blocks.
        CheckpointError: weights are missing, or are not those that the checkpoint was tuned on.
    """
    if options is None or isinstance(target, PretrainedClassifier):
        return load_on_host(base, target, topology), None
    from dist_eval.swarm.hivemind_compat import import_petals

    import_petals(sockets=sockets)
    from dist_eval.swarm.client import join_swarm, leave_swarm, public_peers, rejoin_swarm
    from dist_eval.swarm.coverage import wait_until_covered

    addresses, check, timeout = peers.addresses or public_peers(), peers.require_alive, options.swarm_timeout

    def rejoin() -> None:
        check()
        rejoin_swarm(dht, addresses)

    dht = join_swarm(addresses, timeout, check=check)
    try:
        blocks = base.config.num_hidden_layers
        coverage = wait_until_covered(dht, base.dht_prefix, blocks, timeout, adapter=base.adapter, check=check)
        rejoin_swarm(dht, addresses)  # the daemon may not know the addresses of servers that came up after it joined
        classifier = load_on_swarm(
            base.name,
            target,
            dht,
            dht_prefix=base.dht_prefix,
            request_timeout=options.request_timeout,
            max_retries=options.max_retries,
            adapter=base.adapter,
            compression=compression,
            seed=topology.rank,
            outage_timeout=timeout,
            rejoin=rejoin,
            tokens_per_second=(options.max_tokens_per_second or math.inf) / topology.world_size,
        )
    except BaseException:
        leave_swarm(dht)
        raise
    return classifier, coverage.summary()


def load_on_host(base: BaseModelSpec, target: EvalTarget, topology: Topology) -> Classifier | FullClassifier:
    """Builds the classifier in this process, on a GPU of this host if there is one.

    Raises:
        CheckpointError: weights are missing, or are not those that the checkpoint was tuned on.
    """
    device = local_device(topology.local_rank)
    if isinstance(target, PretrainedClassifier):
        return load_full_model(target, device)
    return load_locally(base.name, target, device)
