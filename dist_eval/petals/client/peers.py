"""Reads addresses of a swarm's peers from `--initial-peers` and `--peers-file`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dist_eval.arguments.fields import Options, option
from dist_eval.errors import ConfigError, translating_os_errors

_PEER_ADDRESS = re.compile(
    r"/(ip4|ip6|dns|dns4|dns6|dnsaddr)/[^/]+(/(tcp|udp)/\d+)?(/[a-z0-9-]+)*/p2p/[1-9A-HJ-NP-Za-km-z]{40,}"
)


def all_peers(initial_peers: Sequence[str], peers_file: str | None) -> list[str]:
    """Returns the addresses of `--initial-peers` and `--peers-file`."""
    peers = list(initial_peers)
    if peers_file is not None:
        peers = list(dict.fromkeys([*peers, *read_peers(Path(peers_file))]))
    require_peer_addresses(peers)
    return peers


def read_peers(path: Path) -> list[str]:
    """Reads peer addresses from a file, one per line; blank lines and lines that begin with # are ignored."""
    with translating_os_errors(ConfigError, f"--peers-file {path} cannot be read"):
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    peers = [line for line in lines if line and not line.startswith("#")]
    if not peers:
        raise ConfigError(
            f"--peers-file {path} holds no address: a swarm writes them once all its servers run. Wait, or see what "
            "`dist-eval swarm` prints."
        )
    return peers


def require_peer_addresses(texts: Sequence[str]) -> None:
    """Checks the addresses of `--initial-peers`."""
    for text in texts:
        if not _PEER_ADDRESS.fullmatch(text):
            raise ConfigError(
                f"--initial-peers: {text!r} is not a peer address. It should have the form /ip4/HOST/tcp/PORT/p2p/ID: "
                "copy one that `dist-eval swarm` prints."
            )


@dataclass(kw_only=True)
class PeerOptions(Options):
    """The address of a running swarm."""

    initial_peers: list[str] = option(
        [], "addresses of a running swarm: /ip4/HOST/tcp/PORT/p2p/ID", group="swarm", metavar="ADDRESS"
    )
    peers_file: str | None = option(None, "file with such addresses, one per line", group="swarm", metavar="FILE")

    def _validate(self) -> None:
        super()._validate()
        require_peer_addresses(self.initial_peers)
