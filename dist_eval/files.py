"""Files that are replaced as a whole: whoever reads one sees the old content or the new one, never a part."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


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
