"""Memory that a server's handlers share with the process of its blocks, so tensors pass between them by address.

torch passes a tensor to another process as a file that is created, filled, mapped and removed, which takes far longer
than a copy. Here, a single mapping is made before the handlers are forked. It is divided into slots, and a slot is free
again once nothing refers to its bytes.
"""

from __future__ import annotations

import math
import mmap
import weakref
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import torch

_MOST_SLOTS = 16  # per handler
_ALIGNED = 64  # bytes


class Place(NamedTuple):
    """A tensor's place in the shared memory."""

    offset: int
    shape: torch.Size
    dtype: torch.dtype

    @property
    def ndim(self) -> int:
        """Number of dimensions, as of a tensor."""
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """Number of bytes, as of a tensor."""
        return math.prod(self.shape) * self.dtype.itemsize


class SharedMemory:
    """Slots of shared memory, at most `most_bytes` together; unused slots take no physical memory.

    Each of `handlers` processes takes slots of `slot_bytes` from its own share.
    """

    def __init__(self, slot_bytes: int, most_bytes: int, handlers: int) -> None:
        self._slot_bytes = -(-slot_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        self._slots = handlers * min(_MOST_SLOTS, most_bytes // handlers // self._slot_bytes)
        try:
            self._mapping: Any = mmap.mmap(-1, max(1, self._slots * self._slot_bytes))
        except OSError:  # the host does not overcommit memory
            self._slots, self._mapping = 0, mmap.mmap(-1, 1)
        self._all = np.frombuffer(self._mapping, np.uint8)
        self._start = self._all.ctypes.data
        self._free = list[int]()
        self._taken: weakref.WeakValueDictionary[int, np.ndarray] = weakref.WeakValueDictionary()

    def claim(self, handler: int, handlers: int) -> None:
        """Gives this process the slots of a handler; before that, it has none."""
        self._free = list(range(handler, self._slots, handlers))

    def take(self) -> memoryview | None:
        """Returns the bytes of a slot, which is taken as long as anything refers to them; None if none is free."""
        try:
            slot = self._free.pop()  # the most recent one, because unused slots take no memory
        except IndexError:
            return None
        taken = self._all[slot * self._slot_bytes : (slot + 1) * self._slot_bytes]
        weakref.finalize(taken, self._free.append, slot).atexit = False
        self._taken[slot] = taken
        return taken.data

    def put(self, values: Iterable[Any]) -> list[Any]:
        """Copies tensors among `values` that are elsewhere into a slot, if one is free and they fit."""
        values = [value.detach() if isinstance(value, torch.Tensor) else value for value in values]
        size = sum(_room_for(value) for value in values if self._is_elsewhere(value))
        if not 0 < size <= self._slot_bytes or (slot := self.take()) is None:
            return values
        for index, value in enumerate(values):
            if self._is_elsewhere(value):
                place, slot = slot[: value.nbytes], slot[_room_for(value) :]
                copy = torch.frombuffer(place, dtype=value.dtype).view(value.shape)
                values[index] = copy.copy_(value)
        return values

    def place_of(self, value: Any) -> Any:
        """Returns the place of a tensor in this memory; any other value unchanged."""
        if not isinstance(value, torch.Tensor) or self._is_elsewhere(value):
            return value
        offset = value.data_ptr() - self._start if value.numel() else 0
        return Place(offset, value.shape, value.dtype)

    def at(self, place: Any) -> Any:
        """Returns the tensor at a place; any other value unchanged. In a handler, the tensor keeps the slot taken."""
        if not isinstance(place, Place):
            return place
        if not place.nbytes:
            return torch.empty(place.shape, dtype=place.dtype)
        slot = place.offset // self._slot_bytes
        taken, start = self._taken.get(slot), place.offset - slot * self._slot_bytes
        if taken is None:  # in the process of the blocks
            taken, start = self._all, place.offset
        return torch.frombuffer(taken.data[start : start + place.nbytes], dtype=place.dtype).view(place.shape)

    def replace(self, place: Any, tensor: torch.Tensor) -> Any:
        """Overwrites the tensor at a place, and returns the new place; returns the tensor itself if it does not fit."""
        if not isinstance(place, Place) or not 0 < tensor.nbytes <= place.nbytes:
            return tensor
        found = Place(place.offset, tensor.shape, tensor.dtype)
        self.at(found).copy_(tensor.detach())
        return found

    def _is_elsewhere(self, value: Any) -> bool:
        if not isinstance(value, torch.Tensor) or not value.numel():
            return False
        is_inside = 0 <= value.data_ptr() - self._start < len(self._all)
        return not (is_inside and value.device.type == "cpu" and value.is_contiguous())


def _room_for(tensor: torch.Tensor) -> int:
    return -(-tensor.nbytes // _ALIGNED) * _ALIGNED
