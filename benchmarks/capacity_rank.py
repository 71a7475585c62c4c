"""The program of each rank of `benchmarks.capacity`: opens the process group and gathers parts as a run does.

    python -m benchmarks.capacity_rank RANKS FOLDER

The ranks are forked by torchrun's agent from one process that has imported everything, as in `benchmarks.combine_rank`.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import torch

from dist_eval.distributed import collectives
from dist_eval.distributed.collectives import all_gather, process_group
from dist_eval.distributed.rank_store import RankStore, Topology
from dist_eval.process.lifetime import die_with_parent

_TIMEOUT, _ROUNDS = 120.0, 10


def work(folder: Path) -> None:
    """Runs the measurements; rank 0 writes the results."""
    die_with_parent()
    torch.set_num_threads(1)
    topology, part = Topology.from_environment(), bytes(collectives._BYTES_OF_A_RANK)
    rank_store = RankStore(topology)
    rank_store.barrier("here", _TIMEOUT)
    files, start = len(os.listdir("/proc/self/fd")), time.perf_counter()
    with process_group(topology, rank_store, _TIMEOUT):
        all_gather(None)
        opening, more_files = time.perf_counter() - start, len(os.listdir("/proc/self/fd")) - files
        start = time.perf_counter()
        for _ in range(_ROUNDS):
            all_gather(part)
        seconds = (time.perf_counter() - start) / _ROUNDS
    if topology.is_leader:
        facts = {"opening": opening, "files": more_files, "round": seconds}
        (folder / f"ranks-{topology.world_size}.json").write_text(json.dumps(facts), encoding="utf-8")


def main() -> None:
    """Forks the ranks."""
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    die_with_parent()
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=int(sys.argv[1]),
        start_method="fork",
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        run_id="capacity",
        max_restarts=0,
    )
    elastic_launch(config, work)(Path(sys.argv[2]))


if __name__ == "__main__":
    main()
