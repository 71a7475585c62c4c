"""Files that are replaced as a whole: whoever reads one sees the old content or the new one, never a part.

What tells large ones apart without reading all of them, and how many a process may have open.
"""

from __future__ import annotations

import os
import resource
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

_PIECES, _PIECE_BYTES = 64, 4096
_MOST_FILES = 1 << 16


@contextmanager
def replaced_atomically(path: Path) -> Iterator[BinaryIO]:
    """Opens a new content for a file; it takes the old one's place when the context ends without an error."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}")
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_atomically(path: Path, content: bytes) -> None:
    """Replaces a file by one with this content."""
    with replaced_atomically(path) as file:
        file.write(content)


def samples_of(path: Path) -> Iterator[bytes]:
    """Yields what a hash of a large file is made of: its size, and evenly spaced pieces (all of up to 256 KiB)."""
    size = path.stat().st_size
    yield str(size).encode()
    with path.open("rb") as file:
        for piece in range(_PIECES):
            file.seek(piece * max(0, size - _PIECE_BYTES) // (_PIECES - 1))
            yield file.read(_PIECE_BYTES)


def allow_many_files() -> None:
    """Lets this process open as many files and connections as the system allows it, which is often more than 1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = most_open_files()
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def most_open_files() -> int:
    """Returns how many files a process may have open once it has called `allow_many_files`, if not even more."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
