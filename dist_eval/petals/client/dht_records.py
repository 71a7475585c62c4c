"""Reads a swarm's DHT: which servers hold which blocks, and which models are served.

A server of Petals (2.2.0 and main, `petals.utils.dht` and `petals.server.server`) stores a record for each of its
blocks, under the key `PREFIX.BLOCK` with its peer id as subkey; its model is under `_petals.models`, with the prefix as
subkey. hivemind stores any bytes under any subkey, for anyone. So records are decoded safely, and implausible ones are
dropped and counted (`announcements`).
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from dist_eval.errors import SwarmError
from dist_eval.petals.client.announcements import (
    MOST_BLOCKS,
    Implausible,
    ServerRecord,
    read_model,
    read_server,
    unpack,
)

_MODELS = "_petals.models"
_DICTIONARY = 0x50  # hivemind's extension of msgpack for a value with subkeys
_MOST_MODELS, _MOST_SERVERS = 50, 500
_SHA256, _IDENTITY = b"\x12\x20", 0x00  # kinds of hashes in a peer id
_LONGEST_KEY = 42  # bytes of a public key that a peer id contains unhashed


class AnnouncedSpan(NamedTuple):
    """Consecutive blocks that a server announces."""

    peer: str  # the server's peer id
    start: int  # first block
    end: int  # one past the last block
    server: ServerRecord  # the rest of its announcement


class BlockRecords(NamedTuple):
    """The announcements for a model's blocks."""

    blocks: Sequence[Mapping[str, ServerRecord]]  # for each block, the records of its servers by peer id
    dropped: Counter[str]  # how many implausible records were dropped, by reason

    def spans(self) -> list[AnnouncedSpan]:
        """Returns the blocks of each server, by first block.

        A server's records may be of different ages. The record with the highest state counts, and among these that of
        the first block. If it does not name the server's blocks, the consecutive blocks with the same state count.
        """
        firsts: dict[str, int] = {}
        for block, records in enumerate(self.blocks):
            for peer, record in records.items():
                if peer not in firsts or record.is_above(self.blocks[firsts[peer]][peer]):
                    firsts[peer] = block
        spans = [self._span(peer, block) for peer, block in firsts.items()]
        return sorted(spans, key=lambda span: (span.start, span.end, span.peer))

    def _span(self, peer: str, block: int) -> AnnouncedSpan:
        record, end = self.blocks[block][peer], block + 1
        if record.start_block is not None and record.end_block is not None:
            return AnnouncedSpan(peer, record.start_block, min(record.end_block, len(self.blocks)), record)
        while end < len(self.blocks) and (other := self.blocks[end].get(peer)) and other.state == record.state:
            end += 1
        return AnnouncedSpan(peer, block, end, record)


class Models(NamedTuple):
    """The announced models."""

    blocks: dict[str, int]  # number of blocks by DHT prefix
    dropped: Counter[str]  # how many implausible or excess records were dropped, by reason


def read_blocks(dht: Any, dht_prefix: str, num_blocks: int, timeout: float) -> BlockRecords:
    """Reads the announcements for a model's blocks from a running `hivemind.DHT`.

    Raises `SwarmError` if the swarm does not answer within `timeout` seconds.
    """
    keys = [f"{dht_prefix}.{block}" for block in range(min(num_blocks, MOST_BLOCKS))]
    records = _look_up(dht, functools.partial(_servers, keys), timeout, f"which servers hold {dht_prefix}")
    return BlockRecords([*records.blocks, *({} for _ in range(num_blocks - len(keys)))], records.dropped)


def read_block(dht: Any, dht_prefix: str, block: int, timeout: float) -> Mapping[str, ServerRecord]:
    """Reads the announcements for one block, by peer id; see `read_blocks`."""
    look = functools.partial(_servers, [f"{dht_prefix}.{block}"], first=block)
    return _look_up(dht, look, timeout, f"which servers hold block {block} of {dht_prefix}").blocks[0]


def read_models(dht: Any, timeout: float) -> Models:
    """Reads which models a swarm serves; models whose prefix begins with `_` are not announced."""
    return _look_up(dht, _models, timeout, "which models it serves")


def plausible_servers(found: Sequence[Sequence[tuple[Any, Any]]], first: int = 0) -> BlockRecords:
    """Selects the plausible records of consecutive blocks from `first` on."""
    blocks: list[dict[str, ServerRecord]] = []
    dropped: Counter[str] = Counter()
    for block, values in enumerate(found, first):
        records: dict[str, ServerRecord] = {}
        for peer, value in values:
            if not is_peer_id(peer):
                dropped["a record has an invalid peer id"] += 1
                continue
            try:
                record = read_server(value, block)
            except Implausible as error:
                dropped[f"...{peer[-8:]}: {error}"] += 1
                continue
            if len(records) < _MOST_SERVERS:  # the oldest come first
                records[peer] = record
            else:
                dropped[f"more than {_MOST_SERVERS} servers announce a block"] += 1
        blocks.append(records)
    return BlockRecords(blocks, dropped)


def plausible_models(found: Sequence[tuple[Any, Any]]) -> Models:
    """Selects the plausible records of models."""
    blocks: dict[str, int] = {}
    dropped: Counter[str] = Counter()
    for prefix, value in found:
        try:
            name, count = read_model(prefix, value)
        except Implausible as error:
            dropped[str(error)] += 1
            continue
        if len(blocks) < _MOST_MODELS:
            blocks[name] = count
        else:
            dropped[f"more than {_MOST_MODELS} models are announced"] += 1
    return Models(blocks, dropped)


@functools.lru_cache(maxsize=10_000)
def is_peer_id(text: Any) -> bool:
    """Whether this is a canonical peer id of libp2p: base58 of a SHA-256 hash or a short public key."""
    from hivemind.p2p import PeerID

    if not isinstance(text, str) or not 40 <= len(text) <= 64:
        return False
    try:
        peer = PeerID.from_base58(text)
    except ValueError:
        return False
    name = peer.to_bytes()
    is_hash = name[:2] == _SHA256 and len(name) == 34
    is_key = len(name) > 2 and name[0] == _IDENTITY and name[1] == len(name) - 2 <= _LONGEST_KEY
    return (is_hash or is_key) and peer.to_base58() == text


class SafeSerializer:
    """Replaces hivemind's serializer where a node reads what others have stored.

    With hivemind's, a record that cannot be decoded makes a look-up hang, a deeply nested one ends the process, and
    comparing subkeys of different types fails.
    """

    @staticmethod
    def dumps(value: Any) -> bytes:
        """Encodes a value as hivemind does."""
        from hivemind.utils.serializer import MSGPackSerializer

        return MSGPackSerializer.dumps(value)

    @staticmethod
    def loads(packed: bytes) -> Any:
        """Decodes a value, or a node's dictionary of values of a key; None if that fails."""
        return unpack(packed, extensions={_DICTIONARY: _dictionary})


def _dictionary(packed: bytes) -> Any:
    from hivemind.dht.storage import DictionaryDHTValue

    _, _, items = unpack(packed)
    found = DictionaryDHTValue()
    with found.freeze():
        for subkey, value, expires in items:
            name = subkey if isinstance(subkey, str) else f"({type(subkey).__name__})"  # not a peer id: dropped later
            is_value = isinstance(value, bytes) and isinstance(expires, float) and math.isfinite(expires)
            found.store(name, value if is_value else b"", expires if is_value else 0.0)
    return found


def _look_up(dht: Any, look: Any, timeout: float, what: str) -> Any:
    future = dht.run_coroutine(functools.partial(look, timeout), return_future=True)
    try:
        found = future.result(timeout + 1.0)
    except concurrent.futures.TimeoutError:
        found = None
    if found is None:
        raise SwarmError(f"The swarm did not answer within {timeout:g} s {what}.")
    return found


async def _servers(keys: Sequence[str], timeout: float, _dht: Any, node: Any, first: int = 0) -> BlockRecords | None:
    found = await _values(keys, timeout, node)
    return None if found is None else plausible_servers(found, first)


async def _models(timeout: float, _dht: Any, node: Any) -> Models | None:
    found = await _values([_MODELS], timeout, node)
    return None if found is None else plausible_models(found[0])


async def _values(keys: Sequence[str], timeout: float, node: Any) -> list[list[tuple[Any, Any]]] | None:
    """Returns the subkeys and values of each key, None if there is no answer in time. Runs in a node's process."""
    node.protocol.serializer = SafeSerializer
    get = node.get_many(keys, math.inf, num_workers=min(len(keys), node.num_workers))
    try:
        found = await asyncio.wait_for(get, timeout)
    except asyncio.TimeoutError:
        return None
    return [_entries(found[key]) for key in keys]


def _entries(found: Any) -> list[tuple[Any, Any]]:
    from hivemind.utils.timed_storage import ValueWithExpiration

    if found is None:
        return []
    values = found.value.items() if isinstance(found.value, dict) else []
    if not values or not all(isinstance(item, ValueWithExpiration) for _, item in values):
        return [(None, found.value)]  # a value stored without subkeys, which may itself be a dictionary
    return [(subkey, item.value) for subkey, item in values]
