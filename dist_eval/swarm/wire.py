"""One request to one server: packing, sending, and a look at whether the answer can be right.

Tensors travel in the dtype that the server computes in. Servers cast what they get to it before anything else, so this
changes no bit of the result.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import torch

from dist_eval.swarm.failures import WrongAnswer
from dist_eval.swarm.routes import Span

_STREAM_OPEN_SECONDS = 5.0
_DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}
_COMPRESSION = {"none": "NONE", "float16": "FLOAT16"}


class Wire:
    """Sends hidden states to servers.

    Args:
        sequence_manager: Petals' `RemoteSequenceManager`, which knows how to reach them.
        timeout: seconds to wait for an answer.
        compression: how activations are packed, in both directions: "none" leaves the result as it is, "float16"
            changes it a little.

    Attributes:
        bytes_sent: of all tensors so far.
        bytes_received: of all tensors so far.
    """

    def __init__(self, sequence_manager: Any, *, timeout: float, compression: str = "none") -> None:
        from hivemind.proto import runtime_pb2
        from petals.utils.misc import DUMMY
        from petals.utils.packaging import pack_args_kwargs

        self.bytes_sent = self.bytes_received = 0
        self._manager, self._timeout = sequence_manager, timeout
        self._compression = runtime_pb2.CompressionType.Value(_COMPRESSION[compression])
        self._prompts: torch.Tensor | None = None
        self._packed_prompts: dict[tuple[int, int, str | None], Any] = {}
        self._no_prompts = DUMMY
        _, structure = pack_args_kwargs(torch.empty(1), torch.empty(1))
        self._metadata = sequence_manager.get_request_metadata("rpc_forward", structure)
        if compression != "none":
            self._metadata["output_compression"] = (self._compression,)

    def use_prompts(self, prompts: torch.Tensor | None) -> None:
        """Sets what goes with all further requests.

        Args:
            prompts: deep prompts of shape [blocks, pre_seq_len, hidden], or None. They are packed once: give the same
                tensor each time.
        """
        if prompts is not self._prompts:
            self._prompts, self._packed_prompts = prompts, {}

    async def send(self, hop: Span, hidden: torch.Tensor) -> torch.Tensor:
        """Sends hidden states through blocks of one server.

        Args:
            hop: the server and its blocks.
            hidden: float tensor of shape [batch, length, hidden].

        Returns:
            The last block's outputs, of the same shape, in the dtype in which they came.

        Raises:
            WrongAnswer: the answer has another shape, or is not finite.
            Exception: whatever the daemon, the connection or the server raised (see `failures.classify`).
        """
        from hivemind import MSGPackSerializer
        from hivemind.p2p.p2p_daemon_bindings.control import MAX_UNARY_PAYLOAD_SIZE
        from petals.data_structures import CHAIN_DELIMITER
        from petals.server.handler import TransformerConnectionHandler

        loop = asyncio.get_running_loop()
        packed = await loop.run_in_executor(None, self._pack, hidden, hop.dtype, self._compression)
        tensors = [packed, self._prompts_of(hop)]
        head = {
            "uid": CHAIN_DELIMITER.join(self._manager.block_uids[hop.start : hop.end]),
            "metadata": MSGPackSerializer.dumps(self._metadata),
        }
        stub = TransformerConnectionHandler.get_stub(self._manager.state.p2p, hop.peer)
        size = sum(len(tensor.buffer) for tensor in tensors)
        # an answer can be larger than its question: hivemind may pack bfloat16 as float32
        fits = max(size, hidden.numel() * 4) <= MAX_UNARY_PAYLOAD_SIZE
        outputs, received = await (self._ask if fits else self._ask_in_parts)(stub, head, tensors)
        self.bytes_sent += size
        self.bytes_received += received
        if len(outputs) != 1 or outputs[0].shape != hidden.shape:
            shapes = [list(tensor.shape) for tensor in outputs]
            raise WrongAnswer(f"shapes {shapes} instead of [{list(hidden.shape)}]")
        if not await loop.run_in_executor(None, _is_finite, outputs[0]):
            raise WrongAnswer("values that are not finite")
        return outputs[0]

    async def _ask(self, stub: Any, head: dict[str, Any], tensors: list[Any]) -> tuple[list[torch.Tensor], int]:
        """Sends one message and gets one back: tensors, and their size in bytes."""
        from hivemind.compression.serialization import deserialize_torch_tensor
        from hivemind.proto import runtime_pb2

        request = runtime_pb2.ExpertRequest(tensors=tensors, **head)
        answer = await stub.rpc_forward(request, timeout=self._timeout)
        loop = asyncio.get_running_loop()
        outputs = [await loop.run_in_executor(None, deserialize_torch_tensor, tensor) for tensor in answer.tensors]
        return outputs, sum(len(tensor.buffer) for tensor in answer.tensors)

    async def _ask_in_parts(
        self, stub: Any, head: dict[str, Any], tensors: list[Any]
    ) -> tuple[list[torch.Tensor], int]:
        """Does the same for what is too large for one message."""
        from hivemind.compression.serialization import deserialize_tensor_stream
        from hivemind.p2p.p2p_daemon_bindings.control import DEFAULT_MAX_MSG_SIZE
        from hivemind.proto import runtime_pb2
        from hivemind.utils.asyncio import aiter_with_timeout, iter_as_aiter
        from hivemind.utils.streaming import split_for_streaming

        received = 0

        async def parts(stream: Any) -> AsyncIterator[Any]:
            nonlocal received
            async for message in aiter_with_timeout(stream, self._timeout):
                received += sum(len(tensor.buffer) for tensor in message.tensors)
                yield message.tensors

        requests = (
            runtime_pb2.ExpertRequest(tensors=[part], **head)
            for tensor in tensors
            for part in split_for_streaming(tensor, DEFAULT_MAX_MSG_SIZE)
        )
        opened = await asyncio.wait_for(stub.rpc_forward_stream(iter_as_aiter(requests)), _STREAM_OPEN_SECONDS)
        return await deserialize_tensor_stream(parts(opened)), received

    def _prompts_of(self, hop: Span) -> Any:
        from hivemind.proto import runtime_pb2

        key = (hop.start, hop.end, hop.dtype)
        if key not in self._packed_prompts:
            # a batch of 1, which the server broadcasts
            prompts = self._no_prompts if self._prompts is None else self._prompts[hop.start : hop.end].unsqueeze(1)
            self._packed_prompts[key] = self._pack(prompts, hop.dtype, runtime_pb2.CompressionType.NONE)
        return self._packed_prompts[key]

    @staticmethod
    def _pack(tensor: torch.Tensor, dtype: str | None, compression: int) -> Any:
        from hivemind.compression.serialization import serialize_torch_tensor
        from hivemind.proto import runtime_pb2

        if compression != runtime_pb2.CompressionType.NONE:
            return serialize_torch_tensor(tensor.detach().to(torch.float32).contiguous(), compression)
        # with a name unknown here, the server casts by itself
        tensor = tensor.detach().to(_DTYPES.get(dtype or "", tensor.dtype)).contiguous()
        # hivemind packs bfloat16 as float32 for the sake of old versions; all that serve Petals 2.2 read two bytes
        raw = tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor
        return runtime_pb2.Tensor(
            compression=compression,
            buffer=raw.numpy().tobytes(),
            size=tensor.shape,
            dtype=str(tensor.dtype).removeprefix("torch."),
            requires_grad=False,
        )


def _is_finite(tensor: torch.Tensor) -> bool:
    return bool(torch.isfinite(tensor).all())
