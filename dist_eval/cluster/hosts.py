"""`python -m dist_eval.cluster.hosts HOST HOST...`: which of several hosts this one is, and how the others reach it.

For scripts that start torchrun on several hosts. Host names alone are not enough: many resolve their own name to a
loopback address, which is a different host everywhere else. Independent of runs; imports no large library.
"""

from __future__ import annotations

import argparse
import ipaddress
import socket
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from dist_eval.errors import EvaluationError, RunError
from dist_eval.process.output import run_program

_ELSEWHERE = "192.0.2.1"
"""An address that no host has (RFC 5737): its route is the default route."""

Interfaces = Mapping[str, Sequence[str]]
"""IP addresses by the name of the network interface."""


@dataclass(frozen=True)
class Place:
    """Which host this one is.

    Attributes:
        node_rank: its position in the list of hosts; the first one, 0, hosts the rendezvous.
        address: the IP address at which the others reach it.
        interface: the network interface with that address.
        head: IP address of the first host.
    """

    node_rank: int
    address: str
    interface: str
    head: str


def is_loopback(address: str) -> bool:
    """Returns whether an IP address is a loopback address."""
    return ipaddress.ip_address(address).is_loopback


def interfaces() -> dict[str, list[str]]:
    """Returns the interfaces of this host that are up, with their IP addresses except link-local ones."""
    import psutil

    up = {name for name, state in psutil.net_if_stats().items() if state.isup}
    found: dict[str, list[str]] = {}
    for name, entries in psutil.net_if_addrs().items():
        numbers = [e.address for e in entries if e.family in (socket.AF_INET, socket.AF_INET6)]
        usable = [number for number in numbers if not ipaddress.ip_address(number.split("%")[0]).is_link_local]
        if name in up and usable:
            found[name] = usable
    return found


def resolve(name: str) -> list[str]:
    """Returns the IP addresses to which a host's name resolves here, none if it is unknown."""
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except OSError:
        return []
    return list(dict.fromkeys(str(entry[4][0]).split("%")[0] for entry in found))


def interface_of(address: str, local: Interfaces) -> str | None:
    """Returns the interface that has an address, None if this host does not have it."""
    return next((name for name, addresses in local.items() if address in addresses), None)


def address_towards(target: str) -> str | None:
    """Returns the source address of packets from this host to another one, None if there is no route to it.

    Nothing is sent: only the routing table is consulted.

    Args:
        target: an IP address.
    """
    family = socket.AF_INET6 if ipaddress.ip_address(target).version == 6 else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as one:
            one.connect((target, 9))
            return str(one.getsockname()[0])
    except OSError:
        return None


def address_among(head: str, local: Interfaces, addresses_of: Callable[[str], Sequence[str]] = resolve) -> str | None:
    """Returns the address at which the other hosts of a group reach this one, if its name resolves to loopback.

    Args:
        head: name or IP address of the host of the rendezvous.
        local: the interfaces of this host.
        addresses_of: resolves a name to IP addresses.

    Returns:
        The address of this host towards the head. On the head itself, whose name resolves to loopback, its only
        address, or that of the default route; None if it has none.
    """
    targets = [target for target in addresses_of(head) if not is_loopback(target)]
    candidates = [address for addresses in outward(local).values() for address in addresses]
    if targets:
        return address_towards(targets[0])
    return candidates[0] if len(candidates) == 1 else address_towards(_ELSEWHERE) if candidates else None


def find_place(
    hosts: Sequence[str], local: Interfaces, addresses_of: Callable[[str], Sequence[str]] = resolve
) -> Place:
    """Finds this host in a list of hosts.

    Args:
        hosts: names or IP addresses, in the same order on all hosts.
        local: the interfaces of this host.
        addresses_of: resolves a name to IP addresses.

    Returns:
        Its position and its address.

    Raises:
        RunError: it is not in the list, or more than once, or a name does not resolve, or resolves to loopback.
    """
    found = {host: list(addresses_of(host)) for host in hosts}
    for host, addresses in found.items():
        if not addresses:
            raise RunError(f"The host {host} is unknown here: give its IP address instead.")
        if len(hosts) > 1 and all(map(is_loopback, addresses)):
            raise RunError(
                f"Here the name {host} resolves to {addresses[0]}, which is another host everywhere else: give its IP "
                f"address instead. This host has {_listed(local)}."
            )
    mine = [
        (number, address)
        for number, host in enumerate(hosts)
        for address in [a for a in found[host] if interface_of(a, local)][:1]
    ]
    if not mine:
        raise RunError(f"This host is none of {', '.join(hosts)}: it has {_listed(local)}.")
    if len(mine) > 1:
        raise RunError(f"This host is in the list more than once: {', '.join(hosts[number] for number, _ in mine)}.")
    (number, address), head = mine[0], found[hosts[0]]
    if number:
        head = [a for a in head if not is_loopback(a)]
    return Place(number, address, str(interface_of(address, local)), address if number == 0 else head[0])


def _listed(local: Interfaces) -> str:
    outward = [f"{a} ({name})" for name, addresses in local.items() for a in addresses if not is_loopback(a)]
    return ", ".join(outward) or "no address but loopback"


def outward(local: Interfaces) -> dict[str, list[str]]:
    """Returns the interfaces, and their addresses, at which other hosts may reach this one."""
    reachable = {name: [a for a in addresses if not is_loopback(a)] for name, addresses in local.items()}
    return {name: addresses for name, addresses in reachable.items() if addresses}


def main(arguments: Iterable[str] | None = None) -> int:
    """Prints this host's position and addresses, in one line that a shell can `read`.

    Returns:
        The exit status: 1 if they cannot be determined.
    """
    parser = argparse.ArgumentParser(
        prog="python -m dist_eval.cluster.hosts",
        description="Finds this host in a list of hosts. Prints four words: its number in the list, its address, the "
        "network interface with that address, and the address of the first host.",
        allow_abbrev=False,
    )
    parser.add_argument("hosts", nargs="+", metavar="HOST", help="all hosts, in the same order on each of them")
    hosts = parser.parse_args(None if arguments is None else list(arguments)).hosts
    try:
        place = find_place(hosts, interfaces())
    except EvaluationError as error:
        print(f"dist_eval.cluster.hosts: {error}", file=sys.stderr)
        return 1
    print(place.node_rank, place.address, place.interface, place.head)
    return 0


if __name__ == "__main__":
    run_program(main)
