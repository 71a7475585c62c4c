"""Records that a stranger may leave in a swarm's DHT."""

from __future__ import annotations

import time
from typing import Any

import base58
import msgpack
from hypothesis import strategies as st

from dist_eval.petals.client.announcements import ServerRecord

anything = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12) | st.binary(), inner, max_size=4),
    max_leaves=12,
)
"""What msgpack can pack."""

fields = st.fixed_dictionaries({}, optional=dict.fromkeys([*ServerRecord.model_fields, "next_pings"], anything))
records = anything | st.tuples(st.sampled_from([0, 1, 2]) | anything, st.floats() | anything, fields | anything)
"""What may be in the place of a server's record."""


def peer_id(number: int) -> str:
    return base58.b58encode(b"\x12\x20" + number.to_bytes(32, "big")).decode()


def nested(levels: int) -> bytes:
    """A tuple of a tuple of ..., as hivemind packs it: following 250 levels ends the process with SIGSEGV."""
    packed: bytes = msgpack.packb([1])
    for _ in range(levels):
        packed = b"\x91" + msgpack.packb(msgpack.ExtType(0x40, packed))
    return packed


def attack(prefix: str) -> list[tuple[str, Any, bytes]]:
    """Keys, subkeys and values, each of which would have ended a run or a look-up."""
    plain = {"start_block": 0, "end_block": 4}
    servers = [
        ("", [2, 1.0, plain]),
        ("../../x", [2, 1.0, plain]),
        ("Q" * 300, [2, 1.0, plain]),
        (7, [2, 1.0, plain]),
        (peer_id(1), [2, 1.0, {**plain, "version": "9" * 5000}]),
        (peer_id(2), [2, 1.0, {"start_block": 0, "end_block": 0}]),
        (peer_id(3), [2, 1.0, {**plain, "end_block": 300_000_000}]),
        (peer_id(4), [2, 1.0, {**plain, "forward_rps": 1e300}]),
        (peer_id(5), 5),
    ]
    models = [("huge", {"num_blocks": 300_000_000}), ("\x1b[2J", {"num_blocks": 4}), ("none", [4])]
    return [
        *((f"{prefix}.1", subkey, msgpack.packb(value)) for subkey, value in servers),
        (f"{prefix}.1", peer_id(6), nested(900)),
        (f"{prefix}.1", peer_id(7), b"\xc1"),
        *(("_petals.models", name, msgpack.packb(value)) for name, value in models),
    ]


async def store(found: list[tuple[str, Any, bytes]], _dht: Any, node: Any) -> list[bool]:
    """Stores them at all nodes that a node knows; runs in its process."""
    from hivemind.dht.routing import DHTID

    peers = list(node.protocol.routing_table.peer_id_to_uid)
    stored = []
    for number, (key, subkey, value) in enumerate(found):
        until = time.time() + 600.0 + number
        for peer in peers:
            stored += await node.protocol.call_store(peer, [DHTID.generate(key)], [value], until, [subkey]) or [False]
    return stored
