"""Atomic replacement of files, their permissions and hashes, and the limit on open files."""

from __future__ import annotations

import errno
import hashlib
import os
import resource
import stat
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

_PIECES, _PIECE_BYTES = 64, 4096
_CHUNK_BYTES = 1 << 20
_DIGITS = 12  # in the names of temporary files
_MOST_FILES = 1 << 16
_NO_FILE = (errno.ENOENT, errno.ELOOP, errno.ENXIO)  # errors of opening a missing file, a link or a socket

# modes of new files: readable only for this user, whatever the umask; or by the user's umask
PRIVATE, BY_UMASK = 0o600, 0o666

_umask_lock = threading.Lock()
_private = _umask_before = 0  # number of open contexts of `private_files` in all threads; the umask before the first


def is_utf8(name: object) -> bool:
    """Whether a name can be encoded as UTF-8; file names may be any bytes."""
    return not any("\ud800" <= character <= "\udfff" for character in str(name))


@contextmanager
def replaced_atomically(path: Path, mode: int = PRIVATE) -> Iterator[BinaryIO]:
    """Opens a temporary file that replaces `path` atomically when the context ends without an error.

    A symbolic link is replaced, not followed. The mode is `PRIVATE`, or `BY_UMASK` for a file that the user named.
    """
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:_DIGITS]}")
    try:
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def remove_temporary(folder: Path) -> None:
    """Removes temporary files that `replaced_atomically` left in a folder when its process was killed."""
    for path in folder.glob(".*." + _DIGITS * "[0-9a-f]"):
        path.unlink(missing_ok=True)


def write_atomically(path: Path, content: bytes, mode: int = PRIVATE) -> None:
    """Replaces the content of a file atomically (see `replaced_atomically`)."""
    with replaced_atomically(path, mode) as file:
        file.write(content)


@contextmanager
def private_files() -> Iterator[None]:
    """Makes files that libraries create within this context readable only for this user, through the process umask.

    Several threads may be in such a context.
    """
    global _private, _umask_before
    with _umask_lock:
        _private += 1
        if _private == 1:
            _umask_before = os.umask(0o077)
    try:
        yield
    finally:
        with _umask_lock:
            _private -= 1
            if _private == 0:
                os.umask(_umask_before)


def file_digest(path: Path) -> str | None:
    """Returns the SHA-256 of a regular file, as hexadecimal digits; None for anything else.

    It follows no link and never blocks on a pipe.
    """
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        if error.errno in _NO_FILE:
            return None
        raise
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            return None
        digest = hashlib.sha256()
        while chunk := os.read(file, _CHUNK_BYTES):
            digest.update(chunk)
        return digest.hexdigest()
    finally:
        os.close(file)


def chunks_of(path: Path, size: int = _CHUNK_BYTES) -> Iterator[bytes]:
    """Yields the content of a file in chunks of `size` bytes."""
    with path.open("rb") as file:
        while chunk := file.read(size):
            yield chunk


def samples_of(path: Path) -> Iterator[bytes]:
    """Yields the size of a file and evenly spaced pieces, for a hash (the whole file up to 256 KiB)."""
    size = path.stat().st_size
    yield str(size).encode()
    with path.open("rb") as file:
        for piece in range(_PIECES):
            file.seek(piece * max(0, size - _PIECE_BYTES) // (_PIECES - 1))
            yield file.read(_PIECE_BYTES)


def allow_many_files() -> None:
    """Raises this process' limit on open files and connections to what the system allows, often more than 1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
