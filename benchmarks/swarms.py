"""Swarms to measure on: servers with one thread each, near or behind a proxy that delays what they send and receive."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.delay_proxy import DelayProxy
from benchmarks.models import Model
from dist_eval.petals.server.private import PrivateSwarm, split_blocks
from dist_eval.process.ports import free_ports

_TIMEOUT = 180.0
_HOST = "127.0.0.1"


@contextmanager
def swarm_of(
    model: Model, scratch_dir: Path, *, spans: Sequence[tuple[int, int]] | None = None, **options: Any
) -> Iterator[PrivateSwarm]:
    """Opens a swarm of servers with one thread each and waits until all are there.

    Args:
        model: the model to serve.
        scratch_dir: folder for temporary files.
        spans: the blocks of each server, by default of two with half of them each.
        **options: of `PrivateSwarm`.
    """
    from dist_eval.petals.client.hivemind_compat import prepare_hivemind

    prepare_hivemind(sockets=scratch_dir)
    from dist_eval.petals.client.client import join_swarm, leave_swarm, rejoin_swarm
    from dist_eval.petals.client.coverage import wait_until_covered

    blocks = model.size.layers
    spans = spans or split_blocks(blocks, 2)
    with PrivateSwarm(
        str(model.base), num_blocks=blocks, dht_prefix=model.dht_prefix, spans=spans, threads=1, **options
    ) as swarm:
        dht = join_swarm(swarm.initial_peers, _TIMEOUT, check=swarm.require_alive)

        def check() -> None:
            swarm.require_alive()
            rejoin_swarm(dht, swarm.initial_peers)  # on a busy host, the first contact may fail

        try:
            wait_until_covered(dht, swarm.dht_prefix, blocks, _TIMEOUT, servers=len(spans), check=check)
        finally:
            leave_swarm(dht)
        yield swarm


@contextmanager
def distant_swarm_of(
    model: Model, scratch_dir: Path, *, spans: Sequence[tuple[int, int]] | None = None, **options: Any
) -> Iterator[tuple[PrivateSwarm, DelayProxy]]:
    """Opens such a swarm behind a delay proxy, which forwards all traffic to its servers, also between them.

    Args:
        model: see `swarm_of`.
        scratch_dir: see `swarm_of`.
        spans: see `swarm_of`.
        **options: see `swarm_of`.

    Yields:
        The swarm, and the proxy, whose delay is still 0.
    """
    spans = spans or split_blocks(model.size.layers, 2)
    ports = free_ports(_HOST, 2 * len(spans))
    pairs = list(zip(ports[: len(spans)], ports[len(spans) :], strict=True))
    with (
        DelayProxy([(announced, listening) for listening, announced in pairs]) as proxy,
        swarm_of(model, scratch_dir, spans=spans, ports=pairs, **options) as swarm,
    ):
        yield swarm, proxy
