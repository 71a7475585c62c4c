"""Settings of glibc's allocator for the large buffers of activations; no effect with other allocators."""

from __future__ import annotations

import ctypes
import sys

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX, _ARENA_MAX = -1, -2, -4, -8  # parameters of `mallopt`
_NEVER, _PAD_BYTES = 2**31 - 1, 64 << 20

# Loaded now, because loading in a fork of a process with threads could deadlock
_LIBC = ctypes.CDLL(None) if sys.platform.startswith("linux") else None
_GLIBC = _LIBC if hasattr(_LIBC, "gnu_get_libc_version") else None


def keep_freed_memory() -> None:
    """Makes this process and its forks reuse the memory of large buffers.

    By default, glibc returns a buffer of megabytes to the kernel as soon as it is freed. The next buffer then causes
    thousands of page faults, which take more processor time than filling it. In exchange, a process keeps the peak
    memory of its buffers.
    """
    if _GLIBC is not None:
        # an arena of a thread consists of heaps of 64 MiB, which are returned once they are empty: one arena for all
        settings = {_MMAP_MAX: 0, _TRIM_THRESHOLD: _NEVER, _TOP_PAD: _PAD_BYTES, _ARENA_MAX: 1}
        for parameter, value in settings.items():
            _GLIBC.mallopt(parameter, value)


def return_freed_memory() -> None:
    """Returns freed memory of this process to the kernel."""
    if _GLIBC is not None:
        _GLIBC.malloc_trim(0)
