"""Facts about the process group: whether it opens on all ranks, and how long collectives take."""

from __future__ import annotations

import time

import torch

from dist_eval.distributed.collectives import all_gather, all_reduce_sum, process_group
from dist_eval.distributed.rank_store import RankStore, Topology
from dist_eval.doctor.facts import GroupTimes, RankFacts

_ROUNDS = 5


def collect_group(facts: RankFacts, topology: Topology, rank_store: RankStore, timeout: float) -> None:
    """Opens the process group of a run, and measures it; every rank calls it.

    Args:
        facts: where to record the members and the times.
        topology: this process's place among the ranks.
        rank_store: the store shared by the ranks.
        timeout: seconds for each wait.

    Raises:
        RuntimeError: the group does not open.
    """
    start = time.monotonic()
    with process_group(topology, rank_store, timeout):
        members = all_gather((topology.rank, topology.host))
        seconds = time.monotonic() - start
        total = torch.ones(1, dtype=torch.float64)
        start = time.monotonic()
        for _ in range(_ROUNDS):
            total = all_reduce_sum(total)
        reduce_seconds = (time.monotonic() - start) / _ROUNDS
        start = time.monotonic()
        for _ in range(_ROUNDS):
            all_gather(topology.rank)
        gather_seconds = (time.monotonic() - start) / _ROUNDS
    facts.group = GroupTimes(seconds, members if topology.is_leader else [], reduce_seconds, gather_seconds)
