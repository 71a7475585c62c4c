"""Forward requests to a swarm: from hidden states before the first block to those after the last one.

Petals' own way is made for training. This one is for many forwards: routes by measured speed (`routes.py`), tensors
in the dtype that the server computes in, prompts packed once, and no retry without an end. Servers cast what they get
to their dtype before anything else, so sending it in that dtype changes no bit of the result.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import torch

from dist_eval.base import first_line
from dist_eval.errors import ModelOutputError, OutageError, RefusedError, SwarmError
from dist_eval.swarm.failures import Failure, WrongAnswer, classify
from dist_eval.swarm.routes import Routes, Span, Trip

_FIRST_DELAY, _LONGEST_DELAY = 1.0, 5.0
_OUTAGE_LOOK_SECONDS, _REJOIN_SECONDS, _NOTICE_SECONDS = 1.0, 3.0, 5.0
_LEAST_PATIENCE, _PATIENCE_TIMES = 5.0, 10.0
"""Where another server could do it, one is given so many seconds, or so many times its longest latency of late."""

_REFUSALS_BELIEVED, _LATENCIES_LOOKED_AT = 2, 20
_STREAM_OPEN_SECONDS = 5.0
_DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}
_COMPRESSION = {"none": "NONE", "float16": "FLOAT16"}


class SwarmRequests:
    """Sends hidden states through all blocks of a model.

    Args:
        sequence_manager: Petals' `RemoteSequenceManager`, which keeps the list of servers up to date.
        request_timeout: seconds to wait for a server's answer.
        max_retries: attempts for each part of a request.
        compression: how activations are packed, in both directions: "none" leaves the result as it is, "float16"
            changes it a little.
        seed: of the choice between equal servers; different on each rank.
        outage_timeout: seconds to wait for blocks that no server holds, or none that can be reached.
        rejoin: called now and then while waiting for such servers.

    Attributes:
        routes: chooses servers, and knows how they did.
        retries: requests that had to be repeated.
        halved: requests that servers found too large, and that were sent in halves.
    """

    def __init__(
        self,
        sequence_manager: Any,
        *,
        request_timeout: float,
        max_retries: int,
        compression: str = "none",
        seed: int = 0,
        outage_timeout: float = 120.0,
        rejoin: Callable[[], None] = lambda: None,
    ) -> None:
        from hivemind.proto import runtime_pb2
        from petals.utils.misc import DUMMY
        from petals.utils.packaging import pack_args_kwargs

        self.routes, self.retries, self.bytes_sent, self.bytes_received = Routes(seed), 0, 0, 0
        self.halved = 0
        self.compression, self._manager, self._outage_timeout = compression, sequence_manager, outage_timeout
        self._outage: tuple[str, float, float] | None = None
        self._noticed = self._rejoined = float("-inf")
        self._rejoin = rejoin
        self._timeout, self._attempts = request_timeout, max_retries
        self._compression = runtime_pb2.CompressionType.Value(_COMPRESSION[compression])
        self._packed_prompts: dict[tuple[int, int, str | None], Any] = {}
        self._prompts: torch.Tensor | None = None
        self._no_prompts = DUMMY
        _, structure = pack_args_kwargs(torch.empty(1), torch.empty(1))
        self._metadata = sequence_manager.get_request_metadata("rpc_forward", structure)
        if compression != "none":
            self._metadata["output_compression"] = (self._compression,)

    def start(self) -> None:
        """Starts the thread that keeps the list of servers, and waits for the first list.

        Raises:
            SwarmError: some block has no server.
        """
        from petals.client.routing.sequence_manager import MissingBlocksError

        try:
            self._manager.make_sequence(mode="max_throughput")  # Petals' public way of doing this
        except MissingBlocksError as error:
            raise SwarmError(f"The swarm lost a server just now: {first_line(error)}") from error

    def forward(self, hidden: torch.Tensor, prompts: torch.Tensor | None, trip: Trip | None = None) -> torch.Tensor:
        """Sends hidden states through all blocks. Threads may call it side by side.

        Args:
            hidden: float tensor of shape [batch, length, hidden].
            prompts: deep prompts of shape [blocks, pre_seq_len, hidden], or None. They are packed once: give the same
                tensor each time.
            trip: takes down the way.

        Returns:
            The last block's outputs, of the same shape and dtype.

        Raises:
            RefusedError: servers cannot do what was asked.
            ModelOutputError: servers answered with values that are not finite.
            OutageError: a block has had no server that can be reached for too long.
            SwarmError: a part of the way got no answer in all attempts.
        """
        from hivemind.moe.client.remote_expert_worker import RemoteExpertWorker

        if prompts is not self._prompts:
            self._prompts, self._packed_prompts = prompts, {}
        return RemoteExpertWorker.run_coroutine(self._forward(hidden, trip or Trip())).to(hidden.dtype)

    def facts(self) -> dict[str, Any]:
        """Returns what was sent so far, for the section `ranks` of `results.json`."""
        return {
            "compression": self.compression,
            "round_trips": sum(server.requests for server in self.routes.servers.values()),
            "retries": self.retries,
            "halved": self.halved,
            "bytes_sent": self.bytes_sent,
            "bytes_received": self.bytes_received,
            "servers": [
                {
                    "peer": str(peer),
                    "requests": server.requests,
                    "failures": server.failures,
                    "wrong_answers": server.wrong_answers,
                    "token_blocks": server.work,
                    **_percentiles(server.latencies),
                }
                for peer, server in self.routes.servers.items()
            ],
        }

    def notice(self) -> str:
        """Returns what requests wait for, in words for a person, once in a while; empty if for nothing."""
        now = time.monotonic()
        if self._outage is None or now - self._noticed < _NOTICE_SECONDS:
            return ""
        what, seen_at, deadline = self._outage
        if now - seen_at > 2 * _OUTAGE_LOOK_SECONDS:
            return ""
        self._noticed = now
        return f"{what}; the run waits {max(0.0, deadline - now):.0f} s more for one (--swarm-timeout)"

    async def _forward(self, hidden: torch.Tensor, trip: Trip, block: int = 0) -> torch.Tensor:
        while block < len(self._manager):
            try:
                hop, hidden = await self._next_hop(hidden, block)
            except _TooLarge as error:
                if len(hidden) == 1:
                    raise RefusedError(
                        f"a text of {hidden.shape[1]} tokens, prompts included, is more than a server accepts "
                        f"({error}): give a lower --max-length"
                    ) from error
                self.halved += 1
                halves = hidden.tensor_split(2)
                return torch.cat([await self._forward(half, trip, block) for half in halves])
            trip.route.append((str(hop.peer), hop.start, hop.end))
            block = hop.end
        return hidden

    async def _next_hop(self, hidden: torch.Tensor, block: int) -> tuple[Span, torch.Tensor]:
        """Sends a request to one server after another until one has answered."""
        tokens, blocks = hidden.shape[0] * hidden.shape[1], len(self._manager)
        attempts, out_since = 0, None
        complaints: list[str] = []
        wrong: set[Any] = set()
        while True:
            now = time.monotonic()
            spans = self._spans()
            hop = self.routes.next_hop(spans, block, blocks, tokens, now)
            error: Exception | None = None
            if hop is not None:
                try:
                    return hop, await self._call_measured(hop, hidden, tokens, self._patience(hop, spans, now))
                except Exception as reason:  # whatever the daemon, the connection or the server raised
                    error = reason
            failure = Failure.UNREACHABLE if error is None else classify(error)
            part = f"block {block}" if hop is None else f"blocks {hop.start}:{hop.end} (peer {hop.peer})"
            if failure is Failure.TOO_LARGE:
                raise _TooLarge(first_line(error or Exception())) from error
            self.retries += 1
            self._manager.update(wait=False)  # who left is taken from the list, who came is put there
            if failure is Failure.UNREACHABLE:
                out_since = out_since or now
                await self._wait_for_servers(part, error, out_since, block, tokens)
                continue
            complaints.append(f"{part}: {first_line(error or Exception())}")
            if failure is Failure.WRONG and hop is not None:
                wrong.add(hop.peer)
            if failure is Failure.WRONG and len(complaints) >= _REFUSALS_BELIEVED:
                if len(wrong) > 1:
                    for peer in wrong:
                        self.routes.server(peer).excuse()
                raise ModelOutputError("servers answered with " + "; ".join(complaints)) from error
            if failure is Failure.REFUSED and len(complaints) >= _REFUSALS_BELIEVED:
                raise RefusedError("servers refused it, " + "; ".join(complaints)) from error
            attempts += 1
            if attempts >= self._attempts:
                raise SwarmError(f"got no answer for {part} in {attempts} attempts: {complaints[-1]}") from error
            if attempts > 1:
                await asyncio.sleep(min(_FIRST_DELAY * 2 ** (attempts - 2), _LONGEST_DELAY))

    async def _wait_for_servers(
        self, part: str, error: Exception | None, since: float, block: int, tokens: int
    ) -> None:
        """Returns at once if there are servers that were not tried yet, otherwise after a while."""
        now = time.monotonic()
        usable = [span for span in self._spans() if not self.routes.server(span.peer).is_banned(now)]
        if self.routes.next_hop(usable, block, len(self._manager), tokens, now) is not None:
            return
        deadline = since + self._outage_timeout
        why = "no server online holds it, or a block after it" if error is None else first_line(error)
        if now > deadline:
            raise OutageError(
                f"for {self._outage_timeout:g} s (--swarm-timeout) there was no server to reach for {part}: {why}"
            )
        if now - self._rejoined > _REJOIN_SECONDS:
            self._rejoined = now
            self._rejoin()
        self._outage = (f"no server to reach for {part}: {why}", now, deadline)
        await asyncio.sleep(min(_OUTAGE_LOOK_SECONDS, max(0.0, deadline - now)))

    def _patience(self, hop: Span, spans: Sequence[Span], now: float) -> float:
        """Returns seconds to wait for a server: fewer where another one could do it."""
        latencies = list(self.routes.server(hop.peer).latencies)[-_LATENCIES_LOOKED_AT:]
        if not latencies or len(spans) == 1:
            return self._timeout
        others = [span for span in spans if span.peer != hop.peer and not self.routes.server(span.peer).is_banned(now)]
        if self.routes.next_hop(others, hop.start, hop.end, 1, now) is None:
            return self._timeout
        return min(self._timeout, max(_LEAST_PATIENCE, _PATIENCE_TIMES * max(latencies)))

    def _spans(self) -> Sequence[Span]:
        with self._manager.lock_changes:
            online = list(self._manager.state.sequence_info.spans_by_priority)
        return [Span(span.peer_id, span.start, span.end, span.server_info.torch_dtype) for span in online]

    async def _call_measured(self, hop: Span, hidden: torch.Tensor, tokens: int, patience: float) -> torch.Tensor:
        work, server, sent_at = tokens * (hop.end - hop.start), self.routes.server(hop.peer), time.monotonic()
        server.sent(work)
        try:
            outputs = await asyncio.wait_for(self._call(hop, hidden), patience)
        except BaseException as error:
            server.failed(work, time.monotonic(), classify(error))
            raise
        server.answered(work, sent_at, time.monotonic())
        return outputs

    async def _call(self, hop: Span, hidden: torch.Tensor) -> torch.Tensor:
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


class _TooLarge(Exception):
    """A server accepts smaller requests only."""


def _is_finite(tensor: torch.Tensor) -> bool:
    return bool(torch.isfinite(tensor).all())


def _percentiles(latencies: Sequence[float]) -> dict[str, float | None]:
    ordered = sorted(latencies)
    if not ordered:
        return {"latency_p50": None, "latency_p95": None}
    return {
        "latency_p50": ordered[(len(ordered) - 1) // 2],
        "latency_p95": ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))],
    }
