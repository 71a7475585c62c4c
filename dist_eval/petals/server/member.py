"""One server of a swarm that spans several hosts, and the servers' identities.

A server must be the same peer after a restart, at the address that others know: its identity is a key file, created
once. The addresses of all servers are in one file, which servers and clients read (`--peers-file`), or are given one by
one (`--initial-peers`). Which server starts the swarm is fixed as well, or two that start at the same time would each
start one: only the first in the list may, and only if no other is up.
"""

from __future__ import annotations

import argparse
import errno
import os
import socket
import time
from collections.abc import Sequence
from pathlib import Path

from dist_eval.errors import ConfigError, os_reason
from dist_eval.petals.client.peers import add_peer_options, read_peers, require_peer_addresses
from dist_eval.process.addresses import address_towards, interfaces, outward, resolve
from dist_eval.process.files import PRIVATE, private_files
from dist_eval.process.programs import ArgumentParser

_WATCH_SECONDS, _BOOTSTRAP_SECONDS, _PROBE_SECONDS = 0.5, 5.0, 2.0
PEERS = "peers.txt"
DTYPES = ("float32", "bfloat16", "float16")
QUANTIZATIONS = ("none", "int8", "nf4")
AUTO = "auto"


def build_serve_parser() -> argparse.ArgumentParser:
    """Builds the parser of the command `serve`."""
    parser = ArgumentParser(
        prog="dist-eval swarm serve",
        description="Runs one server of a swarm that spans several hosts, until Ctrl-C or SIGTERM.",
        allow_abbrev=False,
    )
    add_server_options(parser)
    parser.add_argument(
        "--servers", type=int, default=1, metavar="N", help="shares that the blocks are cut into (default: 1)"
    )
    parser.add_argument(
        "--blocks", nargs="+", metavar="A:B", help="the shares instead of equal ones, also overlapping; `auto` for as "
        "many blocks as this server has memory for, where the swarm needs them most"
    )  # fmt: skip
    parser.add_argument(
        "--number", type=int, default=0, metavar="K", help="which share is this server's, counted from 0; with more "
        "servers than shares they begin again with the first (default: 0)"
    )  # fmt: skip
    parser.add_argument(
        "--identity", type=Path, metavar="FILE", help="key created by `identities` (default: swarm-HOST-PORT.key "
        "in the current folder, created if it is missing)"
    )  # fmt: skip
    parser.add_argument(
        "--host", metavar="ADDRESS", help="IP address of this host to listen on and to announce (default: the one from "
        "which it reaches the first of the --initial-peers)"
    )  # fmt: skip
    parser.add_argument("--port", type=int, default=31337, metavar="PORT", help="(default: 31337)")
    add_peer_options(
        parser,
        peers_file="addresses of the swarm's servers, one a line; the first one starts the swarm if no other is up "
        "(default: this server is the only one)",
        initial_peers="addresses of servers whose swarm to join, as they print them; with this server's own as the "
        "first one it starts a swarm if no other is up",
    )
    parser.add_argument("-v", "--verbose", action="store_true", help="show the server's output")
    return parser


def add_server_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of all commands that start servers."""
    parser.add_argument("--model", required=True, help="base model: folder or hub name")
    parser.add_argument("--revision", metavar="NAME", help="branch, tag or commit of a model on a hub (default: main)")
    parser.add_argument("--dht-prefix", metavar="NAME", help="name to announce the model under")
    parser.add_argument(
        "--torch-dtype", default="float32", choices=DTYPES, help="dtype of the blocks (default: float32)"
    )
    what = (
        "how the weights of linear layers are stored, which takes less memory and computes something a little different"
    )
    parser.add_argument("--quantization", default="none", choices=QUANTIZATIONS, help=f"{what} (default: none)")
    what = "LoRA adapters that a request may ask for: folders or hub names, with safetensors"
    parser.add_argument("--adapters", nargs="+", default=[], metavar="NAME", help=what)
    what = "tokens of sessions that a server has room for (default: 4096, or 16384 with grouped-query attention)"
    parser.add_argument("--cache-tokens", type=int, metavar="N", help=what)
    what = "the GPU of each server, counted from 0; with more servers than GPUs they begin again (default: all GPUs)"
    parser.add_argument("--gpus", nargs="+", type=int, default=[], metavar="N", help=what)


def build_identities_parser() -> argparse.ArgumentParser:
    """Builds the parser of the command `identities`."""
    parser = ArgumentParser(
        prog="dist-eval swarm identities",
        description="Creates the keys of a swarm's servers, and the file of their addresses. Existing keys are kept.",
        allow_abbrev=False,
    )
    parser.add_argument("--servers", type=int, required=True, metavar="N", help="how many identities")
    parser.add_argument(
        "--address", required=True, metavar="ADDRESS", help="where server {} will listen, {} being its number: "
        "/dns4/swarm-{}.swarm/tcp/31337"
    )  # fmt: skip
    parser.add_argument("--folder", type=Path, required=True, help="where the keys (swarm-0.key, ...) and "
                        f"{PEERS} are written")  # fmt: skip
    parser.add_argument("-v", "--verbose", action="store_true", help="show the output of libraries")
    return parser


def serve(arguments: argparse.Namespace) -> None:
    """Runs one server until Ctrl-C or SIGTERM."""
    from dist_eval.petals.base_model.config import default_dht_prefix, read_base_config
    from dist_eval.petals.client.reachability import why_unreachable
    from dist_eval.petals.server.downloads import download_blocks
    from dist_eval.petals.server.private import (
        PrivateSwarm,
        existing_gpus,
        format_span,
        require_address,
        shares_of_blocks,
    )
    from dist_eval.petals.server.quantization import require_quantizable

    if not 0 < arguments.port < 1 << 16:
        raise ConfigError(f"--port must be between 1 and 65535, not {arguments.port}.")
    if arguments.number < 0:
        raise ConfigError(f"--number must be at least 0, not {arguments.number}.")
    require_peer_addresses(arguments.initial_peers)
    host = arguments.host or _own_address(arguments.initial_peers)
    require_address(host)
    _require_bindable(host, arguments.port)
    identity = arguments.identity or _own_identity(host, arguments.port)
    name = peer_name(identity)
    listed = read_peers(Path(arguments.peers_file)) if arguments.peers_file else []
    if listed and not any(peer.endswith(f"/p2p/{name}") for peer in listed):
        raise ConfigError(f"--peers-file {arguments.peers_file} does not name {name}, whose --identity this is.")
    peers = list(dict.fromkeys([*listed, *arguments.initial_peers]))
    gpus = existing_gpus(arguments.gpus)
    config = read_base_config(arguments.model, arguments.revision)
    blocks = config.num_hidden_layers
    require_quantizable(arguments.model, config, arguments.torch_dtype, arguments.quantization)
    span = None
    if arguments.blocks != [AUTO]:
        shares = shares_of_blocks(blocks, arguments.servers, arguments.blocks)
        span = shares[arguments.number % len(shares)]
    revision = download_blocks(arguments.model, arguments.revision, range(*span) if span else ())
    joined = peers_to_join(peers, name)
    with PrivateSwarm(
        arguments.model,
        num_blocks=blocks,
        dht_prefix=arguments.dht_prefix or default_dht_prefix(arguments.model, config, arguments.revision),
        spans=[span],
        revision=revision,
        torch_dtype=arguments.torch_dtype,
        quant_type=arguments.quantization,
        adapters=arguments.adapters,
        cache_tokens=arguments.cache_tokens,
        gpus=[gpus[arguments.number % len(gpus)]] if gpus else [],
        host=host,
        ports=[(arguments.port, arguments.port)],
        identities=[identity],
        initial_peers=joined,
        echo=arguments.verbose,
    ) as swarm:
        print(f"starting {format_span(span)} of {arguments.model} at {swarm.addresses[0]}", flush=True)
        if not peers:
            print(f"others join it, and runs find it, with --initial-peers {swarm.addresses[0]}", flush=True)
        for peer in joined:
            if reason := why_unreachable(peer, _PROBE_SECONDS):
                print(f"waiting for {peer} ({reason})", flush=True)
        while True:
            swarm.require_alive()
            print_lines(swarm.newly_loaded())
            time.sleep(_WATCH_SECONDS)


def _own_address(peers: Sequence[str]) -> str:
    """Returns the address from which this host reaches the first of these peers."""
    from dist_eval.petals.client.reachability import tcp_address

    head = tcp_address(peers[0]) if peers else None
    targets = resolve(head[0]) if head else []
    if targets and (address := address_towards(targets[0])) is not None:
        return address
    raise ConfigError(f"--host: give the address at which the others reach this machine, which has {_addresses()}.")


def _addresses() -> str:
    local = outward(interfaces()).items()
    return ", ".join(f"{text} ({name})" for name, addresses in local for text in addresses) or "none but loopback"


def _require_bindable(host: str, port: int) -> None:
    """Checks that a server can listen at an address."""
    try:
        with socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET):
            return
    except OSError as error:
        if error.errno == errno.EADDRNOTAVAIL:
            raise ConfigError(f"--host {host} is none of this machine's addresses: it has {_addresses()}.") from error
        reason = os.strerror(error.errno or 0)
        raise ConfigError(f"--port {port} of {host} cannot be listened at: {reason}. Choose another.") from error


def _own_identity(host: str, port: int) -> Path:
    """Returns the key of the server at an address, in the current folder; a missing one is created."""
    identity = Path(f"swarm-{host}-{port}.key")
    if not identity.exists():
        try:
            _make_key(identity)
        except OSError as error:
            raise ConfigError(f"{identity} cannot be written to the current folder: {os_reason(error)}.") from error
    return identity


def print_lines(lines: list[str]) -> None:
    """Prints what servers have said."""
    for line in lines:
        print(line, flush=True)


def peers_to_join(peers: list[str], name: str, wait: float = _BOOTSTRAP_SECONDS) -> list[str]:
    """Returns the peers that a server joins the swarm by; none if it is the one that starts it."""
    from dist_eval.petals.client.client import wait_until_listening

    others = [peer for peer in peers if not peer.endswith(f"/p2p/{name}")]
    if others and peers[0] not in others:
        return wait_until_listening(others, time.monotonic() + wait)
    return others


def make_identities(arguments: argparse.Namespace) -> None:
    """Creates the missing keys of a swarm's servers, and writes and prints their addresses."""
    if arguments.servers < 1 or "{}" not in arguments.address:
        raise ConfigError("Give --servers of at least 1, and an --address in which {} stands for a server's number.")
    addresses = []
    try:
        arguments.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for number in range(arguments.servers):
            key = arguments.folder / f"swarm-{number}.key"
            if not key.exists():
                _make_key(key)
            addresses.append(f"{arguments.address.replace('{}', str(number))}/p2p/{peer_name(key)}")
        (arguments.folder / PEERS).write_text("\n".join(addresses) + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--folder {arguments.folder} cannot be written: {os_reason(error)}.") from error
    print(*addresses, sep="\n")


def _make_key(file: Path) -> None:
    from hivemind.p2p import P2P

    with private_files():
        P2P.generate_identity(str(file))
    file.chmod(PRIVATE)  # hivemind leaves it read-only


def peer_name(identity: Path) -> str:
    """Returns the peer id that belongs to a key."""
    from hivemind.p2p import PeerID

    try:
        return PeerID.from_identity(identity.read_bytes()).to_base58()
    except OSError as error:
        raise ConfigError(f"--identity {identity} cannot be read: {os_reason(error)}.") from error
    except Exception as error:  # hivemind's cryptography raises many kinds
        raise ConfigError(f"--identity {identity} is not a key created by `identities`.") from error
