"""The delay proxy: late by what was asked for, otherwise as if it were not there."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from benchmarks.delay_proxy import DelayProxy
from dist_eval.process.ports import free_ports

HOST = "127.0.0.1"
ROUND_TRIP = 0.08


@pytest.fixture
def echo_port() -> Iterator[int]:
    """A server that sends everything back, and ends its side when the client has ended its own."""

    def serve(connection: socket.socket) -> None:
        with connection:
            while data := connection.recv(1 << 16):
                connection.sendall(data)

    def accept() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(connection,), daemon=True).start()

    with socket.create_server((HOST, 0)) as server:
        threading.Thread(target=accept, daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)


@contextmanager
def delayed(routes: list[tuple[int, int]]) -> Iterator[DelayProxy]:
    with DelayProxy(routes) as proxy:
        proxy.set_round_trip(ROUND_TRIP)
        yield proxy


def connect(port: int) -> socket.socket:
    """Connects to the proxy, which listens a moment after it has started."""
    deadline = time.monotonic() + 10
    while True:
        try:
            return socket.create_connection((HOST, port), timeout=30)
        except ConnectionRefusedError:
            assert time.monotonic() < deadline
            time.sleep(0.02)


def ask(connection: socket.socket, question: bytes) -> bytes:
    connection.sendall(question)
    answer = b""
    while len(answer) < len(question):
        chunk = connection.recv(1 << 16)
        assert chunk, "the connection ended"
        answer += chunk
    return answer


def round_trips(port: int, count: int) -> list[float]:
    seconds = []
    with connect(port) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for number in range(count):
            start = time.monotonic()
            assert ask(connection, f"ping {number}".encode()) == f"ping {number}".encode()
            seconds.append(time.monotonic() - start)
    return seconds


def test_a_round_trip_takes_as_long_as_asked_for(echo_port: int) -> None:
    [port] = free_ports(HOST, 1)
    with delayed([(port, echo_port)]):
        seconds = round_trips(port, 10)
    assert min(seconds) >= ROUND_TRIP


def test_the_delay_can_change_while_a_connection_is_open(echo_port: int) -> None:
    [port] = free_ports(HOST, 1)
    seconds = []
    with DelayProxy([(port, echo_port)]) as proxy, connect(port) as connection:
        for round_trip in (0.0, 0.3, 0.1):
            proxy.set_round_trip(round_trip)
            start = time.monotonic()
            ask(connection, b"ping")
            seconds.append(time.monotonic() - start)
    assert seconds[2] >= 0.1
    assert seconds[1] >= 0.3


def test_data_arrive_whole_and_in_order_and_are_not_slowed_down_by_their_amount(echo_port: int) -> None:
    [port] = free_ports(HOST, 1)
    data = os.urandom(32 << 20)
    with delayed([(port, echo_port)]), connect(port) as connection:
        sender = threading.Thread(target=lambda: (connection.sendall(data), connection.shutdown(socket.SHUT_WR)))
        start = time.monotonic()
        sender.start()
        received = bytearray()
        while chunk := connection.recv(1 << 20):
            received += chunk
        seconds = time.monotonic() - start
        sender.join()
    assert received == data
    assert seconds < 30, "a window of 64 KiB for each round trip would need 40 s"


def test_connections_do_not_wait_for_each_other(echo_port: int) -> None:
    ports = free_ports(HOST, 2)
    with delayed([(port, echo_port) for port in ports]):
        threads = [threading.Thread(target=round_trips, args=(port, 3)) for port in ports * 8]
        start = time.monotonic()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert time.monotonic() - start < 40 * ROUND_TRIP, "one after the other they would need 48 round trips"


def test_it_listens_only_once_its_target_does_and_ends_connections_when_it_is_gone() -> None:
    port, target = free_ports(HOST, 2)
    with delayed([(port, target)]):
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((HOST, port), timeout=1)
        with socket.create_server((HOST, target)):
            connect(port).close()
        with connect(port) as connection:
            assert connection.recv(1) == b""


def test_a_port_that_is_taken_is_an_error(echo_port: int, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(OSError, match="has ended"), DelayProxy([(echo_port, echo_port)]):
        pass
    assert "in use" in capfd.readouterr().err


def test_it_ends_with_its_context(echo_port: int) -> None:
    [port] = free_ports(HOST, 1)
    with delayed([(port, echo_port)]):
        pass
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((HOST, port), timeout=1)
