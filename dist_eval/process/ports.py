"""Ports that are free on this host."""

from __future__ import annotations

import contextlib
import ipaddress
import random
import socket

from dist_eval.errors import RunError

_PORTS = range(12_000, 32_000)


def free_ports(host: str, count: int) -> list[int]:
    """Finds ports that nobody listens on at the moment, all different.

    They are not reserved, and a server takes seconds until it uses one. So they lie below those that the system gives
    to connections: there somebody else is much less likely to be faster, which would show as the server's error.
    """
    found: list[int] = []
    for port in random.sample(_PORTS, len(_PORTS)):
        with socket.socket(_family(host)) as one, contextlib.suppress(OSError):
            one.bind((host, port))
            found.append(port)
        if len(found) == count:
            return found
    raise RunError(f"There are not {count} free ports on {host} from {_PORTS.start} to {_PORTS.stop - 1}.")


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ipaddress.ip_address(host).version == 6 else socket.AF_INET
