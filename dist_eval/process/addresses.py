"""This host's interfaces and addresses, and how other hosts reach it."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Mapping, Sequence

_ELSEWHERE = "192.0.2.1"  # an address reserved for documentation (RFC 5737); its route is the default route

Interfaces = Mapping[str, Sequence[str]]
"""IP addresses by the name of the network interface."""


def is_loopback(address: str) -> bool:
    """Returns whether an IP address is a loopback address."""
    return ipaddress.ip_address(address).is_loopback


def interfaces() -> dict[str, list[str]]:
    """Returns the interfaces of this host that are up, with their IP addresses except link-local ones."""
    import psutil

    states, found = psutil.net_if_stats(), {}
    for name, entries in psutil.net_if_addrs().items():
        addresses = [entry.address for entry in entries if entry.family in (socket.AF_INET, socket.AF_INET6)]
        usable = [text for text in addresses if not ipaddress.ip_address(text.split("%")[0]).is_link_local]
        if usable and name in states and states[name].isup:
            found[name] = usable
    return found


def outward(local: Interfaces) -> dict[str, list[str]]:
    """Returns the interfaces and addresses that other hosts may reach."""
    reachable = {name: [text for text in addresses if not is_loopback(text)] for name, addresses in local.items()}
    return {name: addresses for name, addresses in reachable.items() if addresses}


def resolve(name: str) -> list[str]:
    """Returns the IP addresses of a host's name; none if it is unknown."""
    try:
        entries = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except OSError:
        return []
    return list(dict.fromkeys(str(entry[4][0]).split("%")[0] for entry in entries))


def interface_of(address: str, local: Interfaces) -> str | None:
    """Returns the interface with an address, None if this host does not have it."""
    return next((name for name, addresses in local.items() if address in addresses), None)


def address_towards(target: str) -> str | None:
    """Returns the source address of packets from this host to an IP address, None without a route; sends nothing."""
    family = socket.AF_INET6 if ipaddress.ip_address(target).version == 6 else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((target, 9))  # only consults the routing table
            return str(probe.getsockname()[0])
    except OSError:
        return None


def address_among(head: str, local: Interfaces) -> str | None:
    """Returns the address where other hosts of a group reach this one, if its name resolves to loopback.

    It is the address towards `head`, the name or IP address of the host of the rendezvous. On the head itself, whose
    name resolves to loopback, it is the only address, or that of the default route; None if there is none.
    """
    targets = [address for address in resolve(head) if not is_loopback(address)]
    if targets:
        return address_towards(targets[0])
    candidates = [address for addresses in outward(local).values() for address in addresses]
    return candidates[0] if len(candidates) == 1 else address_towards(_ELSEWHERE) if candidates else None
