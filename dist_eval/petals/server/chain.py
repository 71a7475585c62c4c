"""Passes requests on to the server of the next blocks (see `petals.client.chain`); runs in a server's handlers.

If that fails, a server answers with its own outputs, and the client continues from there. So no computation is wasted,
and a client depends only on servers that it chose. A server calls only peers that the swarm's DHT names as servers of
the next blocks with support for chains. The number of waiting requests and their waiting time are bounded.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from dist_eval.errors import one_line
from dist_eval.petals.client.announcements import ServerRecord, announcement_of
from dist_eval.petals.client.chain import ChainAnswer, ChainRequest, Hop, HopTimes, read_chain_answer
from dist_eval.petals.client.deep_prompts import NO_TENSOR
from dist_eval.petals.client.dht_records import read_block
from dist_eval.petals.client.kept_streams import KeptStreams
from dist_eval.petals.client.outputs import require_usable
from dist_eval.petals.client.payload import Payload
from dist_eval.petals.client.petals_version import can_chain, can_chain_sessions
from dist_eval.petals.client.routes import Span
from dist_eval.petals.client.streams import Answer
from dist_eval.petals.client.transport import Transport
from dist_eval.petals.server.embedding import Embedder
from dist_eval.petals.server.server_tasks import run_forward
from dist_eval.printable import printable

_MOST_PASSED_ON, _SLOT_SECONDS = 16, 5.0  # concurrently, by each handler; and how long a request waits for a slot
# age of announcements from which they are read again: meanwhile; before a request that needs another server; always
_READ_SECONDS, _READ_AGAIN_SECONDS, _OLDEST_SECONDS = 60.0, 3.0, 300.0
_LOOK_UP_SECONDS = 5.0
LONGEST_REASON = 200
"""Most characters of the reason why a request was not passed on."""
_PLAIN = 0  # `CompressionType.NONE`


class CannotPassOn(Exception):
    """Why a request is not passed on."""


@dataclass(frozen=True)
class Connection:
    """This server's connection to others."""

    p2p: Any
    dht_prefix: str
    adapter: str | None


class Computed(NamedTuple):
    """A server's results for a request."""

    outputs: torch.Tensor  # shape [batch, length, hidden], or [1, rows, hidden] if only some are needed
    deep: torch.Tensor  # deep prompts for the servers after it; empty if there are none


class ChainHandler:
    """Answers requests that may be passed on.

    Petals' `handler` computes. Without an `embedder`, this server cannot embed token ids.
    """

    def __init__(self, handler: Any, embedder: Embedder | None) -> None:
        self._handler, self._embedder = handler, embedder
        self._slots, self._streams = asyncio.Semaphore(_MOST_PASSED_ON), KeptStreams()
        self.servers = AnnouncedServers(handler.dht, handler.dht_prefix)

    def prepare(self) -> None:
        """Looks up the servers of the next blocks in the background, because requests may follow soon."""
        last = [*self._handler.module_backends.values()][-1]
        block = int(last.name.rpartition(".")[2]) + 1
        if block < last.config.num_hidden_layers:
            self.servers.prepare(block)

    async def answer(
        self, uid: str, tensors: Sequence[torch.Tensor], request: ChainRequest, metadata: Mapping[str, Any]
    ) -> Answer:
        """Computes this server's blocks, and passes the request on; a `Guard` has admitted it.

        `uid` names this server's blocks; for the tensors see `dist_eval.petals.client.chain`. Returns the last server's
        answer, or this one's. Raises a `ValueError` for a request that these blocks cannot compute.
        """
        began = time.monotonic()
        backends = [self._handler.module_backends[one] for one in self._handler._check_uids(uid)]
        adapter = self._handler._get_active_adapter(metadata)
        end = int(backends[-1].name.rpartition(".")[2]) + 1
        if request.chain and request.chain[0].start != end:
            raise ValueError(f"Received a chain that continues at block {request.chain[0].start}, not {end}")
        computed = await self._compute(backends, tensors, request, adapter)
        own, why = HopTimes(own=time.monotonic() - began), ""
        if request.chain:
            try:
                return await self._pass_on(computed, request, adapter, own)
            except Exception as error:  # any error of the DHT, the daemon, the connection or the next server
                why = printable(one_line(error), LONGEST_REASON)
                own = own.model_copy(update={"call": time.monotonic() - began - own.own})
        return Answer([Payload.of(computed.outputs)], pack_answer(ChainAnswer(end=end, hops=[own], why=why)))

    async def _compute(
        self, backends: Sequence[Any], tensors: Sequence[torch.Tensor], request: ChainRequest, adapter: str
    ) -> Computed:
        hidden, deep, *further = tensors
        if request.ids:
            if self._embedder is None or not backends[0].name.endswith(".0"):
                raise ValueError("Received token ids, which only the server of the first block can embed")
            (soft,) = further
            hidden = await asyncio.to_thread(self._embedder.embedded, hidden, soft)
        rows = torch.tensor(request.rows, dtype=torch.int64) if request.rows is not None and not request.chain else None
        own, digests = deep[: len(backends)], (request.prompts or [])[: len(backends)]
        outputs = await run_forward(
            hidden,
            own,
            requested_backends=backends,
            active_adapter=adapter,
            prioritizer=self._handler._prioritizer,
            rows=rows,
            digests=digests,
        )
        return Computed(outputs, deep[len(backends) :])

    async def _pass_on(self, computed: Computed, request: ChainRequest, adapter: str, own: HopTimes) -> Answer:
        began, hop = time.monotonic(), request.chain[0]
        try:
            await asyncio.wait_for(self._slots.acquire(), _SLOT_SECONDS)
        except asyncio.TimeoutError as error:
            raise CannotPassOn("this server already passes on as many requests as it may") from error
        try:
            require_usable(computed.outputs)
            segment = await self.servers.named(hop, adapter)
            seconds = min(hop.patience, self._handler.request_timeout)
            connection = Connection(self._handler._p2p, self._handler.dht_prefix, adapter or None)
            transport = Transport(connection, timeout=seconds, streams=self._streams)
            deep = computed.deep if computed.deep.numel() else NO_TENSOR
            tensors = [
                await asyncio.to_thread(transport.pack, computed.outputs, segment.dtype, _PLAIN),
                transport.pack(deep, segment.dtype, _PLAIN),
            ]
            largest = 4 * computed.outputs.numel()
            call = transport.call_chain(segment, tensors, request.after_first(), largest, seconds)
            answer = await asyncio.wait_for(call, seconds)
        finally:
            self._slots.release()
        theirs = read_chain_answer(answer.metadata, [one.end for one in request.chain])
        own = own.model_copy(update={"call": time.monotonic() - began})
        return Answer(answer.tensors, pack_answer(theirs.preceded_by(own)))


class AnnouncedServers:
    """Looks up servers in the swarm's DHT; once known, they are looked up again while requests use what is known.

    A look-up takes several round trips, and each server of a chain needs one: requests that waited would pause for
    their sum.
    """

    def __init__(self, dht: Any, dht_prefix: str) -> None:
        self._dht, self._dht_prefix = dht, dht_prefix
        self._read: dict[int, tuple[float, Mapping[str, ServerRecord]]] = {}
        self._reading: dict[int, asyncio.Task[None]] = {}

    def prepare(self, block: int) -> None:
        """Looks up the servers of a block in the background, if that was not done recently."""
        if self._age(block) > _READ_SECONDS:
            self._look_up(block)

    async def named(self, hop: Hop, adapter: str, *, in_session: bool = False) -> Span:
        """Returns a server with its announcement.

        Raises `CannotPassOn` if it is not announced as a server of the blocks that passes requests on.
        """
        record = self._record(hop, adapter, in_session)
        if self._age(hop.start) > (_READ_AGAIN_SECONDS if record is None else _OLDEST_SECONDS):
            await asyncio.shield(self._look_up(hop.start))
            record = self._record(hop, adapter, in_session)
        else:
            self.prepare(hop.start)
        if record is None:
            raise CannotPassOn(f"{hop.peer} is not announced as a server of blocks {hop.start}:{hop.end} that chains")
        return Span(_peer(hop), hop.start, hop.end, announcement_of(record))

    def _age(self, block: int) -> float:
        return time.monotonic() - self._read[block][0] if block in self._read else math.inf

    def _record(self, hop: Hop, adapter: str, in_session: bool) -> ServerRecord | None:
        """Returns a server's announcement if it is known and passes requests on."""
        record = self._read[hop.start][1].get(hop.peer) if hop.start in self._read else None
        return record if _fits(record, hop, adapter, in_session=in_session) else None

    def _look_up(self, block: int) -> asyncio.Task[None]:
        """Looks up the servers of a block, unless that is being done already."""
        if block not in self._reading or self._reading[block].done():
            self._reading[block] = task = asyncio.create_task(self._read_now(block))
            task.add_done_callback(lambda task: task.cancelled() or task.exception())  # retrieved, if nobody waits
        return self._reading[block]

    async def _read_now(self, block: int) -> None:
        servers = await asyncio.to_thread(read_block, self._dht, self._dht_prefix, block, _LOOK_UP_SECONDS)
        self._read[block] = time.monotonic(), servers


def _fits(record: ServerRecord | None, hop: Hop, adapter: str, *, in_session: bool) -> bool:
    return (
        record is not None
        and record.state == "online"
        and (can_chain_sessions if in_session else can_chain)(record.version)
        and record.end_block is not None
        and hop.end <= record.end_block
        and (not adapter or adapter in record.adapters)
    )


def _peer(hop: Hop) -> Any:
    from hivemind.p2p import PeerID

    return PeerID.from_base58(hop.peer)


def pack_answer(answer: ChainAnswer) -> bytes:
    """Packs the metadata of an answer."""
    from hivemind.utils.serializer import MSGPackSerializer

    packed: bytes = MSGPackSerializer.dumps(answer.packed())
    return packed
