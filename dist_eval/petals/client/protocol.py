"""The network protocol of Petals' servers, so that a client does not need Petals itself.

Source: `petals.server.handler`, `petals.data_structures` and `petals.utils.packaging` of Petals 2.2.0.post1; main
(2.3.0.dev2) uses the same protocol.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, AsyncIterator  # noqa: UP035 (hivemind recognizes a stream only by this one)

from hivemind.p2p import P2PContext, ServicerBase
from hivemind.proto import runtime_pb2

PUBLIC_PEERS = (
    "/dns/bootstrap1.petals.dev/tcp/31337/p2p/QmedTaZXmULqwspJXz44SsPZyTNKxhnnFvYRajfH7MGhCY",
    "/dns/bootstrap2.petals.dev/tcp/31338/p2p/QmQGTqmM7NKjV6ggU1ZCap8zWiyKR89RViDXiqehSiCpY5",
    "/dns6/bootstrap1.petals.dev/tcp/31337/p2p/QmedTaZXmULqwspJXz44SsPZyTNKxhnnFvYRajfH7MGhCY",
    "/dns6/bootstrap2.petals.dev/tcp/31338/p2p/QmQGTqmM7NKjV6ggU1ZCap8zWiyKR89RViDXiqehSiCpY5",
    "/ip4/159.89.214.152/tcp/31337/p2p/QmedTaZXmULqwspJXz44SsPZyTNKxhnnFvYRajfH7MGhCY",
    "/ip4/159.203.156.48/tcp/31338/p2p/QmQGTqmM7NKjV6ggU1ZCap8zWiyKR89RViDXiqehSiCpY5",
)
"""Peers of the public swarm (`petals.constants`)."""

ROLLS_BACK = "rolls_back"
"""Metadata key of a session's first step: false if no later step will go back. Blocks with sliding windows then keep
only their windows. Petals' clients never send it."""


KEEPS_STREAM = "keeps_stream"
"""Metadata key of a request in a stream: true if more requests may follow. Our servers then end the answer with an
error without text, and keep the stream open. Petals' clients never send it."""


def block_uid(dht_prefix: str, block: int) -> str:
    """Returns the name of a block, which is also the DHT key of the servers that hold it."""
    return f"{dht_prefix}.{block}"


def chain_uid(dht_prefix: str, start: int, end: int) -> str:
    """Returns the name of consecutive blocks in a request."""
    return " ".join(block_uid(dht_prefix, block) for block in range(start, end))


def request_metadata(num_tensors: int, adapter: str | None) -> dict[str, Any]:
    """Returns the metadata of each request."""
    arguments = tuple(b"__T%d" % number for number in range(num_tensors))
    return {"points": 0.0, "active_adapter": adapter, "args_structure": (arguments, {})}


class TransformerConnectionHandler(ServicerBase):  # type: ignore[misc]
    """The methods of a server. hivemind uses the names of the class and its methods, and their type annotations."""

    async def rpc_info(self, request: runtime_pb2.ExpertUID, context: P2PContext) -> runtime_pb2.ExpertInfo:
        """Describes a server."""
        raise NotImplementedError

    async def rpc_forward(self, request: runtime_pb2.ExpertRequest, context: P2PContext) -> runtime_pb2.ExpertResponse:
        """Computes blocks."""
        raise NotImplementedError

    async def rpc_forward_stream(
        self, requests: AsyncIterator[runtime_pb2.ExpertRequest], context: P2PContext
    ) -> AsyncIterator[runtime_pb2.ExpertResponse]:
        """Computes blocks; for tensors too large for one message."""
        raise NotImplementedError

    async def rpc_backward(self, request: runtime_pb2.ExpertRequest, context: P2PContext) -> runtime_pb2.ExpertResponse:
        """Computes gradients."""
        raise NotImplementedError

    async def rpc_backward_stream(
        self, requests: AsyncIterator[runtime_pb2.ExpertRequest], context: P2PContext
    ) -> AsyncIterator[runtime_pb2.ExpertResponse]:
        """Computes gradients; for tensors too large for one message."""
        raise NotImplementedError

    async def rpc_inference(
        self, requests: AsyncIterator[runtime_pb2.ExpertRequest], context: P2PContext
    ) -> AsyncIterator[runtime_pb2.ExpertResponse]:
        """Computes the steps of a session."""
        raise NotImplementedError


async def ping(peers: Sequence[Any], seconds: float, dht: Any, node: Any) -> dict[str, float]:
    """Measures round trips to all peers at once; runs in the process of the DHT's node (`dht.run_coroutine`)."""
    import asyncio
    import time

    from hivemind.proto import dht_pb2

    async def one(peer: Any) -> float | None:
        start = time.perf_counter()
        try:
            request = dht_pb2.PingRequest(peer=node.protocol.node_info)
            await node.protocol.get_stub(peer).rpc_ping(request, timeout=seconds)
        except Exception as error:  # any error of the daemon or the connection
            if str(error) != "protocol not supported":  # this is the answer of a server behind a relay
                return None
        return time.perf_counter() - start

    found = await asyncio.gather(*map(one, peers))
    return {str(peer): taken for peer, taken in zip(peers, found, strict=True) if taken is not None}
