"""Run by torchrun with two ranks: one of them stands still instead of taking part in the exchange.

    silent_worker.py FILE

What the other one says of it is written to FILE.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from dist_eval.distributed.collectives import all_gather, giving_way, process_group
from dist_eval.distributed.progress import Progress
from dist_eval.distributed.rank_store import Board, Launch
from dist_eval.distributed.stop import Stop
from dist_eval.errors import LostRankError

PATIENCE = 3.0


def main() -> None:
    launch, stop = Launch.from_environment(), Stop()
    board = Board(launch)
    progress = Progress(launch, board, 10, stop=stop, patience=PATIENCE)
    with process_group(launch, board, PATIENCE), progress.shown():
        progress.add(7, batch=2)
        everybody = all_gather(os.getpid())
        progress.wait_for_all(60.0)
        if launch.rank == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
            return
        try:
            with giving_way(launch, board, lambda: stop.reason):
                all_gather("exchange")
        except LostRankError as error:
            Path(sys.argv[1]).write_text(str(error))
        finally:
            os.kill(everybody[1], signal.SIGCONT)


if __name__ == "__main__":
    main()
