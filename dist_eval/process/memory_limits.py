"""The memory that this process may use: the host's, within the limits of containers and batch jobs (control groups)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil

_MEMBERSHIP, _MOUNT = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")
# Files of a group with its limit and its use, and the key in memory.stat of the use that the kernel takes back first;
# of version 2 and version 1
_FILES = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


def total_memory() -> int:
    """Returns the bytes of memory that this process and its neighbours may use."""
    return min([psutil.virtual_memory().total, *(limit for limit, _ in _groups())])


def available_memory() -> int:
    """Returns the bytes of memory that are still available to this process."""
    left = (max(0, limit - used) for limit, used in _groups())
    return min([psutil.virtual_memory().available, *left])


def _groups() -> Iterator[tuple[int, int]]:
    """Yields the limit and the use of each group of this process that has a limit, in bytes."""
    for folder in _folders():
        for limit, used, reclaimed in _FILES:
            with suppress(OSError, ValueError, KeyError):  # ValueError: the limit is "max"
                facts = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
                in_use = int((folder / used).read_text()) - int(facts[reclaimed])
                yield int((folder / limit).read_text()), in_use


def _folders() -> Iterator[Path]:
    """Yields the folders of the groups of this process, with those that they belong to."""
    with suppress(OSError):
        for line in _MEMBERSHIP.read_text().splitlines():
            _, controllers, group = line.split(":", 2)
            if not controllers or "memory" in controllers.split(","):
                mount = _MOUNT / "memory" if controllers else _MOUNT
                place = mount / group.lstrip("/")
                yield from (folder for folder in (place, *place.parents) if folder.is_relative_to(mount))
