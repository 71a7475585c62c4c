"""One server of a swarm that spans several hosts, and the servers' identities.

After a restart, a server must be the same peer at the same address, so its identity is a key file that is created only
once. Servers and clients read the addresses of all servers from one file (`--peers-file`), or get them one by one
(`--initial-peers`). Only the first server in the list may start the swarm, and only if no other is up; otherwise two
servers that start at the same time would each start one.
"""

from __future__ import annotations

import errno
import os
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

from dist_eval.arguments.commandline import Command
from dist_eval.arguments.fields import REQUIRED, Options, option
from dist_eval.arguments.types import Limits, Natural
from dist_eval.errors import ConfigError, translating_os_errors
from dist_eval.petals.client.peers import PeerOptions, read_peers
from dist_eval.process.addresses import address_towards, interfaces, outward, resolve
from dist_eval.process.files import PRIVATE, private_files

if TYPE_CHECKING:
    from dist_eval.petals.server.private import PrivateSwarm

_WATCH_SECONDS, _BOOTSTRAP_SECONDS, _PROBE_SECONDS = 0.5, 5.0, 2.0
PEERS = "peers.txt"
AUTO = "auto"


@dataclass(kw_only=True)
class ServerOptions(Options):
    """The options of all commands that start servers."""

    model: str = option(REQUIRED, "base model: folder or hub name", metavar="MODEL")
    revision: str | None = option(None, "branch, tag or commit of a model on a hub (default: main)", metavar="NAME")
    dht_prefix: str | None = option(None, "name to announce the model under", metavar="NAME")
    torch_dtype: Literal["float32", "bfloat16", "float16"] = option("float32", "dtype of the blocks")
    quantization: Literal["none", "int8", "nf4"] = option(
        "none", "how to store weights of linear layers: in less memory, which changes outputs a little"
    )
    adapters: list[str] = option(
        [], "LoRA adapters that requests may use: folders or hub names, with safetensors", metavar="NAME"
    )
    cache_tokens: int | None = option(
        None, "tokens of sessions that a server can hold (default: 4096, or 16384 with grouped-query attention)"
    )
    gpus: list[int] = option([], "GPUs to assign to the servers in turn, counted from 0 (default: all GPUs)")
    verbose: bool = option(False, "show the output of servers", aliases=["-v"])


@dataclass(kw_only=True)
class ServeOptions(ServerOptions, PeerOptions):
    """The options of `dist-eval swarm serve`."""

    servers: int = option(1, "number of equal shares to split the blocks into")
    blocks: list[str] | None = option(
        None,
        "other shares, which may overlap; `auto` takes as many blocks as fit into memory, where the swarm needs them "
        "most",
        metavar="A:B",
    )
    number: Natural = option(
        0, "this server's share, counted from 0; more servers than shares start again at the first", metavar="K"
    )
    identity: Path | None = option(
        None, "key created by `identities` (default: swarm-HOST-PORT.key in the current folder, created if missing)"
    )
    host: str | None = option(
        None,
        "IP address of this host to listen on and to announce (default: the one that reaches the first of the "
        "--initial-peers)",
        metavar="ADDRESS",
    )
    port: Annotated[int, Limits(least=1, most=65535)] = option(31337, "port to listen on", metavar="PORT")
    initial_peers: list[str] = option(
        [],
        "addresses of servers whose swarm to join, as they print them; if the first is this server's own, it starts a "
        "swarm when no other is up",
        metavar="ADDRESS",
    )
    peers_file: str | None = option(
        None,
        "file with the addresses of the swarm's servers, one per line; the first one starts the swarm if no other is "
        "up (default: this server is the only one)",
        metavar="FILE",
    )


SERVE = Command(
    program="dist-eval swarm serve",
    config=ServeOptions,
    description="Runs one server of a swarm that spans several hosts, until Ctrl-C or SIGTERM.",
)


@dataclass(kw_only=True)
class IdentitiesOptions(Options):
    """The options of `dist-eval swarm identities`."""

    servers: int = option(REQUIRED, "number of identities")
    address: str = option(
        REQUIRED, "address of server number {}, such as /dns4/swarm-{}.swarm/tcp/31337", metavar="ADDRESS"
    )
    folder: Path = option(REQUIRED, f"folder for the keys (swarm-0.key, ...) and {PEERS}", metavar="FOLDER")
    verbose: bool = option(False, "show the output of libraries", aliases=["-v"])


IDENTITIES = Command(
    program="dist-eval swarm identities",
    config=IdentitiesOptions,
    description="Creates the keys of a swarm's servers, and the file of their addresses. Existing keys are kept.",
)


def serve(arguments: ServeOptions) -> None:
    """Runs one server until Ctrl-C or SIGTERM."""
    from dist_eval.petals.base_model.config import read_base_config
    from dist_eval.petals.client.reachability import why_unreachable
    from dist_eval.petals.server.private import existing_gpus, format_span, require_address, shares_of_blocks
    from dist_eval.petals.server.quantization import require_quantizable

    host = arguments.host or _own_address(arguments.initial_peers)
    require_address(host)
    _require_bindable(host, arguments.port)
    gpus = existing_gpus(arguments.gpus)
    config = read_base_config(arguments.model, arguments.revision)
    require_quantizable(arguments.model, config, arguments.torch_dtype, arguments.quantization)
    span = None
    if arguments.blocks != [AUTO]:
        shares = shares_of_blocks(config.num_hidden_layers, arguments.servers, arguments.blocks)
        span = shares[arguments.number % len(shares)]
    identity = arguments.identity or _own_identity(host, arguments.port)
    name = peer_name(identity)
    listed = read_peers(Path(arguments.peers_file)) if arguments.peers_file else []
    if listed and not any(peer.endswith(f"/p2p/{name}") for peer in listed):
        raise ConfigError(f"--peers-file {arguments.peers_file} does not contain {name}, the peer of --identity.")
    peers = list(dict.fromkeys([*listed, *arguments.initial_peers]))
    make_swarm = downloaded(arguments, config, [span])
    joined = peers_to_join(peers, name)
    with make_swarm(
        gpus=[gpus[arguments.number % len(gpus)]] if gpus else [],
        host=host,
        ports=[(arguments.port, arguments.port)],
        identities=[identity],
        initial_peers=joined,
    ) as swarm:
        print(f"starting {format_span(span)} of {arguments.model} at {swarm.addresses[0]}", flush=True)
        if not peers:
            print(f"others join it, and runs find it, with --initial-peers {swarm.addresses[0]}", flush=True)
        for peer in joined:
            if reason := why_unreachable(peer, _PROBE_SECONDS):
                print(f"waiting for {peer} ({reason})", flush=True)
        watch(swarm)


def downloaded(
    options: ServerOptions, config: Any, spans: Sequence[tuple[int, int] | None]
) -> Callable[..., PrivateSwarm]:
    """Downloads the blocks of servers; returns `PrivateSwarm` with the arguments that these options decide.

    `config` is that of the base model, and `spans` has the blocks of each server.
    """
    from dist_eval.petals.base_model.config import default_dht_prefix
    from dist_eval.petals.server.downloads import download_blocks
    from dist_eval.petals.server.private import PrivateSwarm

    blocks = {block for span in spans if span for block in range(*span)}
    return partial(
        PrivateSwarm,
        options.model,
        num_blocks=config.num_hidden_layers,
        dht_prefix=options.dht_prefix or default_dht_prefix(options.model, config, options.revision),
        spans=spans,
        revision=download_blocks(options.model, options.revision, blocks),
        torch_dtype=options.torch_dtype,
        quant_type=options.quantization,
        adapters=options.adapters,
        cache_tokens=options.cache_tokens,
        echo=options.verbose,
    )


def watch(swarm: PrivateSwarm) -> NoReturn:
    """Prints what servers load, until one ends or this process is interrupted."""
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
    raise ConfigError(f"--host: give the address at which others reach this machine. It has {_addresses()}.")


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
            raise ConfigError(f"--host {host} is not an address of this machine, which has {_addresses()}.") from error
        reason = os.strerror(error.errno or 0)
        raise ConfigError(f"--port {port}: cannot listen at {host}: {reason}. Choose another port.") from error


def _own_identity(host: str, port: int) -> Path:
    """Returns the key file of the server at an address, in the current folder, and creates it if missing."""
    identity = Path(f"swarm-{host}-{port}.key")
    if not identity.exists():
        with translating_os_errors(ConfigError, f"{identity} cannot be written to the current folder"):
            _make_key(identity)
    return identity


def print_lines(lines: list[str]) -> None:
    """Prints lines of servers' logs."""
    for line in lines:
        print(line, flush=True)


def peers_to_join(peers: list[str], name: str, wait: float = _BOOTSTRAP_SECONDS) -> list[str]:
    """Returns the peers through which a server joins the swarm; none if it starts the swarm."""
    from dist_eval.petals.client.client import wait_until_listening

    others = [peer for peer in peers if not peer.endswith(f"/p2p/{name}")]
    if others and peers[0] not in others:
        return wait_until_listening(others, time.monotonic() + wait)
    return others


def make_identities(arguments: IdentitiesOptions) -> None:
    """Creates the missing keys of a swarm's servers, and writes and prints their addresses."""
    if arguments.servers < 1 or "{}" not in arguments.address:
        raise ConfigError("Give --servers of at least 1, and an --address that contains {} for the server's number.")
    addresses = []
    with translating_os_errors(ConfigError, f"--folder {arguments.folder} cannot be written"):
        arguments.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for number in range(arguments.servers):
            key = arguments.folder / f"swarm-{number}.key"
            if not key.exists():
                _make_key(key)
            addresses.append(f"{arguments.address.replace('{}', str(number))}/p2p/{peer_name(key)}")
        (arguments.folder / PEERS).write_text("\n".join(addresses) + "\n", encoding="utf-8")
    print(*addresses, sep="\n")


def _make_key(file: Path) -> None:
    from hivemind.p2p import P2P

    with private_files():
        P2P.generate_identity(str(file))
    file.chmod(PRIVATE)  # hivemind leaves it read-only


def peer_name(identity: Path) -> str:
    """Returns the peer id of a key."""
    from hivemind.p2p import PeerID

    with translating_os_errors(ConfigError, f"--identity {identity} cannot be read"):
        key = identity.read_bytes()
    try:
        return PeerID.from_identity(key).to_base58()
    except Exception as error:  # hivemind's cryptography raises many kinds
        raise ConfigError(f"--identity {identity} is not a key created by `identities`.") from error
