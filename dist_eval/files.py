"""Files that are replaced as a whole: whoever reads one sees the old content or the new one, never a part.

And how many of them a process may have open.
"""

from __future__ import annotations

import os
import resource
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

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


def allow_many_files() -> None:
    """Lets this process open as many files and connections as the system allows it, which is often more than 1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
