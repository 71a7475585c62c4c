"""The minimal client of a swarm: imports hivemind and a class of transformers' models, and connects."""

from __future__ import annotations

import time
from pathlib import Path

from dist_eval.petals.client.hivemind_compat import prepare_hivemind
from dist_eval.process.lifetime import helpers_die_with_us


def connect(scratch_dir: Path, *, peers: list[str]) -> dict[str, float]:
    """Returns when this process was started and when it was connected, in seconds since 1970."""
    import psutil

    prepare_hivemind(sockets=scratch_dir)
    import hivemind
    from transformers import AutoTokenizer, LlamaForCausalLM  # noqa: F401

    from dist_eval.petals.client.client import leave_swarm

    with helpers_die_with_us():
        dht = hivemind.DHT(initial_peers=peers, client_mode=True, num_workers=32, start=True)
    connected = time.time()
    leave_swarm(dht)
    return {"began": psutil.Process().create_time(), "connected": connected}
