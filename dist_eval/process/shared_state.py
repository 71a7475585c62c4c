"""Numbers that several processes of a host read and write."""

from __future__ import annotations

import ctypes
import fcntl
import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

State = TypeVar("State", bound=ctypes.Structure)


class SharedStates:
    """Structures in a folder that all processes use which open it.

    Args:
        folder: is created if needed. It has to be new to the first process, and to stay as long as any of them opens
            a structure.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._lock = folder, (folder / "lock").open("ab")

    def open(self, name: str, kind: type[State]) -> State:
        """Returns a structure whose fields are shared, all 0 at first.

        Args:
            name: a file name.
            kind: its fields.
        """
        with (self._folder / name).open("ab") as file:
            file.truncate(ctypes.sizeof(kind))
        with (self._folder / name).open("r+b") as file:
            return kind.from_buffer(mmap.mmap(file.fileno(), ctypes.sizeof(kind)))

    @contextmanager
    def locked(self) -> Iterator[None]:
        """While one process is in this context, the others wait. The kernel lets go of the lock if it is killed."""
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._lock, fcntl.LOCK_UN)
