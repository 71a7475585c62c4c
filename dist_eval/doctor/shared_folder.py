"""Facts about the output folder: each rank writes a probe there, looks for those of all ranks, and removes its own.

That one host can write to the folder does not show that the others see the same folder, so this needs all ranks.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shutil
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from dist_eval.doctor.facts import RankFacts
from dist_eval.process.parsing import read_json
from dist_eval.runs.files import JOURNAL
from dist_eval.runs.folder_lock import LOCK_FILE, last_holder

_PREFIX, _POLL_SECONDS = ".doctor-", 0.1
PATIENCE_SECONDS = 10.0
"""How long a new file may take to appear on another host: network file systems cache missing names."""


@dataclass(frozen=True)
class Probe:
    """A file in the output folder, locked by its rank.

    Attributes:
        path: path of the file.
    """

    path: Path

    @classmethod
    def in_folder(cls, folder: Path) -> Probe:
        """Returns a probe with a unique name in a folder; it is not written yet."""
        return cls(folder / f"{_PREFIX}{uuid.uuid4().hex}")

    @contextmanager
    def written(self, facts: RankFacts) -> Iterator[None]:
        """Writes the probe and locks it, for the time of the context.

        Args:
            facts: facts of the rank, some of which are written into the file for those who find it.

        Raises:
            OSError: the folder cannot be written, or files there cannot be locked.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            content = {"rank": facts.rank, "host": facts.host, "world_size": facts.world_size}
            os.write(descriptor, json.dumps(content).encode())
            os.fsync(descriptor)
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
        finally:
            os.close(descriptor)
            self.path.unlink(missing_ok=True)


def collect_space(facts: RankFacts, output: Path) -> None:
    """Records the free space in the output folder and for temporary files."""
    facts.output = str(output.absolute())
    facts.temporary = tempfile.gettempdir()
    facts.temporary_free = shutil.disk_usage(facts.temporary).free
    existing = next(folder for folder in (output.absolute(), *output.absolute().parents) if folder.exists())
    facts.output_free = shutil.disk_usage(existing).free


def collect_run(facts: RankFacts, output: Path, results_name: str) -> None:
    """Records the status of the run in the folder, and whether a run is using it."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        facts.run_status = read_json(output / results_name).get("status")
    lock = output / JOURNAL / LOCK_FILE
    if lock.exists() and not can_lock(lock):
        facts.in_use = last_holder(output) or "an unknown process"


def collect_probes(facts: RankFacts, probes: Mapping[int, str], nodes: Mapping[int, int], folder: Path) -> None:
    """Records whose probes this rank sees, and whether locks of other hosts are effective on this one.

    Call it once all ranks have written their probes.

    Args:
        facts: where to record it.
        probes: names of the probes by rank.
        nodes: number of the host by rank.
        folder: the output folder as this rank sees it.
    """
    deadline = time.monotonic() + (PATIENCE_SECONDS if len(probes) > 1 else 0)
    while True:
        there = {path.name for path in folder.glob(f"{_PREFIX}*")}
        facts.unseen = [rank for rank, name in probes.items() if name not in there]
        if not facts.unseen or time.monotonic() > deadline:
            break
        time.sleep(_POLL_SECONDS)
    elsewhere = (rank for rank in sorted(probes) if rank not in facts.unseen and nodes[rank] != facts.node)
    if (rank := next(elsewhere, None)) is not None:
        facts.lock_of, facts.lock_holds = rank, not can_lock(folder / probes[rank])
    strangers = (_stranger(folder / name) for name in sorted(there - set(probes.values())))
    facts.strangers = [words for words in strangers if words is not None]


def can_lock(path: Path) -> bool:
    """Returns whether the lock of a file is free, or the file is gone; the lock is released again."""
    try:
        descriptor = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return True
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EAGAIN):
            raise
        return False
    finally:
        os.close(descriptor)
    return True


def _stranger(path: Path) -> str | None:
    with contextlib.suppress(OSError, ValueError, KeyError):
        if not can_lock(path):
            content = read_json(path)
            return f"rank {content['rank']} of {content['world_size']} on {content['host']}"
    return None  # left by a doctor that was killed
