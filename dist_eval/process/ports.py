"""Free ports of this host."""

from __future__ import annotations

import contextlib
import ipaddress
import random
import socket

from dist_eval.errors import RunError

_PORTS = range(12_000, 32_000)


def free_ports(host: str, count: int) -> list[int]:
    """Finds distinct ports that are currently free.

    They are not reserved, and a server takes seconds to bind one. So they are below the ephemeral ports, where another
    process is much less likely to bind one first.
    """
    family = socket.AF_INET6 if ipaddress.ip_address(host).version == 6 else socket.AF_INET
    found: list[int] = []
    for port in random.sample(_PORTS, len(_PORTS)):
        with socket.socket(family) as one, contextlib.suppress(OSError):
            one.bind((host, port))
            found.append(port)
        if len(found) == count:
            return found
    raise RunError(f"{host} has fewer than {count} free ports from {_PORTS.start} to {_PORTS.stop - 1}.")
