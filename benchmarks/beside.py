"""Another client beside the one that is measured."""

from __future__ import annotations

import itertools
import json
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime
from pathlib import Path

from benchmarks.contenders import LOG, ContenderError, Outcome, Stage, running

_MOST_SECONDS = 120.0
"""How long a batch of it, or its start, may take."""


class AnotherClient:
    """A client that sends one batch after the other.

    Args:
        process: it.
        folder: of its log.
        finished: the file to which it writes the time of each batch.
    """

    def __init__(self, process: subprocess.Popen[bytes], folder: Path, finished: Path) -> None:
        self._process, self._folder, self._finished = process, folder, finished

    def wait_for_batch(self, since: float) -> list[float]:
        """Waits for a batch to be finished at a time or later.

        Args:
            since: in seconds since 1970.

        Returns:
            When each batch was finished so far.

        Raises:
            ContenderError: none was; the message contains its log.
        """
        give_up = time.monotonic() + _MOST_SECONDS
        while not (times := [float(line) for line in self._finished.read_text().splitlines()]) or times[-1] < since:
            if self._process.poll() is not None or time.monotonic() > give_up:
                log = (self._folder / LOG).read_text(errors="replace")
                raise ContenderError(f"The other client finished no further batch. Its log:\n{log}")
            time.sleep(0.1)
        return times

    def batches_during(self, outcome: Outcome) -> float:
        """Returns how many of its batches it did while dist_eval evaluated, in parts where one was under way.

        Raises:
            ContenderError: it finished none after dist_eval.
        """
        began = min(datetime.fromisoformat(rank["began"]).timestamp() for rank in outcome.facts["ranks"])
        ended = began + outcome.seconds
        return sum(
            max(0.0, min(after, ended) - max(before, began)) / (after - before)
            for before, after in itertools.pairwise(self.wait_for_batch(ended))
        )


@contextmanager
def another_client(stage: Stage, max_length: int) -> Iterator[AnotherClient]:
    """Runs another client of the swarm, which classifies all texts of a stage in one batch again and again.

    Args:
        stage: the swarm and the texts.
        max_length: tokens of each text.
    """
    folder = Path(tempfile.mkdtemp(dir=stage.folder))
    asked, finished = folder / "spec.json", folder / "finished.txt"
    spec = stage.spec(stage.corpus.write_csv(folder / "rows.csv"), len(stage.corpus.sentences), max_length)
    asked.write_text(json.dumps(asdict(spec)), encoding="utf-8")
    arguments = ("-m", "benchmarks.alternatives.endless_loop", str(asked))
    with running(folder, *arguments, output=finished, petals=True) as process:
        client = AnotherClient(process, folder, finished)
        client.wait_for_batch(0.0)
        yield client
