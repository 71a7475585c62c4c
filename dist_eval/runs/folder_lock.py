"""The lock on a run's folder, so that only one run at a time uses it, on any host."""

from __future__ import annotations

import errno
import fcntl
import os
import platform
import stat
import time
from pathlib import Path
from typing import NamedTuple

from dist_eval.errors import RunError
from dist_eval.process.files import PRIVATE, write_atomically
from dist_eval.runs.files import JOURNAL

LOCK_FILE, HOLDER_FILE = "lock", "holder"
"""In the folder of the journal: what is locked, and never written to, because a copy of the folder may be made of links
to the same files; and which process took the lock last, in words."""

_LOCK_SECONDS, _LOCK_POLL_SECONDS = 5.0, 0.2


class FolderLock(NamedTuple):
    """The lock of this process."""

    descriptor: int  # of the file; the lock is held until it is closed, or any other one of the same file
    holder: str  # this process, in words
    previous: str  # the process that held the lock before, in words; empty if none did

    @property
    def is_restart(self) -> bool:
        """Whether torchrun has started this process again after the previous one: they have the same parent."""
        return self.previous.partition(" on ")[2] == self.holder.partition(" on ")[2]


def last_holder(output: Path) -> str:
    """Returns which process took the lock last, in words; empty if none has.

    Args:
        output: the run's folder.
    """
    try:
        return (output / JOURNAL / HOLDER_FILE).read_text(errors="replace").strip()
    except FileNotFoundError:
        return ""


def require_journal_of_ours(output: Path) -> None:
    """Requires that the journal is no link to another folder, unless only this user can have put it there."""
    journal = output / JOURNAL
    if not journal.is_symlink():
        return
    folder = output.stat()
    if folder.st_uid != os.geteuid() or folder.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise RunError(
            f"{journal} is a link to something else, in a folder that others may write to. Remove it, choose another "
            f"--output, or make {output} a folder of your own (chmod go-w)."
        )


def take_lock(output: Path) -> FolderLock:
    """Takes the lock, waiting up to 5 s for a run that is about to end.

    It is a POSIX record lock: it ends with the process, is not inherited by forks, and works on network file systems.
    """
    path = output / JOURNAL / LOCK_FILE
    if path.is_symlink():
        raise RunError(f"{path} is a link to something else. Remove it, or choose another --output.")
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, PRIVATE)
    deadline = time.monotonic() + _LOCK_SECONDS
    while True:
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EAGAIN):
                raise
            if time.monotonic() > deadline:
                os.close(lock)
                holder = last_holder(output) or "an unknown process"
                raise RunError(
                    f"The output folder {output} is in use by another run ({holder}). Choose another --output, or wait "
                    "for its end."
                ) from None
        time.sleep(_LOCK_POLL_SECONDS)
    previous = last_holder(output)
    holder = f"process {os.getpid()} on {platform.node()}, started by process {os.getppid()}"
    write_atomically(output / JOURNAL / HOLDER_FILE, f"{holder}\n".encode())  # ranks on other hosts compare it
    return FolderLock(lock, holder, previous)
