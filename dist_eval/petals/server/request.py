"""A request as a server receives it, with serialized tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dist_eval.petals.client.payload import Payload


@dataclass(frozen=True)
class Request:
    """The contents of a `runtime_pb2.ExpertRequest`."""

    uid: str = ""  # names of blocks
    tensors: Sequence[Payload] = ()  # serialized; their bytes are not copied
    metadata: bytes = b""  # packed

    @classmethod
    def of(cls, message: Any) -> Request:
        """Converts an `ExpertRequest`."""
        return cls(message.uid, list(map(Payload.of_message, message.tensors)), message.metadata)

    @property
    def nbytes(self) -> int:
        """How large it is, apart from the heads of tensors."""
        return len(self.uid) + len(self.metadata) + sum(len(tensor.data) for tensor in self.tensors)

    def message(self) -> Any:
        """Returns it as an `ExpertRequest`."""
        from hivemind.proto import runtime_pb2

        tensors = [tensor.message() for tensor in self.tensors]
        return runtime_pb2.ExpertRequest(uid=self.uid, tensors=tensors, metadata=self.metadata)
