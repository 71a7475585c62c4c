"""Facts about the group of ranks: whether all come together, and how long they take to tell each other something."""

from __future__ import annotations

import time

import torch

from dist_eval.distributed.collectives import all_gather, process_group, sum_vectors
from dist_eval.distributed.rank_store import RankStore, Topology
from dist_eval.doctor.facts import RankFacts

_ROUNDS = 5


def collect_group(facts: RankFacts, topology: Topology, rank_store: RankStore, timeout: float) -> None:
    """Opens the process group of a run and notes who is in it and how fast it is; every rank calls it.

    Args:
        facts: where to note it.
        topology: where this process stands.
        rank_store: the ranks' store.
        timeout: seconds for each wait.

    Raises:
        RuntimeError: the group does not come together.
    """
    start = time.monotonic()
    with process_group(topology, rank_store, timeout):
        members = all_gather([topology.rank, topology.host])
        seconds, times = time.monotonic() - start, {}
        total = torch.ones(1, dtype=torch.float64)
        start = time.monotonic()
        for _ in range(_ROUNDS):
            total = sum_vectors(total)
        times["all_reduce"] = (time.monotonic() - start) / _ROUNDS
        start = time.monotonic()
        for _ in range(_ROUNDS):
            all_gather(topology.rank)
        times["all_gather"] = (time.monotonic() - start) / _ROUNDS
    facts.group = {"seconds": seconds, "members": members if topology.is_leader else [], **times}
