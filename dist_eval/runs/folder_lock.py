"""The lock on a run's folder, so that only one run at a time uses it, on any host."""

from __future__ import annotations

import errno
import fcntl
import os
import platform
import time
from pathlib import Path
from typing import NamedTuple

from dist_eval.errors import RunError
from dist_eval.runs.files import JOURNAL

LOCK_FILE = "lock"
"""In the folder of the journal."""

_LOCK_SECONDS, _LOCK_POLL_SECONDS = 5.0, 0.2


class FolderLock(NamedTuple):
    """The lock of this process.

    Attributes:
        descriptor: of the file; the lock is held until it is closed, or any other one of the same file.
        holder: this process, in words; they stay in the file.
        previous: the process that held the lock before, in words; empty if none did.
    """

    descriptor: int
    holder: str
    previous: str

    @property
    def is_restart(self) -> bool:
        """Whether torchrun has started this process again after the previous one: they have the same parent."""
        return self.previous.partition(" on ")[2] == self.holder.partition(" on ")[2]


def last_holder(output: Path) -> str:
    """Returns which process took the lock last, in words; not for a process that holds it, which would lose it.

    Args:
        output: the run's folder.
    """
    try:
        return (output / JOURNAL / LOCK_FILE).read_text(errors="replace").strip()
    except FileNotFoundError:
        return ""


def take_lock(output: Path) -> FolderLock:
    """Takes the lock, waiting up to 5 s for a run that is about to end.

    It is a POSIX record lock: it ends with the process, is not inherited by forks, and works on network file systems.

    Args:
        output: the run's folder; the journal's folder exists in it.

    Returns:
        The lock.

    Raises:
        RunError: another run holds the lock, or its file is a link to another file.
        OSError: the folder cannot be written.
    """
    lock = _open(output / JOURNAL)
    deadline = time.monotonic() + _LOCK_SECONDS
    while True:
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EAGAIN):
                raise
            if time.monotonic() > deadline:
                holder = os.pread(lock, 200, 0).decode(errors="replace").strip() or "an unknown process"
                os.close(lock)
                raise RunError(
                    f"The output folder {output} is in use by another run ({holder}). Choose another --output, or wait "
                    "for its end."
                ) from None
        time.sleep(_LOCK_POLL_SECONDS)
    previous = os.pread(lock, 200, 0).decode(errors="replace").strip()
    holder = f"process {os.getpid()} on {platform.node()}, started by process {os.getppid()}"
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{holder}\n".encode(), 0)
    os.fsync(lock)  # ranks on other hosts compare it
    return FolderLock(lock, holder, previous)


def _open(journal: Path) -> int:
    """Opens the file of the lock, which is written to: never another one that somebody has put behind its name."""
    path = journal / LOCK_FILE
    linked = next((one for one in (journal, path) if one.is_symlink()), None)
    if linked is None:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        if os.fstat(lock).st_nlink <= 1:
            return lock
        os.close(lock)
    raise RunError(f"{linked or path} is a link to something else. Remove it, or choose another --output.")
