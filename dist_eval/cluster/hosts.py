"""`python -m dist_eval.cluster.hosts HOST HOST...`: finds this host in a list, and the address where others reach it.

For scripts that start torchrun on several hosts. Host names alone do not suffice: many hosts resolve their own name to
loopback, which means a different host elsewhere. Independent of runs; imports no large library.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from dist_eval.arguments.commandline import Command, run_command
from dist_eval.arguments.fields import Options, argument
from dist_eval.errors import RunError
from dist_eval.process.addresses import Interfaces, interface_of, interfaces, is_loopback, outward, resolve
from dist_eval.process.programs import COMPLETE, run_program


class Place(NamedTuple):
    """This host's place in a list of hosts."""

    node_rank: int  # position in the list; the first host, 0, hosts the rendezvous
    address: str  # IP address where other hosts reach it
    interface: str  # the network interface with that address
    head: str  # IP address of the first host


def find_place(hosts: Sequence[str], local: Interfaces) -> Place:
    """Finds this host in a list of hosts."""
    has = [f"{text} ({name})" for name, addresses in outward(local).items() for text in addresses]
    this_host = ", ".join(has) or "no address but loopback"
    resolved = {host: resolve(host) for host in hosts}
    for host, addresses in resolved.items():
        if not addresses:
            raise RunError(f"The host name {host} cannot be resolved: give its IP address instead.")
        if len(hosts) > 1 and all(map(is_loopback, addresses)):
            raise RunError(
                f"The host name {host} resolves to {addresses[0]} here, which means a different host elsewhere: give "
                f"its IP address instead. This host has {this_host}."
            )
    own = {host: [text for text in addresses if interface_of(text, local)] for host, addresses in resolved.items()}
    mine = [node_rank for node_rank, host in enumerate(hosts) if own[host]]
    if not mine:
        raise RunError(f"This host is not in the list {', '.join(hosts)}: it has {this_host}.")
    if len(mine) > 1:
        raise RunError(f"This host is in the list more than once: {', '.join(hosts[number] for number in mine)}.")
    address = own[hosts[mine[0]]][0]
    head = address if mine[0] == 0 else next(text for text in resolved[hosts[0]] if not is_loopback(text))
    return Place(mine[0], address, str(interface_of(address, local)), head)


@dataclass(kw_only=True)
class HostsOptions(Options):
    """The options of this program."""

    hosts: list[str] = argument("all hosts, in the same order on each of them", "HOST")


COMMAND = Command(
    program="python -m dist_eval.cluster.hosts",
    config=HostsOptions,
    description="Finds this host in a list of hosts. Prints four words: its number in the list, its address, the "
    "network interface with that address, and the address of the first host.",
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints this host's place in one line that a shell can `read`; returns 1 if it cannot be determined."""
    return run_command(COMMAND, show, arguments)


def show(options: HostsOptions) -> int:
    """Prints this host's place."""
    print(*find_place(options.hosts, interfaces()))
    return COMPLETE


if __name__ == "__main__":
    run_program(main)
