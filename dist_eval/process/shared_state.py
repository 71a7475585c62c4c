"""Numbers shared by several processes of a host."""

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
    """Structures in a folder, shared by all processes that open it.

    The folder is created if needed. It must be new to the first process, and exist as long as any process opens a
    structure.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._lock = folder, (folder / "lock").open("ab")

    def open(self, name: str, kind: type[State]) -> State:
        """Returns the structure of shared fields in the file `name`, initially 0; `kind` has its fields."""
        with (self._folder / name).open("ab") as file:
            file.truncate(ctypes.sizeof(kind))
        with (self._folder / name).open("r+b") as file:
            return kind.from_buffer(mmap.mmap(file.fileno(), ctypes.sizeof(kind)))

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Holds an exclusive lock within this context; the kernel releases it if the process is killed."""
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._lock, fcntl.LOCK_UN)
