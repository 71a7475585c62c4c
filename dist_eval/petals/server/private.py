"""A private swarm on this host: Petals servers that end with the process that started them."""

from __future__ import annotations

import contextlib
import ipaddress
import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

from dist_eval.errors import ConfigError, SwarmError
from dist_eval.petals.base_model.config import ADAPTER_CONFIG, default_dht_prefix, read_base_config
from dist_eval.petals.client.petals_version import require_petals
from dist_eval.petals.client.reachability import may_listen
from dist_eval.process.lifetime import adopt_orphans, end_session, workspace
from dist_eval.process.logging_setup import silence_petals
from dist_eval.process.ports import free_ports
from dist_eval.tables import format_count

_LOG_LINES_SHOWN, _END_SECONDS, _PROBE_SECONDS = 1, 10.0, 0.5
PYTHON = [sys.executable]
"""The interpreter that servers run in."""

LOADED = "loaded blocks "
"""Beginning of the line in a server's log that reports the memory of its blocks."""

_ANNOUNCED_THROUGHPUT = "1"  # requests per second; "auto" would measure for a minute and access the internet


class PrivateSwarm:
    """A private swarm, used as a context manager.

    The addresses are known before the servers are up, so others can start to join at once.

    Args:
        model: folder or hub name of the base model.
        num_blocks: blocks of the model; by default read from its config.
        dht_prefix: name under which to announce them; by default the one that models on a swarm look for.
        spans: first and one-past-last block of each server, or None for a server that takes as many blocks as fit,
            where the swarm needs them most; by default one server with all blocks.
        revision: branch, tag or commit of a model on a hub.
        torch_dtype: dtype of the weights and of the computation.
        quant_type: quantization of the weights: "none", "int8" or "nf4".
        adapters: LoRA adapters of all servers: folders or hub names.
        cache_tokens: tokens of sessions that each server has room for; by default 4096, or 16384 with grouped-query
            attention.
        gpus: GPUs to assign to the servers in turn, by index; by default all that torch sees.
        threads: threads of each server; by default the cores are divided among them.
        echo: forward the servers' output to this process' stderr.
        host: address to listen on.
        ports: the port that each server listens on and the one that it announces, which a proxy may forward to it; by
            default the same free port.
        identities: a file with the key of each server; by default new ones.
        initial_peers: addresses of other servers, whose swarm the first server joins; by default it starts one.
        program: arguments of the interpreter that runs a server, before those of the server itself.

    Attributes:
        servers: the servers' processes, once started.
        addresses: addresses of the servers, with their peer ids.

    Raises:
        CheckpointError: the model's config is needed and cannot be read.
        ConfigError: Petals is not installed or cannot hold an adapter, a span is outside the model, or there would be
            no room for sessions.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        num_blocks: int | None = None,
        dht_prefix: str | None = None,
        spans: Sequence[tuple[int, int] | None] | None = None,
        revision: str | None = None,
        torch_dtype: str = "float32",
        quant_type: str = "none",
        adapters: Sequence[str] = (),
        cache_tokens: int | None = None,
        gpus: Sequence[int] = (),
        threads: int | None = None,
        echo: bool = False,
        host: str = "127.0.0.1",
        ports: Sequence[tuple[int, int]] | None = None,
        identities: Sequence[Path] | None = None,
        initial_peers: Sequence[str] = (),
        program: Sequence[str] = ("-m", "dist_eval.petals.server.server"),
    ) -> None:
        model = str(model)
        if num_blocks is None or dht_prefix is None:
            base = read_base_config(model, revision)
            num_blocks = base.num_hidden_layers if num_blocks is None else num_blocks
            dht_prefix = dht_prefix or default_dht_prefix(model, base, revision)
        spans = [(0, num_blocks)] if spans is None else spans
        _require_in_model(spans, num_blocks)
        _require_adapters(adapters)
        require_petals()
        if cache_tokens is not None and cache_tokens < 1:
            raise ConfigError(f"--cache-tokens must be at least 1, not {cache_tokens}.")
        self.model, self.num_blocks, self.dht_prefix, self.spans = model, num_blocks, dht_prefix, list(spans)
        self.revision, self.torch_dtype, self.quant_type = revision, torch_dtype, quant_type
        self.adapters, self.echo, self.host, self.cache_tokens = list(adapters), echo, host, cache_tokens
        self.gpus = existing_gpus(gpus)
        self.threads = threads or max(1, len(os.sched_getaffinity(0)) // len(self.spans))
        self.servers: list[subprocess.Popen[bytes]] = []
        self.addresses: list[str] = []
        self._read = [0] * len(self.spans)  # bytes of each server's log
        self._ports = list(ports or ())
        self._identities, self._initial_peers = list(identities or ()), list(initial_peers)
        self._program = list(program)
        self._exit = ExitStack()

    def __enter__(self) -> PrivateSwarm:
        if not self.echo:
            silence_petals()
        with ExitStack() as stack:
            self.folder = stack.enter_context(workspace())
            adopt_orphans()
            stack.callback(self._end_servers)
            self._start_servers()
            self._exit = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._exit.close()

    @property
    def initial_peers(self) -> list[str]:
        """Addresses of all servers; one would suffice, but may not answer on a busy host."""
        if not self.addresses:
            raise ConfigError("The private swarm is not running: start it with `with PrivateSwarm(...) as swarm:`.")
        return list(self.addresses)

    def require_alive(self) -> None:
        """Checks that no server has ended.

        Raises:
            SwarmError: one has; the message contains its blocks and the end of its log.
        """
        for number, server in enumerate(self.servers):
            if server.poll() is not None:
                how = f"ended with status {server.returncode}: {self._log_tail(number)}"
                if server.returncode < 0:  # the log says nothing about a signal
                    how = f"was ended by {signal.Signals(-server.returncode).name}."
                blocks = format_span(self.spans[number])
                raise SwarmError(f"Server {number} of the private swarm ({blocks} of {self.model}) {how}")

    def newly_loaded(self) -> list[str]:
        """Returns the servers' reports of the memory of their blocks since the last call."""
        lines: list[str] = []
        for number in range(len(self.servers)):
            with self._log(number).open("rb") as log:
                log.seek(self._read[number])
                whole = log.read().rpartition(b"\n")[0]
            self._read[number] += len(whole)
            lines += [line for line in whole.decode(errors="replace").splitlines() if line.startswith(LOADED)]
        return lines

    def start_server(self, number: int) -> None:
        """Starts or restarts the server of span `number`, with its previous identity and ports, if any."""
        span = self.spans[number]
        identity = self._identities[number] if self._identities else self.folder / f"identity-{number}"
        at_host = f"/ip{ipaddress.ip_address(self.host).version}/{self.host}/tcp"
        listening, announced = (f"{at_host}/{port}" for port in self._ports[number])
        self.addresses[number : number + 1] = [f"{announced}/p2p/{_peer_id(identity)}"]
        others = [
            address
            for i, (address, server) in enumerate(zip(self.addresses, self.servers, strict=False))
            if i != number and server.poll() is None
        ]
        if number < len(self.servers):  # a restart: two dead servers must not wait for each other, and one may be busy
            others = [address for address in others if may_listen(address, _PROBE_SECONDS)]
        else:
            others = others[:1]
        log = self._log(number).open("ab")
        command = [*PYTHON, *self._program, str(self.folder), self.model]
        command += ["--dht_prefix", self.dht_prefix, *(["--block_indices", f"{span[0]}:{span[1]}"] if span else [])]
        command += ["--revision", self.revision] if self.revision else []
        command += ["--device", f"cuda:{self.gpus[number % len(self.gpus)]}"] if self.gpus else []
        command += ["--identity_path", str(identity), "--host_maddrs", listening, "--announce_maddrs", announced]
        others = others or self._initial_peers
        command += ["--initial_peers", *others] if others else ["--new_swarm"]
        command += ["--torch_dtype", self.torch_dtype, "--throughput", _ANNOUNCED_THROUGHPUT, "--num_handlers", "2"]
        command += ["--quant_type", self.quant_type, "--skip_reachability_check", "--no_auto_relay"]
        command += ["--adapters", *self.adapters] if self.adapters else []
        command += ["--attn_cache_tokens", str(self.cache_tokens)] if self.cache_tokens else []
        with log:
            server = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=sys.stderr if self.echo else log,
                stderr=None if self.echo else log,
                start_new_session=True,
                env={
                    **_server_environment(),
                    "OMP_NUM_THREADS": str(self.threads),
                    "TMPDIR": str(self.folder),
                    "TORCH_FORCE_WEIGHTS_ONLY_LOAD": "1",  # Petals also reads pickles of hub models
                    "USE_LEGACY_BFLOAT16": "0",  # otherwise hivemind sends bfloat16 as float32
                },
            )
        self.servers[number : number + 1] = [server]

    def kill_server(self, number: int) -> None:
        """Kills all processes of a server with SIGKILL, and waits for it to end."""
        server = self.servers[number]
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        server.wait(_END_SECONDS)
        end_session(server.pid)

    def _start_servers(self) -> None:
        self._ports = self._ports or [(port, port) for port in free_ports(self.host, len(self.spans))]
        for number in range(len(self.spans)):
            self.start_server(number)

    def _end_servers(self) -> None:
        # SIGKILL: a server has no state to save, and after a graceful end its helpers would still answer the swarm
        for number in range(len(self.servers)):
            self.kill_server(number)

    def _log(self, number: int) -> Path:
        return self.folder / f"server-{number}.log"

    def _log_tail(self, number: int) -> str:
        lines = self._log(number).read_text(errors="replace").strip().splitlines()
        return " | ".join(line.strip() for line in lines[-_LOG_LINES_SHOWN:]) or "its log is empty."


def split_blocks(num_blocks: int, servers: int) -> list[tuple[int, int]]:
    """Splits blocks evenly among servers, in order; returns the first and one-past-last block of each."""
    if not 1 <= servers <= num_blocks:
        raise ConfigError(f"{servers} servers cannot share {num_blocks} blocks: give --servers 1 to {num_blocks}.")
    cuts = [num_blocks * i // servers for i in range(servers + 1)]
    return list(itertools.pairwise(cuts))


def shares_of_blocks(num_blocks: int, servers: int, texts: Sequence[str] | None) -> list[tuple[int, int]]:
    """Returns the blocks of each server of a swarm, from options of the command line."""
    if not texts:
        return split_blocks(num_blocks, servers)
    spans = []
    for text in texts:
        first, _, last = text.partition(":")
        if not (first.isdigit() and last.isdigit()):
            raise ConfigError(f"--blocks: {text!r} is not a span of blocks. It should look like 0:4.")
        spans.append((int(first), int(last)))
    _require_in_model(spans, num_blocks)
    if missing := sorted(set(range(num_blocks)).difference(*(range(*span) for span in spans))):
        raise ConfigError(f"--blocks: block {missing[0]} is in none of these spans; the model has {num_blocks} blocks.")
    return spans


def format_span(span: tuple[int, int] | None) -> str:
    """Describes the blocks of a server.

    Examples:
        >>> format_span((0, 16)), format_span(None)
        ('blocks 0:16', 'as many blocks as fit')
    """
    return "as many blocks as fit" if span is None else f"blocks {span[0]}:{span[1]}"


def existing_gpus(gpus: Sequence[int]) -> list[int]:
    """Returns these GPUs, which must exist, or all that torch sees if none are given."""
    import torch

    count = torch.cuda.device_count()
    if missing := [gpu for gpu in gpus if not 0 <= gpu < count]:
        raise ConfigError(f"--gpus {missing[0]}: this host has {format_count(count, 'GPU')}, counted from 0.")
    return list(gpus or range(count))


def _require_in_model(spans: Sequence[tuple[int, int] | None], num_blocks: int) -> None:
    for start, end in filter(None, spans):
        if not 0 <= start < end <= num_blocks:
            raise ConfigError(f"A server cannot hold blocks {start}:{end} of a model with {num_blocks} blocks.")


def _require_adapters(adapters: Sequence[str]) -> None:
    for name in adapters:
        if Path(name).is_dir() and not (Path(name) / ADAPTER_CONFIG).exists():
            raise ConfigError(f"The folder {name} holds no LoRA adapter: it lacks {ADAPTER_CONFIG}.")
        if not Path(name).exists() and name.startswith(("/", "~", "./", "../")):
            raise ConfigError(f"The folder {name} with a LoRA adapter does not exist.")
        if "." in name:
            raise ConfigError(
                f"Petals cannot hold the adapter {name!r}, because its name has a dot: copy it to a folder without "
                "one, and give that folder's full path."
            )


def require_address(host: str) -> None:
    """Raises a `ConfigError` unless this is an IP address at which others can reach a host."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError as error:
        raise ConfigError(f"--host {host!r} is not an IP address.") from error
    if address.is_unspecified:
        raise ConfigError(f"--host {host} is not an address at which this host can be reached: give another.")


def _server_environment() -> dict[str, str]:
    # torchrun's variables must not affect servers, and the threads are set per server
    dropped = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "HIVEMIND_LOGLEVEL")
    return {k: v for k, v in os.environ.items() if k not in dropped and not k.startswith("TORCHELASTIC_")}


def _peer_id(identity: Path) -> str:
    from hivemind.p2p import P2P, PeerID

    if not identity.exists():
        P2P.generate_identity(str(identity))
    return PeerID.from_identity(identity.read_bytes()).to_base58()
