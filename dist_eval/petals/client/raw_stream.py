"""A connection to the p2p daemon that reads into, and writes from, memory of the caller without copies.

asyncio's streams copy bytes twice when reading and once when writing, so connections are taken over from them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from typing import Any

_AHEAD_BYTES = 1 << 12  # read at once where small fields are expected
_JOINED_BYTES = 1 << 12  # shorter pieces are written together


class RawStream:
    """A connection that reads only on request. Belongs to one event loop.

    The socket is non-blocking; `received` has bytes that were already read from it.
    """

    def __init__(self, connection: socket.socket, received: bytes = b"") -> None:
        # number of bytes read so far; whether a write was interrupted, so nothing more can be written
        self.position, self.is_torn = 0, False
        self._connection, self._loop = connection, asyncio.get_running_loop()
        self._ahead, self._place = memoryview(received), memoryview(bytearray(_AHEAD_BYTES))

    @classmethod
    async def take(cls, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> RawStream:
        """Takes a connection over from asyncio's streams and closes them. All writes must be complete."""
        transport: Any = writer.transport
        try:
            transport.pause_reading()
            reader.feed_eof()  # makes `read` return at once with the bytes received so far
            received = await reader.read()
            transport.pause_reading()  # `read` may have resumed it
            connection = socket.socket(fileno=os.dup(writer.get_extra_info("socket").fileno()))
        finally:
            writer.close()
        connection.setblocking(False)
        return cls(connection, received)

    async def read_into(self, place: memoryview) -> None:
        """Fills memory with the next bytes; raises `EOFError` if the stream ends too early."""
        count = min(len(place), len(self._ahead))
        place[:count] = self._ahead[:count]
        self._ahead = self._ahead[count:]
        self.position += len(place)
        while count < len(place):
            count += await self._receive(place[count:])

    async def read(self, size: int) -> bytes:
        """Returns the next bytes, which should be few; raises `EOFError` if the stream ends too early."""
        while size > len(self._ahead) <= len(self._place) // 2:
            kept = len(self._ahead)
            self._place[:kept] = bytes(self._ahead)
            got = await self._receive(self._place[kept:])
            self._ahead = self._place[: kept + got]
        place = bytearray(size)
        await self.read_into(memoryview(place))
        return bytes(place)

    async def at_end(self) -> bool:
        """Waits for another byte or the end of the stream; returns whether it has ended."""
        try:
            if not self._ahead:
                self._ahead = self._place[: await self._receive(self._place)]
        except EOFError:
            return True
        return False

    def is_quiet(self) -> bool:
        """Whether the other side has neither closed the stream nor sent anything that was not read."""
        try:
            self._connection.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return not self._ahead
        except OSError:
            pass
        return False

    async def discard(self) -> None:
        """Reads until the stream ends, and discards the bytes."""
        with contextlib.suppress(EOFError):
            while True:
                await self._receive(self._place)

    async def write(self, *pieces: bytes | memoryview) -> None:
        """Writes bytes."""
        joined, self.is_torn = b"", True
        for piece in (*pieces, None):
            if piece is not None and len(piece) < _JOINED_BYTES:
                joined += piece
                continue
            if joined:
                await self._loop.sock_sendall(self._connection, joined)
                joined = b""
            if piece is not None:
                await self._loop.sock_sendall(self._connection, piece)
        self.is_torn = False

    def close(self) -> None:
        """Closes the connection; no read or write may be pending."""
        self._connection.close()

    async def _receive(self, place: memoryview) -> int:
        got = await self._loop.sock_recv_into(self._connection, place)
        if not got:
            raise EOFError("the stream ended within a message")
        return got
