"""How glibc's allocator treats the large buffers that activations need; elsewhere nothing is changed."""

from __future__ import annotations

import ctypes
import sys

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX = -1, -2, -4  # parameters of `mallopt`
_NEVER, _PAD_BYTES = 2**31 - 1, 64 << 20

# Loaded now: in a process that was just forked from one with threads, loading could deadlock
_LIBC = ctypes.CDLL(None) if sys.platform.startswith("linux") else None
_GLIBC = _LIBC if hasattr(_LIBC, "gnu_get_libc_version") else None


def keep_freed_memory() -> None:
    """Has this process, and those forked from it, reuse the memory of large buffers.

    By default, glibc returns a buffer of megabytes to the kernel as soon as it is freed. The next one then begins with
    thousands of page faults, which take more processor time than the copies into it. The price: a process keeps the
    most that its buffers have ever taken.
    """
    if _GLIBC is not None:
        for parameter, value in ((_MMAP_MAX, 0), (_TRIM_THRESHOLD, _NEVER), (_TOP_PAD, _PAD_BYTES)):
            _GLIBC.mallopt(parameter, value)


def return_freed_memory() -> None:
    """Returns what this process has freed to the kernel."""
    if _GLIBC is not None:
        _GLIBC.malloc_trim(0)
