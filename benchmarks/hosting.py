"""Swarms for the benchmarks: servers with one thread each, near or far away."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.delay_proxy import DelayProxy
from benchmarks.models import Model
from dist_eval.process.ports import free_ports
from dist_eval.swarm.private import PrivateSwarm, split_blocks

_TIMEOUT = 180.0
_HOST = "127.0.0.1"


@contextmanager
def swarm_of(
    model: Model, scratch_dir: Path, *, servers: int = 2, ports: Sequence[tuple[int, int]] | None = None
) -> Iterator[PrivateSwarm]:
    """Opens a swarm of servers with one thread each and waits until all blocks are served.

    Args:
        model: what it serves.
        scratch_dir: this process' folder.
        servers: how many.
        ports: see `PrivateSwarm`.
    """
    from dist_eval.swarm.hivemind_compat import import_petals

    import_petals(sockets=scratch_dir)
    from dist_eval.swarm.client import join_swarm, leave_swarm
    from dist_eval.swarm.coverage import wait_until_covered

    blocks = model.size.layers
    with PrivateSwarm(
        str(model.base),
        num_blocks=blocks,
        dht_prefix=model.dht_prefix,
        spans=split_blocks(blocks, servers),
        threads=1,
        ports=ports,
    ) as swarm:
        dht = join_swarm(swarm.initial_peers, _TIMEOUT, check=swarm.require_alive)
        try:
            wait_until_covered(dht, swarm.dht_prefix, blocks, _TIMEOUT, check=swarm.require_alive)
        finally:
            leave_swarm(dht)
        yield swarm


@contextmanager
def distant_swarm_of(model: Model, scratch_dir: Path, *, servers: int = 2) -> Iterator[tuple[PrivateSwarm, DelayProxy]]:
    """Opens the same behind a delay proxy, through which all traffic to its servers goes, also that between them.

    Args:
        model: what it serves.
        scratch_dir: this process' folder.
        servers: how many.

    Yields:
        The swarm, and the proxy, which does not delay anything yet.
    """
    ports = free_ports(_HOST, 2 * servers)
    pairs = list(zip(ports[:servers], ports[servers:], strict=True))
    with (
        DelayProxy([(announced, listening) for listening, announced in pairs]) as proxy,
        swarm_of(model, scratch_dir, servers=servers, ports=pairs) as swarm,
    ):
        yield swarm, proxy
