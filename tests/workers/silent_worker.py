"""Run by torchrun with two ranks: one of them stands still instead of taking part in the exchange.

    silent_worker.py FILE

What the other one says of it is written to FILE.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from dist_eval.distributed.collectives import all_gather, explaining_lost_ranks, process_group
from dist_eval.distributed.progress import Progress
from dist_eval.distributed.rank_store import RankStore, Topology
from dist_eval.distributed.stop import Stop
from dist_eval.errors import LostRankError

PATIENCE = 3.0


def main() -> None:
    topology, stop = Topology.from_environment(), Stop()
    rank_store = RankStore(topology)
    progress = Progress(topology, rank_store, 10, stop=stop, stall_timeout=PATIENCE)
    with process_group(topology, rank_store, PATIENCE), progress.shown():
        progress.add(7, batch=2)
        everybody = all_gather(os.getpid())
        progress.wait_for_all(60.0)
        if topology.rank == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
            return
        try:
            with explaining_lost_ranks(topology, rank_store, lambda: stop.reason):
                all_gather("exchange")
        except LostRankError as error:
            Path(sys.argv[1]).write_text(str(error))
        finally:
            os.kill(everybody[1], signal.SIGCONT)


if __name__ == "__main__":
    main()
