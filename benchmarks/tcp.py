"""What plain TCP makes of a link: `python -m benchmarks.tcp listen|connect ADDRESS PORT SECONDS`.

Both ends send as much as they can over one connection, in both directions at the same time; the one that connects
prints the bytes a second that it has received, once the connection had time to get up to speed.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence

_CHUNK, _WARM_UP_SECONDS, _PORT = bytes(1 << 20), 2.0, 5201


def measure_link(listen: Sequence[str], connect: Sequence[str], address: str, seconds: float = 3.0) -> float:
    """Measures a link between two hosts.

    Args:
        listen: the words before a command that runs on the host that listens.
        connect: the same for the other one.
        address: of the host that listens.
        seconds: how long, after a warm-up.

    Returns:
        Bytes a second in each direction.
    """

    def start(*words: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "benchmarks.tcp", *words, address, str(_PORT), str(seconds)]
        side = listen if words[0] == "listen" else connect
        return subprocess.Popen([*side, *command], stdout=subprocess.PIPE, text=True)

    with start("listen") as listener, start("connect") as connector:
        printed, _ = connector.communicate()
        listener.communicate()
    return float(printed)


def main() -> None:
    """Runs one end."""
    side, address, port, seconds = sys.argv[1:]
    if side == "listen":
        with socket.create_server((address, int(port))) as server:
            connection, _ = server.accept()
    else:
        connection = _connected(address, int(port))
    until = time.monotonic() + _WARM_UP_SECONDS + float(seconds)
    thread = threading.Thread(target=_send, args=(connection, until))
    thread.start()
    rate = _receive(connection, until)
    thread.join()
    if side == "connect":
        print(rate)


def _connected(address: str, port: int) -> socket.socket:
    while True:
        try:
            return socket.create_connection((address, port))
        except ConnectionRefusedError:
            time.sleep(0.1)


def _send(connection: socket.socket, until: float) -> None:
    while time.monotonic() < until:
        connection.sendall(_CHUNK)
    connection.shutdown(socket.SHUT_WR)


def _receive(connection: socket.socket, until: float) -> float:
    into, received, began = bytearray(len(_CHUNK)), 0, time.monotonic() + _WARM_UP_SECONDS
    while count := connection.recv_into(into):
        if began <= time.monotonic() < until:
            received += count
    return received / (until - began)


if __name__ == "__main__":
    main()
