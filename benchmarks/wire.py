"""Hosts on one machine with a slow network between them: network namespaces, and a program that passes packets on.

`Wire` starts that program (`python -m benchmarks.wire SECONDS RATE NAMESPACE...`). Each host has an interface (a TUN
device) that it reads from and writes to: packets arrive after a delay, and each host sends and receives at a limited
rate. So TCP's own windows and congestion control are active, as on a real network, and no packets are lost. Packets
have 65,000 bytes, as segmentation offload hands them to a network card. Needs root, iproute2 and TUN.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import select
import struct
import subprocess
import sys
import time
import uuid
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from dist_eval.process.lifetime import die_with_parent

_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
_MTU, _READY = 65_000, "ready"
_BUFFERS = "4096 1048576 67108864"  # so that one connection can have all that is under way in flight
_ROOT = Path(__file__).parents[1]


class Wire:
    """Several hosts, as a context manager.

    Args:
        hosts: number of hosts.
        round_trip: between any two of them, in seconds.
        rate: maximum number of bytes per second that each sends, and receives.
    """

    def __init__(self, hosts: int, round_trip: float, rate: float) -> None:
        prefix = f"w{uuid.uuid4().hex[:6]}"
        self.names = [f"{prefix}-{number}" for number in range(hosts)]
        self._delay, self._rate = round_trip / 2, rate
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Wire:
        try:
            for name in self.names:
                run_ip("netns", "add", name)
            command = [sys.executable, "-m", "benchmarks.wire", str(self._delay), str(self._rate), *self.names]
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=_ROOT)
            assert self._process.stdout is not None
            if self._process.stdout.readline().strip() != _READY:
                raise OSError("The wire has ended; its reason is above.")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)

    def address(self, host: int) -> str:
        """Returns the IP address of a host."""
        return address_of(host)

    def command(self, host: int) -> list[str]:
        """Returns the words before a command that is to run on a host."""
        return ["ip", "netns", "exec", self.names[host]]

    def enter(self, host: int) -> None:
        """Moves this thread, and all processes and threads that it starts later, to a host."""
        with open(f"/run/netns/{self.names[host]}") as namespace:
            if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), 0):
                raise OSError(ctypes.get_errno(), f"cannot enter the namespace {self.names[host]}")


class Loopback:
    """This machine in place of several hosts, with the interface of `Wire`."""

    def __enter__(self) -> Loopback:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def address(self, host: int) -> str:
        """Returns the loopback address."""
        return "127.0.0.1"

    def command(self, host: int) -> list[str]:
        """Returns no words: the command runs here."""
        return []

    def enter(self, host: int) -> None:
        """Does nothing."""


def address_of(host: int) -> str:
    """Returns the IP address of a host."""
    return f"10.94.0.{host + 1}"


def run_ip(*words: str) -> None:
    """Runs iproute2's `ip`."""
    done = subprocess.run(["ip", *words], capture_output=True, text=True)
    if done.returncode:
        raise OSError(f"ip {' '.join(words)}: {done.stderr.strip()}")


def _plug_in(host: int, namespace: str) -> int:
    """Gives a host its interface, and returns the file with the packets that it sends."""
    tun, name = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK), f"wire{os.getpid()}-{host}"
    fcntl.ioctl(tun, _TUNSETIFF, struct.pack("16sH", name.encode(), _IFF_TUN | _IFF_NO_PI))
    run_ip("link", "set", "dev", name, "mtu", str(_MTU), "txqueuelen", "2000", "netns", namespace)
    run_ip("-n", namespace, "address", "add", f"{address_of(host)}/24", "dev", name)
    for link in ("lo", name):
        run_ip("-n", namespace, "link", "set", "dev", link, "up")
    for buffers in ("rmem", "wmem"):
        setting = ["sysctl", "-qw", f"net.ipv4.tcp_{buffers}={_BUFFERS}"]
        subprocess.run(["ip", "netns", "exec", namespace, *setting], check=True)
    return tun


def _pass_on(tuns: Sequence[int], delay: float, rate: float) -> None:
    sent_until = [0.0] * len(tuns)
    received_until = [0.0] * len(tuns)
    under_way: list[deque[tuple[float, bytes]]] = [deque() for _ in tuns]
    poll, host_of = select.poll(), {tun: host for host, tun in enumerate(tuns)}
    for tun in tuns:
        poll.register(tun, select.POLLIN)
    while True:
        due = min((packets[0][0] for packets in under_way if packets), default=None)
        timeout = None if due is None else max(0.0, 1000 * (due - time.monotonic()))
        for tun, _ in poll.poll(timeout):
            packet = os.read(tun, _MTU)
            sender, receiver = host_of[tun], packet[19] - 1  # the last byte of the receiver's address
            if packet[0] >> 4 != 4 or receiver >= len(tuns):
                continue
            seconds = len(packet) / rate
            sent_until[sender] = max(sent_until[sender], time.monotonic()) + seconds
            received_until[receiver] = max(received_until[receiver] + seconds, sent_until[sender])
            under_way[receiver].append((received_until[receiver] + delay, packet))
        now = time.monotonic()
        for receiver, packets in enumerate(under_way):
            while packets and packets[0][0] <= now:
                os.write(tuns[receiver], packets.popleft()[1])


def main() -> None:
    """Runs the wire until it is killed."""
    die_with_parent()
    tuns = [_plug_in(host, namespace) for host, namespace in enumerate(sys.argv[3:])]
    print(_READY, flush=True)
    _pass_on(tuns, float(sys.argv[1]), float(sys.argv[2]))


if __name__ == "__main__":
    main()
