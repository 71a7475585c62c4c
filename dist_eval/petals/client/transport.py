"""Serializes and sends a request to a server, and validates the answer.

Tensors are sent in the dtype that the server computes in. Servers cast their inputs to it first, so this changes no bit
of the result.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Protocol, TypeVar

import torch

from dist_eval.petals.client.announcements import read_info
from dist_eval.petals.client.chain import ChainAnswer, ChainRequest, read_chain_answer, request_to
from dist_eval.petals.client.deep_prompts import NO_TENSOR, DeepPrompts, Packed, RecentPrompts
from dist_eval.petals.client.failures import lacks_prompts
from dist_eval.petals.client.inputs import Inputs
from dist_eval.petals.client.kept_streams import KeptStreams
from dist_eval.petals.client.outputs import DTYPES, read_answer
from dist_eval.petals.client.payload import Payload
from dist_eval.petals.client.petals_version import can_chain, can_chain_sessions, has_petals_sessions
from dist_eval.petals.client.routes import Span
from dist_eval.petals.client.streams import Answer, SessionStream, call_stream, printable_errors

Result = TypeVar("Result")

NO_ORDER = torch.empty(0, dtype=torch.int64)
"""Sent in a session if its rows keep their order."""

_FORWARD, _BACKWARD, _INFERENCE = "rpc_forward", "rpc_backward", "rpc_inference"
COMPRESSIONS = {"none": "NONE", "float16": "FLOAT16"}
"""Names of compressions of activations, with those of hivemind."""
_PLAIN = 0  # `CompressionType.NONE`, which is imported late
_FEW = 1 << 15  # numbers for which switching to a thread would take longer than the work


class Connection(Protocol):
    """The connection that requests use; a `ServerDirectory` is one."""

    @property
    def p2p(self) -> Any:
        """The `hivemind.P2P`."""

    @property
    def dht_prefix(self) -> str:
        """Name under which the blocks are announced."""

    @property
    def adapter(self) -> str | None:
        """The LoRA adapter that servers should use."""


class ChainOutputs(NamedTuple):
    """The answer of a chain of servers."""

    # as for a single server; of shape [rows, hidden] if the chain reached its end. For several steps of a session a
    # list, or None if servers have lost the session
    outputs: Any
    answer: ChainAnswer


class Transport:
    """Sends hidden states to servers."""

    def __init__(
        self, directory: Connection, *, timeout: float, compression: str = "none", streams: KeptStreams | None = None
    ) -> None:
        from hivemind.proto import runtime_pb2

        from dist_eval.petals.client.protocol import request_metadata

        self.bytes_sent = self.bytes_received = 0  # of all tensors so far
        self._directory, self._timeout = directory, timeout
        self._compression = runtime_pb2.CompressionType.Value(COMPRESSIONS[compression])
        self._has_sessions: dict[Any, bool] = {}
        # deep prompts of the latest requests; idle streams to servers
        self.prompts, self.streams = RecentPrompts(), streams or KeptStreams()
        self._metadata = {
            method: request_metadata(tensors, directory.adapter)
            for method, tensors in ((_FORWARD, 2), (_BACKWARD, 3), (_INFERENCE, 3))
        }

    async def send(self, segment: Span, hidden: torch.Tensor, deep: DeepPrompts) -> torch.Tensor:
        """Sends hidden states, of shape [batch, length, hidden], through blocks of one server.

        `deep` has the deep prompts of all blocks of the model. Returns the last block's outputs, of the same shape, in
        the dtype that the server sent. Raises `WrongAnswer` (see `read_answer`), and any error of the daemon, the
        connection or the server (see `failures.classify`).
        """
        compression = self._compression_for(segment)
        packed = await asyncio.to_thread(self.pack, hidden, segment.dtype, compression)
        metadata = {"output_compression": (compression,)} if compression != _PLAIN else {}
        # an answer can be larger than its request: hivemind may serialize bfloat16 as float32
        tensors = [packed, (await deep.packed(segment)).payload]
        answer = await self._call(_FORWARD, segment, tensors, hidden.numel() * 4, metadata)
        return (await asyncio.to_thread(read_answer, answer.tensors, [hidden.shape]))[0]

    async def send_chain(
        self,
        chain: Sequence[Span],
        patience: Sequence[float],
        inputs: Inputs,
        deep: DeepPrompts,
        rows: torch.Tensor | None = None,
    ) -> ChainOutputs:
        """Sends a batch through a chain of servers.

        Returns the outputs of the last server, or of an earlier one that could not pass them on. Raises `WrongAnswer`
        (see `read_answer` and `read_chain_answer`), and any error of the daemon, the connection or the first server
        (see `failures.classify`).

        Args:
            chain: the servers and their blocks. All compute in the same dtype.
            patience: seconds to wait for each server and those after it.
            inputs: inputs of the first block; token ids are sent if they have any.
            deep: deep prompts of all blocks of the model.
            rows: positions in batch x length whose outputs are needed, int64 of shape [rows], if the last server runs
                the model's last block; None for all.
        """
        first, tokens = chain[0], inputs.tokens
        prompts = await deep.packed(replace(first, end=chain[-1].end))
        request = request_to(chain, patience, rows, ids=tokens is not None, prompts=prompts.digests or None)
        if tokens is None:
            hidden = await asyncio.to_thread(inputs.hidden)
            given, soft = await asyncio.to_thread(self.pack, hidden, first.dtype, _PLAIN), list[Payload]()
        else:
            given = self.pack(tokens.ids, None, _PLAIN)
            soft = [self.pack(NO_TENSOR if tokens.prompts is None else tokens.prompts, "float32", _PLAIN)]

        async def call(sent: Packed) -> Answer:
            tensors = [given, sent.payload, *soft]
            return await self.call_chain(first, tensors, request, inputs.shape.numel() * 4, patience[0])

        try:
            answer = await call(prompts.omitted() if deep.are_kept(chain, prompts) else prompts)
        except Exception as error:
            if not lacks_prompts(error):
                raise
            answer = await call(prompts)
        found = read_chain_answer(answer.metadata, [span.end for span in chain])
        deep.answered(chain, prompts, found.end)
        is_cut = rows is None or found.end < chain[-1].end
        shape = inputs.shape if is_cut else torch.Size((1, len(rows), inputs.width))  # type: ignore[arg-type]
        (outputs,) = await asyncio.to_thread(read_answer, answer.tensors, [shape])
        return ChainOutputs(outputs if is_cut else outputs[0], found)

    async def call_chain(
        self, segment: Span, tensors: Sequence[Payload], request: ChainRequest, largest_answer: int, timeout: float
    ) -> Answer:
        """Sends serialized tensors (see `chain.py`) to the first server of a chain; returns the answer unchanged.

        `request` is the rest of the chain, and `largest_answer` the most bytes of the answer.
        """
        return await self._call(_FORWARD, segment, tensors, largest_answer, request.packed(), timeout)

    async def send_back(
        self, segment: Span, inputs: torch.Tensor, gradient: torch.Tensor, deep: DeepPrompts
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Sends a gradient back through blocks of one server, which recomputes their forward.

        Gradients are never compressed: small ones would underflow in float16. Returns those with respect to the inputs,
        of shape [batch, length, hidden], and to the deep prompts of these blocks, of shape
        [blocks, batch, pre_seq_len, hidden] (None without any), in the dtype that the server sent.
        """
        packed = [await asyncio.to_thread(self.pack, tensor, segment.dtype, _PLAIN) for tensor in (inputs, gradient)]
        shapes = [inputs.shape]
        if deep.tensor is not None:
            _, length, width = deep.tensor.shape
            shapes.append(torch.Size((segment.end - segment.start, len(inputs), length, width)))
        largest_answer = 4 * sum(shape.numel() for shape in shapes)
        packed.append((await deep.packed(segment)).payload)
        answer = await self._call(_BACKWARD, segment, packed, largest_answer)
        outputs = await asyncio.to_thread(read_answer, answer.tensors, shapes)
        return outputs[0], outputs[1] if len(outputs) > 1 else None

    async def open_session(self, segment: Span) -> SessionStream:
        """Opens the stream of a `ServerCache`."""
        return await SessionStream.open(self._directory.p2p, segment.peer, _handler_name(_INFERENCE))

    def session_head(self, segment: Span, metadata: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the fields of the first request of a session, besides tensors."""
        return self._head(_INFERENCE, segment, metadata)

    async def session_tensors(
        self, segment: Span, inputs: Inputs, prompts: Payload, order: torch.Tensor, *, ids: bool
    ) -> list[Payload]:
        """Serializes the tensors of a request of a session, with token ids instead of hidden states if `ids`.

        `inputs` are those of the segment's first block. `prompts` has deep prompts of all blocks of the request, or is
        an empty tensor. `order`, int64 of shape [rows], is which row each row continues; empty if each continues
        itself.
        """
        packed = [prompts, self.pack(order, None, _PLAIN)]
        if ids and inputs.tokens is not None:
            soft = NO_TENSOR if inputs.tokens.prompts is None else inputs.tokens.prompts
            packed = [self.pack(inputs.tokens.ids, None, _PLAIN), *packed, self.pack(soft, "float32", _PLAIN)]
        else:
            size, compression = inputs.shape.numel(), self._compression_for(segment)
            hidden = await _away_from_loop(size, inputs.hidden)
            packed.insert(0, await _away_from_loop(size, self.pack, hidden, segment.dtype, compression))
        self.bytes_sent += sum(len(tensor.data) for tensor in packed)
        return packed

    async def session_outputs(self, tensors: Sequence[Payload], shape: torch.Size) -> torch.Tensor:
        """Reads the tensors of an answer of a session."""
        self.bytes_received += sum(len(tensor.data) for tensor in tensors)
        return (await _away_from_loop(shape.numel(), read_answer, tensors, [shape]))[0]

    async def free_cache(self, segment: Span) -> int:
        """Asks a server for its free attention cache, in tokens of a text times blocks; 0 without sessions."""
        from hivemind.proto import runtime_pb2

        from dist_eval.petals.client.protocol import block_uid

        uid = runtime_pb2.ExpertUID(uid=block_uid(self._directory.dht_prefix, segment.start))
        with printable_errors():
            answer = await self._stub(segment).rpc_info(uid, timeout=self._timeout)
        info = read_info(answer.serialized_info)
        self._has_sessions[segment.peer] = has_petals_sessions(info.inference_schema)
        return info.cache_tokens_available if self._has_sessions[segment.peer] else 0

    async def has_sessions(self, segment: Span) -> bool:
        """Whether a server's sessions are those of Petals; asks it the first time."""
        if can_chain_sessions(segment.announced.version):
            return True
        if segment.peer not in self._has_sessions:
            await self.free_cache(segment)
        return self._has_sessions[segment.peer]

    def may_have_sessions(self, segment: Span) -> bool:
        """Whether a server's sessions are those of Petals, or the server was not asked yet."""
        return self._has_sessions.get(segment.peer, True)

    def _stub(self, segment: Span) -> Any:
        from dist_eval.petals.client.protocol import TransformerConnectionHandler

        return TransformerConnectionHandler.get_stub(self._directory.p2p, segment.peer)

    def _head(self, method: str, segment: Span, metadata: Mapping[str, Any] | None = None) -> dict[str, Any]:
        from hivemind.utils.serializer import MSGPackSerializer

        from dist_eval.petals.client.protocol import chain_uid

        return {
            "uid": chain_uid(self._directory.dht_prefix, segment.start, segment.end),
            "metadata": MSGPackSerializer.dumps({**self._metadata[method], **(metadata or {})}),
        }

    def _compression_for(self, segment: Span) -> int:
        """Returns the compression of hidden states: none in 16 bits, and hivemind cannot compress bfloat16."""
        return _PLAIN if segment.dtype in ("bfloat16", "float16") else self._compression

    async def _call(
        self,
        method: str,
        segment: Span,
        tensors: Sequence[Payload],
        largest_answer: int,
        metadata: dict[str, Any] | None = None,
        timeout: float | None = None,
    ) -> Answer:
        from hivemind.p2p.p2p_daemon_bindings.control import MAX_UNARY_PAYLOAD_SIZE
        from hivemind.proto import runtime_pb2

        from dist_eval.petals.client.protocol import KEEPS_STREAM

        size, timeout = sum(len(tensor.data) for tensor in tensors), self._timeout if timeout is None else timeout
        can_keep = can_chain(segment.announced.version)
        more = {KEEPS_STREAM: True} if can_keep else {}
        request = runtime_pb2.ExpertRequest(**self._head(method, segment, {**(metadata or {}), **more}))
        if can_keep or max(size, largest_answer) > MAX_UNARY_PAYLOAD_SIZE:
            answer = await call_stream(
                self._directory.p2p,
                segment.peer,
                _handler_name(f"{method}_stream"),
                request,
                tensors,
                largest_answer=largest_answer,
                timeout=timeout,
                kept=self.streams if can_keep else None,
            )
        else:
            request.tensors.extend(tensor.message() for tensor in tensors)
            with printable_errors():
                found = await getattr(self._stub(segment), method)(request, timeout=timeout)
            answer = Answer([Payload.of_message(tensor) for tensor in found.tensors], found.metadata)
        self.bytes_sent += size
        self.bytes_received += sum(len(tensor.data) for tensor in answer.tensors)
        return answer

    @staticmethod
    def pack(tensor: torch.Tensor, dtype: str | None, compression: int) -> Payload:
        """Serializes a tensor in a dtype, or in its own if the name is None or unknown.

        The tensor must not change until it is sent.
        """
        from hivemind.compression.serialization import serialize_torch_tensor

        if compression != _PLAIN:
            tensor = tensor.detach().to("cpu", torch.float32).contiguous()
            return Payload.of_message(serialize_torch_tensor(tensor, compression))
        # the server casts to a dtype that is unknown here
        return Payload.of(tensor.to("cpu", DTYPES.get(dtype or "", tensor.dtype)))


def _handler_name(method: str) -> str:
    """Returns the name by which servers register a method."""
    return f"TransformerConnectionHandler.{method}"


async def _away_from_loop(size: int, call: Callable[..., Result], *arguments: Any) -> Result:
    """Calls a function in a thread if it has so many numbers to process that it would block the event loop."""
    return call(*arguments) if size <= _FEW else await asyncio.to_thread(call, *arguments)
