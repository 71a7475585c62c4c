"""Another client beside the one that is measured."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from benchmarks.contenders import ROOT, ContenderError, Outcome, Stage
from dist_eval.process.lifetime import end_session

_START_SECONDS = 120.0


class AnotherClient:
    """A client that sends one batch after the other.

    Args:
        finished: the file to which it writes the time of each.
    """

    def __init__(self, finished: Path) -> None:
        self._finished = finished

    def batches_during(self, outcome: Outcome) -> int:
        """Returns how many of its batches it finished while dist_eval evaluated.

        Raises:
            ContenderError: it finished none.
        """
        began = min(rank["batches"]["began"] for rank in outcome.timeline["ranks"] if rank["batches"])
        times = map(float, self._finished.read_text().splitlines())
        if not (batches := sum(began <= finished < began + outcome.seconds for finished in times)):
            raise ContenderError("The other client finished nothing beside dist_eval.")
        return batches


@contextmanager
def another_client(stage: Stage, max_length: int) -> Iterator[AnotherClient]:
    """Runs another client of the swarm, which classifies all texts of a stage in one batch again and again.

    Args:
        stage: the swarm and the texts.
        max_length: tokens of each text.
    """
    folder = Path(tempfile.mkdtemp(dir=stage.folder))
    asked, log, finished = folder / "spec.json", folder / "log.txt", folder / "finished.txt"
    spec = stage.spec(stage.corpus.write_csv(folder / "rows.csv"), len(stage.corpus.sentences), max_length)
    asked.write_text(json.dumps(asdict(spec)), encoding="utf-8")
    with log.open("wb") as errors, finished.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.alternatives.endless_loop", str(asked)],
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(folder)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
            start_new_session=True,
        )
    try:
        give_up = time.monotonic() + _START_SECONDS
        while not finished.stat().st_size:
            if process.poll() is not None or time.monotonic() > give_up:
                raise ContenderError(f"The other client finished nothing. Its log:\n{log.read_text(errors='replace')}")
            time.sleep(0.1)
        yield AnotherClient(finished)
    finally:
        end_session(process.pid)
