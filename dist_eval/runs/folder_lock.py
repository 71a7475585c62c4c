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
"""In the journal's folder: the locked file, which is never written because a copy of the folder may be hard links to
the same files; and a description of the process that took the lock last."""

_LOCK_SECONDS, _LOCK_POLL_SECONDS = 5.0, 0.2


class FolderLock(NamedTuple):
    """The lock of this process."""

    descriptor: int  # of the file; closing it, or any other descriptor of the same file, releases the lock
    holder: str  # describes this process
    previous: str  # describes the process that held the lock before; empty if none did

    @property
    def is_restart(self) -> bool:
        """Whether torchrun restarted this process after the previous one: both have the same parent."""
        return self.previous.partition(" on ")[2] == self.holder.partition(" on ")[2]


def last_holder(output: Path) -> str:
    """Describes the process that took the lock of a run's folder last; empty if none did."""
    try:
        return (output / JOURNAL / HOLDER_FILE).read_text(errors="replace").strip()
    except FileNotFoundError:
        return ""


def require_journal_of_ours(output: Path) -> None:
    """Refuses a journal that is a symbolic link, unless only this user can have created it."""
    journal = output / JOURNAL
    if not journal.is_symlink():
        return
    folder = output.stat()
    if folder.st_uid != os.geteuid() or folder.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise RunError(
            f"{journal} is a symbolic link in a folder that other users may write to. Remove it, choose another "
            f"--output, or make {output} a folder of your own (chmod go-w)."
        )


def take_lock(output: Path) -> FolderLock:
    """Takes the lock, waiting up to 5 s for a run that is about to end.

    A POSIX record lock ends with the process, is not inherited by forks, and works on network file systems.
    """
    path = output / JOURNAL / LOCK_FILE
    if path.is_symlink():
        raise RunError(f"{path} is a symbolic link. Remove it, or choose another --output.")
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
                    "until it ends."
                ) from None
        time.sleep(_LOCK_POLL_SECONDS)
    previous = last_holder(output)
    holder = f"process {os.getpid()} on {platform.node()}, started by process {os.getppid()}"
    write_atomically(output / JOURNAL / HOLDER_FILE, f"{holder}\n".encode())  # ranks on other hosts read it
    return FolderLock(lock, holder, previous)
