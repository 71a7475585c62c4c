"""Streams of messages with tensors, byte for byte in hivemind's format, without copying the contents of tensors.

Each message is a marker, the length of the content, and the content: an `ExpertRequest` or `ExpertResponse` with a part
of a tensor. Another marker precedes an error, which also ends the requests of a stream. Only the protobuf fields that
lead to the bytes of tensors are parsed here; all other fields are collected and left to protobuf.

Strangers may send anything, so a stream is limited in bytes and in everything that takes time or memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from dist_eval.petals.client.payload import MOST_DIMENSIONS, Payload
from dist_eval.petals.client.raw_stream import RawStream

MESSAGE, ERROR = b"\x00", b"\x01"
"""Markers, as in `hivemind.P2P`."""

MOST_TENSORS = 8
"""Most tensors in a message, and in a stream."""

_LENGTH_BYTES = 8
_VARINT, _EIGHT_BYTES, _BYTES, _FOUR_BYTES = 0, 1, 2, 5  # wire types of protobuf fields
_TENSORS, _BUFFER = 2, 1  # field numbers: of tensors in a message, of bytes in a tensor
_MOST_FIELDS, _MOST_FIELD_BYTES = 64, 1 << 17  # in a message, without tensors
_MOST_ERROR_BYTES = 1 << 20
_LEAST_MESSAGE_BYTES = 1 << 10


class MalformedStream(ValueError):
    """Bytes that are not a stream of messages with tensors."""


class PeerError(Exception):
    """An error that a peer sent instead of a message."""


class Arena:
    """Contiguous memory for the tensors of a stream, which may grow to `most` bytes.

    `take` is called when the first bytes arrive; it returns memory to use until it is full, or None.
    """

    def __init__(self, most: int, take: Callable[[], memoryview | None] = lambda: None) -> None:
        self._most, self.used, self._take = most, 0, take  # `used` is in bytes
        self._memory = np.empty(0, np.uint8).data

    def reserve(self, size: int) -> None:
        """Makes room for `size` more bytes, within the limit."""
        if not self._memory:
            self._memory = self._take() or self._memory
        wanted = min(self._most, self.used + size)
        if wanted > len(self._memory):
            larger = np.empty(wanted, np.uint8).data
            larger[: self.used] = self._memory[: self.used]
            self._memory = larger

    def take(self, size: int) -> memoryview:
        """Returns the memory of the next bytes."""
        if self.used + size > self._most:
            raise MalformedStream("a stream with more bytes of tensors than it may have")
        if self.used + size > len(self._memory):
            self.reserve(max(size, self.used))  # at least doubles, so that many parts are rarely copied
        self.used += size
        return self._memory[self.used - size : self.used]

    def between(self, start: int, end: int) -> memoryview:
        """Returns received bytes."""
        return self._memory[start:end]


class _Range(NamedTuple):
    head: Any  # `runtime_pb2.Tensor` without its bytes
    start: int  # in the arena


class TensorReader:
    """Reads the messages of a stream, whose tensors may be split into parts.

    `kind` is the class of the messages, `runtime_pb2.ExpertRequest` or `ExpertResponse`. `allow` is called with the
    length of each message before it is read; it raises if that is too long.
    """

    def __init__(self, stream: RawStream, kind: Any, arena: Arena, allow: Callable[[int], None]) -> None:
        self._stream, self._kind, self._arena, self._allow = stream, kind, arena, allow
        self._ranges: list[_Range] = []
        self._marker, self._size = MESSAGE, 0

    @property
    def payloads(self) -> list[Payload]:
        """The tensors received so far."""
        starts = [one.start for one in self._ranges]
        ends = [*starts, self._arena.used][1:]
        parts = zip(self._ranges, ends, strict=True)
        return [Payload(one.head, self._arena.between(one.start, end)) for one, end in parts]

    async def next(self) -> Any:
        """Reads a message, and returns it without tensors; None at the end of the stream.

        Raises `PeerError` if the peer sent an error (without text, it ends its requests), `MalformedStream` if the
        bytes are not a message, `EOFError` if the stream ends within a message, and any error of `allow` or the
        connection.
        """
        return None if await self.begin() is None else await self.rest()

    async def begin(self) -> int | None:
        """Reads the beginning of a message, and returns how many bytes follow; see `next`."""
        if await self._stream.at_end():
            return None
        self._marker = await self._stream.read(len(MESSAGE))
        self._size = int.from_bytes(await self._stream.read(_LENGTH_BYTES), "big")
        self._allow(self._size)
        return self._size

    async def rest(self) -> Any:
        """Reads the bytes that follow, and returns the message without tensors; see `next`."""
        from hivemind.proto.p2pd_pb2 import RPCError

        if self._marker == ERROR and self._size <= _MOST_ERROR_BYTES:
            raise PeerError(_parsed(RPCError, await self._stream.read(self._size)).message)
        if self._marker != MESSAGE:
            raise MalformedStream("bytes that are not a message")
        fields = _Fields(self._stream, self._stream.position + self._size)
        count = 0
        while (length := await fields.skip_to(_TENSORS)) is not None:
            count += 1
            if count > MOST_TENSORS:
                raise MalformedStream("a message of too many tensors")
            await self._read_part(length)
        return _parsed(self._kind, bytes(fields.collected))

    async def _read_part(self, length: int) -> None:
        from hivemind.proto import runtime_pb2

        fields, start = _Fields(self._stream, self._stream.position + length), self._arena.used
        has_bytes = False
        while (size := await fields.skip_to(_BUFFER)) is not None:
            if has_bytes:
                raise MalformedStream("a tensor with two buffers")
            has_bytes = True
            await self._stream.read_into(self._arena.take(size))
        head = _parsed(runtime_pb2.Tensor, bytes(fields.collected))
        if len(head.size) > MOST_DIMENSIONS:  # their product may take minutes
            raise MalformedStream("a tensor of too many dimensions")
        if head.dtype or not self._ranges:  # only the first part of a tensor has a dtype
            if len(self._ranges) == MOST_TENSORS:
                raise MalformedStream("a stream of too many tensors")
            head.ClearField("chunks")  # not needed
            self._ranges.append(_Range(head, start))
            self._arena.reserve(Payload.size_of(head) - (self._arena.used - start))


class _Fields:
    """Reads the fields of a protobuf message."""

    def __init__(self, stream: RawStream, end: int) -> None:
        self.collected, self._count = bytearray(), 0
        self._stream, self._end = stream, end

    async def skip_to(self, number: int) -> int | None:
        """Collects fields up to the next bytes field of a number; returns its length, None at the end."""
        while self._stream.position < self._end:
            tag = await self._varint()
            kind = tag & 7
            if tag == number << 3 | _BYTES:
                return self._within(await self._varint())
            self._count += 1
            self.collected += varint(tag)
            length = 0
            if kind in (_VARINT, _BYTES):
                value = await self._varint()
                self.collected += varint(value)
                length = value if kind == _BYTES else 0
            elif kind in (_EIGHT_BYTES, _FOUR_BYTES):
                length = 8 if kind == _EIGHT_BYTES else 4
            else:
                raise MalformedStream("a message that cannot be read")
            if self._count > _MOST_FIELDS or len(self.collected) + self._within(length) > _MOST_FIELD_BYTES:
                raise MalformedStream("a message with too much besides its tensors")
            self.collected += await self._stream.read(length)
        return None

    async def _varint(self) -> int:
        value = 0
        for shift in range(0, 64, 7):
            self._within(1)
            (byte,) = await self._stream.read(1)
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise MalformedStream("a message that cannot be read")

    def _within(self, length: int) -> int:
        if self._stream.position + length > self._end:
            raise MalformedStream("a field that is longer than its message")
        return length


def counted_bytes(size: int) -> int:
    """Returns how many bytes a message counts, so that limits in bytes also limit their number."""
    return max(size, _LEAST_MESSAGE_BYTES)


def varint(value: int) -> bytes:
    """Encodes a number as protobuf does."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _parsed(kind: Any, content: bytes) -> Any:
    try:
        return kind.FromString(content)
    except Exception as error:  # any error of protobuf
        raise MalformedStream("a message that cannot be read") from error


async def write_tensors(
    stream: RawStream, payloads: Sequence[Payload], fields: Callable[[bool], tuple[bytes, bytes]], part_bytes: int
) -> None:
    """Writes tensors in parts of at most `part_bytes`, one per message; they must not change meanwhile.

    `fields` returns a message's bytes before and after its part, given whether it is the first message.
    """
    is_first = True
    for payload in payloads:
        for part in _parts(payload, part_bytes):
            await _write_message(stream, [part], *fields(is_first))
            is_first = False


async def write_message(stream: RawStream, payloads: Sequence[Payload], before: bytes, behind: bytes) -> None:
    """Writes a message with whole tensors, and other fields before and after them; see `write_tensors`."""
    await _write_message(stream, [(one.head.SerializeToString(), one.data) for one in payloads], before, behind)


async def _write_message(
    stream: RawStream, parts: Sequence[tuple[bytes, memoryview]], before: bytes, behind: bytes
) -> None:
    pieces: list[bytes | memoryview] = [before]
    for head, data in parts:
        begin = field_begin(_BUFFER, len(data)) if data else b""
        pieces += [field_begin(_TENSORS, len(begin) + len(data) + len(head)) + begin, data, head]
    length = sum(map(len, pieces)) + len(behind)
    await stream.write(MESSAGE + length.to_bytes(_LENGTH_BYTES, "big"), *pieces, behind)


async def write_error(stream: RawStream, message: str | None = None) -> None:
    """Writes an error; without text, it ends the requests of a stream."""
    from hivemind.proto.p2pd_pb2 import RPCError

    content = RPCError(message=message).SerializeToString()
    await stream.write(ERROR + len(content).to_bytes(_LENGTH_BYTES, "big"), content)


def field_begin(number: int, length: int) -> bytes:
    """Returns the tag and length before the bytes of a protobuf field."""
    return varint(number << 3 | _BYTES) + varint(length)


def _parts(payload: Payload, part_bytes: int) -> Iterator[tuple[bytes, memoryview]]:
    """Yields the parts of a tensor as `hivemind.utils.streaming` splits it, each with its serialized head."""
    from hivemind.proto import runtime_pb2

    data = payload.data
    head = runtime_pb2.Tensor(chunks=-(-len(data) // part_bytes))
    head.MergeFrom(payload.head)
    yield head.SerializeToString(), data[:part_bytes]
    for start in range(part_bytes, len(data), part_bytes):
        yield b"", data[start : start + part_bytes]
