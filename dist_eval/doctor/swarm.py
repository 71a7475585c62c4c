"""Facts about the swarm as this rank sees it: which servers hold which blocks, and how fast they answer."""

from __future__ import annotations

import time
from pathlib import Path

from dist_eval.doctor.facts import AnnouncedServer, RankFacts, SwarmView
from dist_eval.errors import SwarmError
from dist_eval.model.base_model_spec import BaseModelSpec

_POLL_SECONDS = 0.5


def collect_swarm(facts: RankFacts, peers: list[str], base: BaseModelSpec, timeout: float, sockets: Path) -> None:
    """Joins the swarm, records which servers hold the model's blocks and how fast they answer, and leaves it.

    Args:
        facts: where to record it.
        peers: addresses of the swarm's peers; none for the public swarm.
        base: the base model.
        timeout: longest wait for a peer's answer and for all blocks, in seconds.
        sockets: folder for the sockets of the p2p daemon.

    Raises:
        SwarmError: no peer answered in time, or blocks are held only by servers whose version of Petals is unfit.
    """
    from dist_eval.swarm.hivemind_compat import prepare_hivemind

    prepare_hivemind(sockets=sockets)
    from dist_eval.swarm.client import join_swarm, leave_swarm, public_peers
    from dist_eval.swarm.coverage import adapter_fault, look_up_coverage, measure_distances, unfit_message
    from dist_eval.swarm.p2p_daemon import CONTACT_SECONDS

    start = time.monotonic()
    peers = peers or public_peers()
    dht = join_swarm(peers, timeout, timeout_option="--check-timeout")
    try:
        seconds = time.monotonic() - start
        while True:  # servers may be starting
            left = max(1.0, start + timeout - time.monotonic())
            blocks = base.config.num_hidden_layers
            found = look_up_coverage(dht, base.dht_prefix, blocks, left, adapter=base.adapter)
            coverage = found.serving(base.config)
            fault = adapter_fault(coverage, is_over=time.monotonic() - start > timeout)
            if not coverage.missing or fault or time.monotonic() - start > timeout:
                break
            time.sleep(_POLL_SECONDS)
        distances = measure_distances(dht, [server.peer_id for server in coverage.online], CONTACT_SECONDS)
    finally:
        leave_swarm(dht)
    if not fault and (message := unfit_message(coverage, base.config)):
        raise SwarmError(message)
    facts.swarm = SwarmView(
        seconds=seconds,
        dht_prefix=coverage.dht_prefix,
        num_blocks=coverage.num_blocks,
        missing=coverage.missing,
        replicas=coverage.replicas,
        servers=[
            AnnouncedServer(
                peer=server.peer_id,
                blocks=f"{server.start}:{server.end}",
                dtype=server.dtype,
                quantization=server.quantization,
                seconds=distances[server.peer_id],
                version=server.version,
                adapters=list(server.adapters or ()),
            )
            for server in coverage.online
        ],
        adapter_fault=fault,
    )
