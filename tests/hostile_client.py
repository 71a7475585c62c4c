"""A client that keeps to no rule: it sends whatever bytes it is given to a server."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import msgpack
import torch

SECONDS = 60.0


class Stranger:
    """A peer of a swarm with a daemon of its own.

    Args:
        address: of the server that it sends to.
    """

    def __init__(self, address: str) -> None:
        from hivemind.p2p import P2P, PeerID

        self.peer = PeerID.from_base58(address.rsplit("/", 1)[1])
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self._p2p = self.wait(P2P.create(initial_peers=[address], dht_mode="client"))

    def close(self) -> None:
        self.wait(self._p2p.shutdown())
        self._loop.call_soon_threadsafe(self._loop.stop)

    def start(self, coroutine: Coroutine[Any, Any, Any]) -> Future[Any]:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def wait(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return self.start(coroutine).result(SECONDS)

    def call(self, method: str, request: Any) -> list[torch.Tensor]:
        """Sends one message; returns the tensors of the answer."""
        return self.wait(self.calling(method, request))

    async def calling(self, method: str, request: Any) -> list[torch.Tensor]:
        from hivemind.proto import runtime_pb2

        answer = await self._p2p.call_protobuf_handler(self.peer, _name(method), request, runtime_pb2.ExpertResponse)
        return [_unpacked(tensor) for tensor in answer.tensors]

    def converse(self, method: str, messages: Sequence[Any], keep_open: bool = False) -> list[torch.Tensor]:
        """Sends messages in a stream; returns the tensors of all answers."""
        return self.wait(self.conversing(method, messages, keep_open))

    async def conversing(self, method: str, messages: Sequence[Any], keep_open: bool = False) -> list[torch.Tensor]:
        from hivemind.proto import runtime_pb2

        async def requests() -> Any:
            for message in messages:
                yield message
            if keep_open:
                await asyncio.Event().wait()

        answers = await self._p2p.iterate_protobuf_handler(
            self.peer, _name(method), requests(), runtime_pb2.ExpertResponse
        )
        found = list[torch.Tensor]()
        with contextlib.suppress(ConnectionError):  # a server may end a stream before it has read the end of this one
            async for answer in answers:
                found += map(_unpacked, answer.tensors)
        return found

    def open(self, method: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Opens a stream, in which nothing was said yet."""
        return self.wait(self.opening(method))

    async def opening(self, method: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        _, reader, writer = await self._p2p.call_binary_stream_handler(self.peer, _name(method))
        return reader, writer


def _name(method: str) -> str:
    return f"TransformerConnectionHandler.{method}"


def packed(tensor: torch.Tensor, *, size: Sequence[int] | None = None, dtype: str | None = None, **fields: Any) -> Any:
    """Serializes a tensor, or says that it has another size or dtype."""
    from hivemind.proto import runtime_pb2

    fields = {"buffer": tensor.numpy().tobytes(), **fields}
    dtype = str(tensor.dtype).removeprefix("torch.") if dtype is None else dtype
    return runtime_pb2.Tensor(size=tensor.shape if size is None else size, dtype=dtype, **fields)


def _unpacked(tensor: Any) -> torch.Tensor:
    from hivemind.compression.serialization import deserialize_torch_tensor

    return deserialize_torch_tensor(tensor)


def request(uid: str, *tensors: Any, metadata: Any = None, **fields: Any) -> Any:
    """Makes a message of tensors, serialized or not, and of metadata, a value or any bytes."""
    from hivemind.proto import runtime_pb2
    from hivemind.utils.serializer import MSGPackSerializer

    if not isinstance(metadata, bytes):
        metadata = MSGPackSerializer.dumps({} if metadata is None else metadata)
    serialized = [packed(tensor) if isinstance(tensor, torch.Tensor) else tensor for tensor in tensors]
    return runtime_pb2.ExpertRequest(uid=uid, tensors=serialized, metadata=metadata, **fields)


def nested(depth: int) -> bytes:
    """Returns serialized lists, each in the next one."""
    return b"\x91" * depth + b"\xc0"


def nested_tuples(depth: int) -> bytes:
    """Returns serialized tuples as hivemind writes them, each in the next one."""
    content = b"\xc0"
    for _ in range(depth):
        content = msgpack.packb(msgpack.ExtType(0x40, b"\x91" + content))
    return content


def memory_of(group: int) -> int:
    """Returns the bytes that the processes of a group take for themselves."""
    taken = 0
    for folder in Path("/proc").iterdir():
        try:
            if int((folder / "stat").read_text().rsplit(") ", 1)[1].split()[2]) == group:
                lines = (folder / "smaps_rollup").read_text().splitlines()
                taken += sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) << 10
        except (OSError, ValueError, IndexError):
            continue
    return taken


def outcome(act: Callable[[], Any]) -> str:
    """Returns the error that a request ends with, or what its answer looks like."""
    try:
        answer = act()
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:300]
    return f"answered {[list(tensor.shape) for tensor in answer]}"
