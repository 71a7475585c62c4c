"""Serialized tensors that refer to existing bytes: those of a tensor to send, or those received."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

MOST_DIMENSIONS = 4
"""Most dimensions of a tensor of a request or an answer."""

_READ_IN_PLACE = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32, "int64": torch.int64}


@dataclass(frozen=True)
class Payload:
    """A serialized tensor."""

    head: Any  # `runtime_pb2.Tensor` without its bytes
    data: memoryview  # its bytes

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Payload:
        """Serializes a tensor, without a copy if it is contiguous; it must not change until it is sent."""
        from hivemind.proto import runtime_pb2

        tensor = tensor.detach().cpu().contiguous()
        # hivemind sends bfloat16 as float32 for old versions, but all servers of Petals 2.2 read two bytes
        head = runtime_pb2.Tensor(size=tensor.shape, dtype=str(tensor.dtype).removeprefix("torch."))
        return cls(head, tensor.reshape(-1).view(torch.uint8).numpy().data)

    @classmethod
    def of_message(cls, message: Any) -> Payload:
        """Wraps a `runtime_pb2.Tensor`."""
        from hivemind.proto import runtime_pb2

        head = runtime_pb2.Tensor(
            size=message.size, requires_grad=message.requires_grad, dtype=message.dtype, compression=message.compression
        )
        return cls(head, memoryview(message.buffer))

    @property
    def size(self) -> Sequence[int]:
        """Its shape; messages call it `size`."""
        size: Sequence[int] = self.head.size
        return size

    @staticmethod
    def size_of(head: Any) -> int:
        """Returns the number of bytes that belong to a head; 0 if they are compressed or it is unknown."""
        dtype = _READ_IN_PLACE.get(head.dtype)
        if dtype is None or head.compression or len(head.size) > MOST_DIMENSIONS:
            return 0
        return math.prod(head.size) * dtype.itemsize

    def message(self) -> Any:
        """Returns it as a `runtime_pb2.Tensor`."""
        from hivemind.proto import runtime_pb2

        message = runtime_pb2.Tensor(buffer=bytes(self.data))
        message.MergeFrom(self.head)
        return message

    def tensor(self) -> torch.Tensor:
        """Deserializes it; the tensor shares memory with the bytes if they are writable and not compressed.

        Invalid bytes raise any error of numpy and torch.
        """
        from hivemind.compression.serialization import deserialize_torch_tensor

        if not self.data or self.size_of(self.head) != len(self.data) or self.head.requires_grad:
            tensor: torch.Tensor = deserialize_torch_tensor(self.message())
            return tensor
        dtype, place = _READ_IN_PLACE[self.head.dtype], self.data
        if place.readonly or np.frombuffer(place, np.uint8).ctypes.data % dtype.itemsize:
            place = memoryview(bytearray(place))
        return torch.frombuffer(place, dtype=dtype).view(*self.head.size)
