"""Emulates a wide-area network on one machine: TCP connections with a fixed delay in each direction.

`DelayProxy` starts a process (`python -m benchmarks.delay_proxy LISTEN:TARGET...`) that forwards bytes after half a
round trip, without limiting the bandwidth. It reads the delay in seconds from stdin, and prints "ready" when a new
delay is in effect. Only data are delayed: connections are accepted at once, which does not matter if they are
long-lived.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import cast

from dist_eval.process.lifetime import die_with_parent

_READY = b"ready\n"
_ROOT = Path(__file__).parents[1]
_HOST = "127.0.0.1"
_EOF = b""
_CLOSE_SECONDS, _POLL_SECONDS = 0.05, 0.1


class DelayProxy:
    """A proxy process, used as a context manager; it ends with the process that started it.

    Args:
        routes: for each port to listen on, the port of the same host to connect to. Until that is open,
            connections are refused.
    """

    def __init__(self, routes: Sequence[tuple[int, int]]) -> None:
        self.routes = list(routes)
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> DelayProxy:
        routes = [f"{listen}:{target}" for listen, target in self.routes]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.delay_proxy", *routes],
            cwd=_ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self.set_round_trip(0.0)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()

    def set_round_trip(self, seconds: float) -> None:
        """Sets the round-trip time; the delay in each direction is half of it.

        Returns when the new delay is in effect for all data received from then on.

        Raises:
            OSError: the proxy has ended; the reason is on stderr.
        """
        assert self._process is not None and self._process.stdin is not None and self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(f"{seconds / 2}\n".encode())
            self._process.stdin.flush()
        if self._process.stdout.readline() != _READY:
            self.__exit__(None, None, None)
            raise OSError(f"The delay proxy has ended (status {self._process.returncode}); its reason is above.")


@dataclass
class _Delay:
    """The delay in each direction."""

    seconds: float = 0.0


class _Endpoint(asyncio.Protocol):
    """One end of a proxied connection: its partner forwards the received data after the delay.

    The amount of data in flight is not limited: the programs at both ends have their own flow control.
    """

    def __init__(self, delay: _Delay) -> None:
        self.delay = delay
        self.partner: _Endpoint | None = None
        self._transport: asyncio.Transport | None = None
        self._in_flight: deque[tuple[float, bytes]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._eof_received = self._eof_sent = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # those of uvloop are not subclasses
        self._deliver()  # data received while this end was connecting

    def data_received(self, data: bytes) -> None:
        if self.partner is not None:
            self.partner.send_later(data)

    def eof_received(self) -> bool:
        self._eof_received = True
        if self.partner is not None:
            self.partner.send_later(_EOF)
        return not self._eof_sent  # the other direction stays open

    def connection_lost(self, error: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self.partner is not None:
            self.partner.close_later()

    def send_later(self, data: bytes) -> None:
        """Sends data, or the end of the stream, once it is due."""
        self._in_flight.append((time.monotonic() + self.delay.seconds, data))
        if self._timer is None:
            self._deliver()

    def close_later(self) -> None:
        """Closes this end after the last data of its partner were forwarded."""
        asyncio.get_running_loop().call_later(self.delay.seconds + _CLOSE_SECONDS, self.close)

    def close(self) -> None:
        """Closes this end."""
        if self._transport is not None:
            self._transport.close()

    def _send_eof(self) -> None:
        assert self._transport is not None
        self._eof_sent = True
        if self._eof_received:
            self._transport.close()
        else:
            self._transport.write_eof()

    def _deliver(self) -> None:
        self._timer = None
        if self._transport is None or self._transport.is_closing():
            return
        now = time.monotonic()
        while self._in_flight and self._in_flight[0][0] <= now:
            _, data = self._in_flight.popleft()
            if data:
                self._transport.write(data)
            else:
                self._send_eof()
        if self._in_flight:  # one timer for each direction, however many chunks are in flight
            self._timer = asyncio.get_running_loop().call_later(self._in_flight[0][0] - now, self._deliver)


class _DelayReader(asyncio.Protocol):
    """Lines on stdin, each with the seconds of delay in a direction."""

    def __init__(self, delay: _Delay) -> None:
        self.delay = delay
        self._unread = b""

    def data_received(self, data: bytes) -> None:
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            self.delay.seconds = float(line)
            sys.stdout.buffer.write(_READY)
            sys.stdout.flush()


async def _serve(routes: Sequence[tuple[int, int]]) -> None:
    """Serves all routes; ports are bound first, so that a port in use fails before anything else starts."""
    delay, listeners = _Delay(), [_bind(listen) for listen, _ in routes]
    await asyncio.get_running_loop().connect_read_pipe(lambda: _DelayReader(delay), sys.stdin)
    targets = [target for _, target in routes]
    await asyncio.gather(*(_serve_route(delay, *route) for route in zip(listeners, targets, strict=True)))


def _bind(port: int) -> socket.socket:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((_HOST, port))
    return listener


async def _serve_route(delay: _Delay, listener: socket.socket, target: int) -> None:
    loop = asyncio.get_running_loop()
    connecting: set[asyncio.Task[None]] = set()

    def accept() -> _Endpoint:
        near, far = _Endpoint(delay), _Endpoint(delay)
        near.partner, far.partner = far, near

        async def connect() -> None:
            try:
                await loop.create_connection(lambda: far, _HOST, target)
            except OSError:  # nothing listens there any more: closes the client's connection
                near.close()

        task = loop.create_task(connect())
        connecting.add(task)
        task.add_done_callback(connecting.discard)
        return near

    while not await _is_open(target):  # until then connections are refused, as by the target itself
        await asyncio.sleep(_POLL_SECONDS)
    server = await loop.create_server(accept, sock=listener)
    await server.serve_forever()


async def _is_open(port: int) -> bool:
    try:
        transport, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, _HOST, port)
    except OSError:
        return False
    transport.close()
    return True


def main() -> None:
    """Runs the proxy until it is killed."""
    die_with_parent()
    routes = []
    for route in sys.argv[1:]:
        listen, _, target = route.partition(":")
        routes.append((int(listen), int(target)))
    with contextlib.suppress(ImportError):
        import uvloop

        uvloop.install()
    asyncio.run(_serve(routes))


if __name__ == "__main__":
    main()
