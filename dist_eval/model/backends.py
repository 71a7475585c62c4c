"""Where the base model's blocks run: on a swarm that is started or joined, or in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from dist_eval.distributed.rank_store import RankStore, Topology
from dist_eval.errors import ConfigError, SwarmError
from dist_eval.model.base_model_spec import BaseModelSpec, EvalTarget
from dist_eval.model.classifier import Classifier, load_locally, load_on_swarm
from dist_eval.model.pretrained_classifier import FullClassifier, PretrainedClassifier, load_full_model, local_device
from dist_eval.options.config import RunConfig
from dist_eval.results.work import Swarm


@contextmanager
def open_swarm(
    config: RunConfig, base: BaseModelSpec, topology: Topology, rank_store: RankStore
) -> Iterator[tuple[list[str], Callable[[], None]]]:
    """Returns the swarm's peers; an embedded swarm is started by the leader, which publishes its peers to other ranks.

    Yields:
        Addresses of peers (none for the local backend, nor for the public swarm, whose peers Petals has), and a
        function that raises a `SwarmError` when a server of an embedded swarm has ended.

    Raises:
        ConfigError: an embedded swarm was asked for on several hosts.
    """
    if config.backend == "local" or config.swarm == "public" or config.initial_peers:
        yield config.initial_peers, lambda: None
    elif topology.hosts > 1:
        raise ConfigError(
            "--swarm embedded starts servers on loopback, which the other hosts of this run cannot reach. Start a "
            "swarm with `dist-eval swarm` and name it with --initial-peers."
        )
    elif not topology.is_leader:
        yield rank_store.wait_for("peers", config.swarm_timeout).split(), lambda: None
    else:
        from dist_eval.swarm.private import PrivateSwarm, split_blocks

        blocks = base.config.num_hidden_layers
        with PrivateSwarm(
            base.name,
            num_blocks=blocks,
            dht_prefix=base.dht_prefix,
            spans=split_blocks(blocks, config.servers),
            echo=config.verbose,
        ) as swarm:
            rank_store.publish("peers", " ".join(swarm.initial_peers))
            try:
                yield swarm.initial_peers, swarm.require_alive
            except SwarmError:
                swarm.require_alive()  # if one of our servers ended, that is the root cause
                raise


def load_classifier(
    config: RunConfig,
    base: BaseModelSpec,
    tuned: EvalTarget,
    peers: list[str],
    sockets: Path,
    check: Callable[[], None] = lambda: None,
    *,
    topology: Topology,
) -> tuple[Classifier | FullClassifier, Swarm | None]:
    """Builds the classifier; on a swarm, waits first until all blocks have a server.

    Returns:
        The classifier and the section `swarm` of `results.json`.

    Raises:
        SwarmError: the swarm does not answer or misses blocks.
        CheckpointError: weights are missing, or are not those that the checkpoint was tuned on.
    """
    if config.backend == "local" or isinstance(tuned, PretrainedClassifier):
        return load_on_host(base, tuned, topology), None
    from dist_eval.swarm.hivemind_compat import import_petals

    import_petals(sockets=sockets)
    from dist_eval.swarm.client import join_swarm, leave_swarm, public_peers, rejoin_swarm
    from dist_eval.swarm.coverage import wait_until_covered

    peers = peers or public_peers()

    def rejoin() -> None:
        check()
        rejoin_swarm(dht, peers)

    dht = join_swarm(peers, config.swarm_timeout, check=check)
    try:
        blocks = base.config.num_hidden_layers
        coverage = wait_until_covered(dht, base.dht_prefix, blocks, config.swarm_timeout, check=check)
        rejoin_swarm(dht, peers)  # the daemon may not know the addresses of servers that came up after it joined
        classifier = load_on_swarm(
            base.name,
            tuned,
            dht,
            dht_prefix=base.dht_prefix,
            request_timeout=config.request_timeout,
            max_retries=config.max_retries,
            compression=config.compression,
            seed=topology.rank,
            outage_timeout=config.swarm_timeout,
            rejoin=rejoin,
        )
    except BaseException:
        leave_swarm(dht)
        raise
    return classifier, coverage.summary()


def load_on_host(base: BaseModelSpec, tuned: EvalTarget, topology: Topology) -> Classifier | FullClassifier:
    """Builds the classifier in this process, on a GPU of this host if there is one.

    Raises:
        CheckpointError: weights are missing, or are not those that the checkpoint was tuned on.
    """
    device = local_device(topology.local_rank)
    if isinstance(tuned, PretrainedClassifier):
        return load_full_model(tuned, device)
    return load_locally(base.name, tuned, device)
