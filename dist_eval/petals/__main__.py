"""`python -m dist_eval.petals`: starts a private swarm on this host or one server of a larger one, or shows a swarm."""

from __future__ import annotations

import functools
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from dist_eval.arguments.commandline import Command, run_command
from dist_eval.arguments.fields import option
from dist_eval.errors import ConfigError, SwarmError, os_reason
from dist_eval.petals.client import status
from dist_eval.petals.server import member
from dist_eval.process import slurm
from dist_eval.process.addresses import interfaces, is_loopback, outward
from dist_eval.process.files import BY_UMASK, write_atomically
from dist_eval.process.lifetime import temporary_files_in, workspace
from dist_eval.process.logging_setup import silence_libraries
from dist_eval.process.programs import COMPLETE, FAILED, status_after_output, tolerate_broken_output
from dist_eval.tables import format_count

if TYPE_CHECKING:
    from dist_eval.petals.client.coverage import SwarmCoverage
    from dist_eval.petals.server.private import PrivateSwarm

_WATCH_SECONDS, _PROBE_SECONDS = 0.5, 2.0

Run: TypeAlias = Callable[[Any], "bool | None"]
"""Runs a command with its options; returns False for a failure."""


@dataclass(kw_only=True)
class StartOptions(member.ServerOptions):
    """The options of `dist-eval swarm`."""

    servers: int = option(2, "servers that share the blocks")
    blocks: list[str] | None = option(
        None, "blocks of each server instead of equal shares, may overlap; with --part those of all parts",
        metavar="A:B",
    )  # fmt: skip
    host: str = option(
        "127.0.0.1",
        "address or name to listen on and to announce; with --part one at which the other hosts reach this one",
        metavar="HOST",
    )
    peers_file: Path = option(Path("swarm-peers.txt"), "file for the peers while the swarm runs", metavar="FILE")
    part: str = option(
        "1/1",
        "this is the K-th of N such commands on several hosts, all with the same --peers-file in a shared folder; it "
        "starts its share of the servers (--servers per host), which join those of the first command",
        metavar="K/N",
    )
    slurm: bool = option(False, "take --part and --host from the Slurm step that this task belongs to")
    timeout: float = option(120.0, "longest wait for the start", metavar="SECONDS")


COMMAND = Command(
    program="dist-eval swarm",
    config=StartOptions,
    description="Starts a private Petals swarm on this host and keeps it until Ctrl-C. "
    "`dist-eval swarm status --initial-peers ...` shows the coverage of a running swarm, `serve` runs one server with "
    "a fixed address and identity, as on Kubernetes, and `identities` creates identities.",
)


def start(arguments: StartOptions) -> None:
    """Runs a private swarm, or a part of one, until Ctrl-C or SIGTERM.

    The first part publishes its addresses to the others at once, in a file next to `--peers-file`. That file is written
    when all parts together cover the model.
    """
    from dist_eval.petals.base_model.config import read_base_config
    from dist_eval.petals.client.hivemind_compat import prepare_hivemind
    from dist_eval.petals.server.private import existing_gpus, shares_of_blocks
    from dist_eval.petals.server.quantization import require_quantizable

    part, parts = _part(arguments.part)
    if arguments.slurm:
        part, parts, arguments.host = slurm.task(os.environ)
    host, gpus = _address(arguments.host), existing_gpus(arguments.gpus)
    if parts > 1 and is_loopback(host):
        host = _replace_loopback(arguments.host, host, from_slurm=arguments.slurm)
    first_peers = arguments.peers_file.with_name(arguments.peers_file.name + ".first")
    if part == 1:
        _claim(arguments.peers_file, first_peers)
    with ExitStack() as stack:
        scratch_dir = stack.enter_context(workspace(*([arguments.peers_file, first_peers] if part == 1 else [])))
        stack.enter_context(temporary_files_in(scratch_dir))
        # imports the model's code, which creates a folder
        config = read_base_config(arguments.model, arguments.revision)
        require_quantizable(arguments.model, config, arguments.torch_dtype, arguments.quantization)
        all_spans = shares_of_blocks(config.num_hidden_layers, parts * arguments.servers, arguments.blocks)
        first, end = (len(all_spans) * number // parts for number in (part - 1, part))
        if first == end:
            raise ConfigError(f"--part {part}/{parts} has no server to start: --blocks names only {len(all_spans)}.")
        spans = all_spans[first:end]
        make_swarm = member.downloaded(arguments, config, spans)
        swarm = make_swarm(
            gpus=gpus, host=host, initial_peers=() if part == 1 else _wait_for_peers(first_peers, arguments.timeout)
        )
        stack.enter_context(swarm)
        print(f"starting {format_count(len(spans), 'server')} for {arguments.model} ...", flush=True)
        if part == 1:
            write_atomically(first_peers, "\n".join(swarm.initial_peers).encode(), BY_UMASK)
            prepare_hivemind(sockets=scratch_dir)
            print(_wait_for_coverage(swarm, len(all_spans), arguments.timeout).describe())
            member.print_lines(swarm.newly_loaded())
            print(f"peers (also in {arguments.peers_file}):", *swarm.initial_peers, sep="\n  ", flush=True)
            write_atomically(arguments.peers_file, ("\n".join(swarm.initial_peers) + "\n").encode(), BY_UMASK)
        if parts > 1:
            print(f"part {part} of {parts}, blocks {spans}")
        print(f"Ctrl-C ends the swarm; from elsewhere: kill {os.getpid()}", flush=True)
        member.watch(swarm)


def _claim(file: Path, first_peers: Path) -> None:
    """Creates the peers file, which must not exist, and removes the addresses that a killed first part left."""
    try:
        file.open("x").close()
        first_peers.unlink(missing_ok=True)
    except FileExistsError as error:
        raise ConfigError(
            f"--peers-file {file} exists: another swarm may be using it, or a killed one left it behind. Remove it or "
            "choose another."
        ) from error
    except OSError as error:
        raise ConfigError(f"--peers-file {file} cannot be written: {os_reason(error)}.") from error


def _wait_for_peers(file: Path, timeout: float) -> list[str]:
    """Waits until the first part of the swarm has published its addresses and listens at one of them."""
    from dist_eval.petals.client.reachability import may_listen

    deadline, peers = time.monotonic() + timeout, []
    while time.monotonic() < deadline:
        with suppress(FileNotFoundError):
            peers = file.read_text(encoding="utf-8").split()
            if any(may_listen(peer, _PROBE_SECONDS) for peer in peers):
                return peers
        time.sleep(_WATCH_SECONDS)
    if peers:
        raise SwarmError(
            f"Nothing listens at the addresses in {file} ({', '.join(peers)}). Either a killed swarm left the file and "
            "the first part has not been restarted, or this host cannot reach the first part's host."
        )
    raise SwarmError(
        f"The first part of the swarm did not write {file} within {timeout:g} s. Did it fail, or is its folder not "
        "shared with this host? Wait longer with --timeout."
    )


def _wait_for_coverage(swarm: PrivateSwarm, servers: int, timeout: float) -> SwarmCoverage:
    """Waits until the model is covered and this many servers, those of all parts, are online."""
    from dist_eval.petals.client.client import join_swarm, leave_swarm
    from dist_eval.petals.client.coverage import wait_until_covered

    waiting: dict[str, Any] = {"check": swarm.require_alive, "timeout_option": "--timeout"}
    dht = join_swarm(swarm.initial_peers, timeout, **waiting)
    try:
        return wait_until_covered(dht, swarm.dht_prefix, swarm.num_blocks, timeout, servers=servers, **waiting)
    finally:
        leave_swarm(dht)


def _address(host: str) -> str:
    from dist_eval.petals.server.private import require_address

    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"--host {host!r} is not an IP address, and does not resolve to one: {error}.") from error
    address = str(min(found, key=lambda one: one[0] != socket.AF_INET)[4][0])
    require_address(address)
    return address


def _replace_loopback(host: str, address: str, *, from_slurm: bool) -> str:
    """Replaces a loopback address, at which other hosts would only reach themselves.

    An address from Slurm is kept. If Slurm gives a name, it is replaced by this host's only other address.
    """
    if from_slurm and host == address:
        return address
    others = [one for addresses in outward(interfaces()).values() for one in addresses]
    others = [one for one in others if ":" not in one] or others
    if from_slurm and len(others) == 1:
        return others[0]
    resolves = "is" if host == address else f"resolves here to {address},"
    raise ConfigError(
        f"{'The NodeAddr from Slurm' if from_slurm else '--host'} {host} {resolves} a loopback address, at which every "
        f"host reaches itself. Start each part with {'--part and ' if from_slurm else ''}the --host at which the "
        f"others reach it: this host has {', '.join(others) or 'none'}."
    )


def _part(text: str) -> tuple[int, int]:
    part, _, parts = text.partition("/")
    if not (part.isdigit() and parts.isdigit() and 1 <= int(part) <= int(parts)):
        raise ConfigError(f"--part: {text!r} is not a part of a swarm. It should look like 2/4.")
    return int(part), int(parts)


def _with_petals(command: Run) -> Run:
    """Makes a command run in a workspace, with hivemind prepared."""

    @functools.wraps(command)
    def run(arguments: Any) -> bool | None:
        from dist_eval.petals.client.hivemind_compat import prepare_hivemind

        with workspace() as scratch_dir, temporary_files_in(scratch_dir):
            prepare_hivemind(sockets=scratch_dir)
            return command(arguments)

    return run


COMMANDS: dict[str, tuple[Command[Any], Run]] = {
    "status": (status.COMMAND, _with_petals(status.show)),
    "serve": (member.SERVE, _with_petals(member.serve)),
    "identities": (member.IDENTITIES, _with_petals(member.make_identities)),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    command, run = COMMANDS[words.pop(0)] if words[:1] and words[0] in COMMANDS else (COMMAND, start)
    return run_command(command, functools.partial(_run, run), words)


def _run(run: Run, options: Any) -> int:
    if not options.verbose:
        silence_libraries()
    for number in (signal.SIGINT, signal.SIGTERM):  # SIGINT as well: shells make background jobs ignore it
        signal.signal(number, signal.default_int_handler)
    try:
        return FAILED if run(options) is False else COMPLETE
    except KeyboardInterrupt:
        return COMPLETE


if __name__ == "__main__":
    tolerate_broken_output()
    os._exit(status_after_output(main()))  # everything is closed; see `temporary_files_in`
