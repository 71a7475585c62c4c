"""The p2p daemon, hivemind's helper process: where its sockets are, when it ends, and whom it dials.

A daemon that has dialled a peer in vain does not dial it again for a while: 5 s, then a second more times the square of
the attempts so far, up to 5 minutes (libp2p's back-off, `DialBackoff`). A server that comes back would stay unreachable
for so long. So whatever would make the daemon dial a peer that could not be reached just now knocks at the peer's
address first: nobody there, no dialling, no back-off.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import re
import socket
import time
import types
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

from dist_eval.process.lifetime import die_with_parent
from dist_eval.swarm.failures import Failure, classify

_GARBAGE_COLLECTION = {"GOGC": "1600", "GOMEMLIMIT": "256MiB"}
"""Settings of the daemon's Go runtime: collect when the heap has grown by this many percent, or to this size."""

_TCP_ADDRESS = re.compile(r"^/(?:ip4|ip6|dns|dns4|dns6)/([^/]+)/tcp/(\d+)(?:/p2p/(\w+))?$")
_PROBE_SECONDS, _LET_THROUGH_SECONDS = 0.5, 15.0

Address = tuple[str, int]


class PeerUnreachable(ConnectionError):
    """Nothing listens at a peer's address, so the daemon was not asked to dial it."""


class ReachabilityCache:
    """Knows where peers listen, and which of them could not be reached just now.

    Attributes:
        addresses: host and port by the peer's name.
        away: moment of the last attempt to reach a peer, for those that could not be reached since.
    """

    def __init__(self) -> None:
        self.addresses: dict[str, Address] = {}
        self.away: dict[str, float] = {}
        self._met: set[str] = set()

    async def require(self, peer: str) -> None:
        """Returns if it is worth dialling a peer.

        That is so if it is not known to be away, or where it listens. Every 15 s it is also so without an answer: it
        may have moved.

        Raises:
            PeerUnreachable: nothing listens at its address.
        """
        address, tried_at = self.addresses.get(peer), self.away.get(peer)
        if address is None or tried_at is None or time.monotonic() - tried_at > _LET_THROUGH_SECONDS:
            return
        if not await self.listens(address):
            raise PeerUnreachable(f"nothing listens at {address[0]}:{address[1]}")

    def reached(self, peer: str) -> bool:
        """Notes that a peer could be reached.

        Returns:
            Whether this is the first time, and it is unknown where.
        """
        self.away.pop(peer, None)
        is_new = peer not in self._met
        self._met.add(peer)
        return is_new and peer not in self.addresses

    def not_reached(self, peer: str) -> None:
        """Notes that a peer could not be reached."""
        self.away[peer] = time.monotonic()

    @staticmethod
    async def listens(address: Address) -> bool:
        """Returns whether something listens at an address."""
        try:
            _, writer = await asyncio.wait_for(asyncio.open_connection(*address), _PROBE_SECONDS)
        except (OSError, asyncio.TimeoutError):
            return False
        writer.close()
        return True


_reachability = ReachabilityCache()
"""Of this process. A node, which is forked, begins with a copy."""


def patch_p2p_daemon(sockets: Path) -> None:
    """Makes the daemon a good helper of this process.

    Its sockets go to our folder, it dies with the process that started it, and it collects garbage less often: a daemon
    that holds little and passes on megabytes spent half of its processor time on that.

    Args:
        sockets: folder in which the daemon of this process and its clients make their Unix sockets.
    """
    from hivemind.p2p import p2p_daemon

    p2p_daemon.P2P._UNIX_SOCKET_PREFIX = f"/unix{sockets}/"

    async def create_subprocess_exec(*args: Any, **kwargs: Any) -> asyncio.subprocess.Process:
        kwargs["env"] = {**_GARBAGE_COLLECTION, **kwargs["env"]}
        return await asyncio.subprocess.create_subprocess_exec(*args, preexec_fn=die_with_parent, **kwargs)

    # the module's only use of asyncio.subprocess is to start the daemon
    own_asyncio = types.ModuleType("asyncio")
    own_asyncio.__dict__.update(vars(asyncio))
    own_asyncio.subprocess = types.SimpleNamespace(  # type: ignore[attr-defined]
        **{**vars(asyncio.subprocess), "create_subprocess_exec": create_subprocess_exec}
    )
    p2p_daemon.asyncio = own_asyncio


def probe_before_dialing(peers: Iterable[str]) -> None:
    """From now on, calls of this process and of nodes that it forks knock before they make the daemon dial.

    Args:
        peers: addresses of peers, who count as away until they are reached. Those of others are found out then.
    """
    from hivemind.p2p.p2p_daemon_bindings.p2pclient import Client

    for text in peers:
        if (address := tcp_address(text)) is not None:
            peer = text.rpartition("/p2p/")[2]
            _reachability.addresses[peer] = address
            _reachability.not_reached(peer)
    for name in ("call_unary_handler", "stream_open", "connect"):
        method = getattr(Client, name)
        if not hasattr(method, "__wrapped__"):
            setattr(Client, name, _probing(method))


def tcp_address(text: str) -> Address | None:
    """Returns the host and port of a peer's address; None if it is not reached by plain TCP."""
    match = _TCP_ADDRESS.match(text)
    return None if match is None or int(match[2]) > 65535 else (match[1], int(match[2]))


def may_listen(text: str, timeout: float) -> bool:
    """Returns whether something listens at a peer's address, within seconds; True if it is not reached by plain TCP."""
    address = tcp_address(text)
    if address is None:
        return True
    try:
        socket.create_connection(address, timeout=timeout).close()
    except (OSError, ValueError):
        return False
    return True


def _probing(method: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    @functools.wraps(method)
    async def call(client: Any, peer_id: Any, *args: Any, **kwargs: Any) -> Any:
        peer = str(peer_id)
        await _reachability.require(peer)
        try:
            result = await method(client, peer_id, *args, **kwargs)
        except BaseException as error:
            if classify(error) in (Failure.UNREACHABLE, Failure.NO_ANSWER):
                _reachability.not_reached(peer)
            raise
        if _reachability.reached(peer):
            with contextlib.suppress(Exception):  # it only makes a return be seen sooner
                await _learn(client, peer)
        return result

    return call


async def _learn(client: Any, peer: str) -> None:
    """Remembers where a peer was reached. The other end of a connection that it opened itself is no such place."""
    for info in await client.list_peers():
        if str(info.peer_id) == peer:
            for address in filter(None, map(tcp_address, map(str, info.addrs))):
                if await _reachability.listens(address):
                    _reachability.addresses[peer] = address
