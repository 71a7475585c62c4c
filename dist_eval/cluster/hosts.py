"""`python -m dist_eval.cluster.hosts HOST HOST...`: which of several hosts this one is, and how the others reach it.

For scripts that start torchrun on several hosts. Host names alone are not enough: many resolve their own name to a
loopback address, which is a different host everywhere else. Independent of runs; imports no large library.
"""

from __future__ import annotations

import ipaddress
import socket
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from dist_eval.errors import RunError
from dist_eval.process.programs import ArgumentParser, run_program

_ELSEWHERE = "192.0.2.1"  # an address that no host has (RFC 5737): its route is the default route

# IP addresses by the name of the network interface
Interfaces = Mapping[str, Sequence[str]]


class Place(NamedTuple):
    """Which host this one is."""

    node_rank: int  # its position in the list of hosts; the first one, 0, hosts the rendezvous
    address: str  # the IP address at which the others reach it
    interface: str  # the network interface with that address
    head: str  # IP address of the first host


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
    """Returns the interfaces, and their addresses, at which other hosts may reach this one."""
    reachable = {name: [text for text in addresses if not is_loopback(text)] for name, addresses in local.items()}
    return {name: addresses for name, addresses in reachable.items() if addresses}


def resolve(name: str) -> list[str]:
    """Returns the IP addresses to which a host's name resolves here, none if it is unknown."""
    try:
        entries = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except OSError:
        return []
    return list(dict.fromkeys(str(entry[4][0]).split("%")[0] for entry in entries))


def interface_of(address: str, local: Interfaces) -> str | None:
    """Returns the interface that has an address, None if this host does not have it."""
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
    """Returns the address at which the other hosts of a group reach this one, if its name resolves to loopback.

    Args:
        head: name or IP address of the host of the rendezvous.
        local: the interfaces of this host.

    Returns:
        The address of this host towards the head. On the head itself, whose name resolves to loopback, its only
        address, or that of the default route; None if it has none.
    """
    targets = [address for address in resolve(head) if not is_loopback(address)]
    if targets:
        return address_towards(targets[0])
    candidates = [address for addresses in outward(local).values() for address in addresses]
    return candidates[0] if len(candidates) == 1 else address_towards(_ELSEWHERE) if candidates else None


def find_place(hosts: Sequence[str], local: Interfaces) -> Place:
    """Finds this host in a list of hosts."""
    has = [f"{text} ({name})" for name, addresses in outward(local).items() for text in addresses]
    this_host = ", ".join(has) or "no address but loopback"
    resolved = {host: resolve(host) for host in hosts}
    for host, addresses in resolved.items():
        if not addresses:
            raise RunError(f"The host {host} is unknown here: give its IP address instead.")
        if len(hosts) > 1 and all(map(is_loopback, addresses)):
            raise RunError(
                f"Here the name {host} resolves to {addresses[0]}, which is another host everywhere else: give its IP "
                f"address instead. This host has {this_host}."
            )
    own = {host: [text for text in addresses if interface_of(text, local)] for host, addresses in resolved.items()}
    mine = [node_rank for node_rank, host in enumerate(hosts) if own[host]]
    if not mine:
        raise RunError(f"This host is none of {', '.join(hosts)}: it has {this_host}.")
    if len(mine) > 1:
        raise RunError(f"This host is in the list more than once: {', '.join(hosts[number] for number in mine)}.")
    address = own[hosts[mine[0]]][0]
    head = address if mine[0] == 0 else next(text for text in resolved[hosts[0]] if not is_loopback(text))
    return Place(mine[0], address, str(interface_of(address, local)), head)


def main(arguments: Iterable[str] | None = None) -> int:
    """Prints this host's place in one line that a shell can `read`; returns 1 if it cannot be determined."""
    parser = ArgumentParser(
        prog="python -m dist_eval.cluster.hosts",
        description="Finds this host in a list of hosts. Prints four words: its number in the list, its address, the "
        "network interface with that address, and the address of the first host.",
        allow_abbrev=False,
    )
    parser.add_argument("hosts", nargs="+", metavar="HOST", help="all hosts, in the same order on each of them")
    hosts = parser.parse_args(None if arguments is None else list(arguments)).hosts
    try:
        print(*find_place(hosts, interfaces()))
    except RunError as error:
        print(f"dist_eval.cluster.hosts: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    run_program(main)
