"""Checks that something listens at a peer's address before the p2p daemon, hivemind's helper process, dials it.

After a failed dial the daemon does not dial that peer again for 5 s, plus 1 s times the square of the attempts so far,
up to 5 minutes (libp2p's `DialBackoff`). A server that comes back would stay unreachable for that time. So before the
daemon dials a peer that was recently unreachable, the peer's address is probed: if nothing listens, the daemon does not
dial, and does not back off.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import re
import socket
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from dist_eval.errors import os_reason
from dist_eval.petals.client.failures import Failure, PeerUnreachable, classify

_TCP_ADDRESS = re.compile(r"^/(?:ip4|ip6|dns|dns4|dns6)/([^/]+)/tcp/([0-9]{1,5})(?:/p2p/(\w+))?$")
_PROBE_SECONDS, _SKIP_PROBE_SECONDS = 0.5, 15.0

CONTACT_SECONDS, BETWEEN_CONTACTS = 12.0, 1.0
"""How long and how often to try a peer before it counts as unreachable: longer than the daemon's first back-off."""

Address = tuple[str, int]
Say = Callable[[str], None]

_NOTICE_SECONDS = 5.0


class LateNotice:
    """Reports once that something is taking long; says nothing if `say` is None."""

    def __init__(self, say: Say | None) -> None:
        self._say, self._due = say, time.monotonic() + _NOTICE_SECONDS

    def is_due(self) -> bool:
        """Whether it is time, and nothing was said yet."""
        return self._say is not None and time.monotonic() > self._due

    def say(self, text: str) -> None:
        """Reports it."""
        if self._say is not None:
            self._say(text)
        self._say = None


class ReachabilityCache:
    """Caches where peers listen, and which of them were unreachable."""

    def __init__(self) -> None:
        self.addresses: dict[str, Address] = {}  # host and port by peer id
        self.failed_at: dict[str, float] = {}  # last failed attempt, of peers that have not been reached since
        self._seen: set[str] = set()

    async def require(self, peer: str) -> None:
        """Probes a peer that was unreachable, if its address is known.

        The probe is skipped 15 s after the last attempt, because the peer may have moved.
        """
        address, tried_at = self.addresses.get(peer), self.failed_at.get(peer)
        if address is None or tried_at is None or time.monotonic() - tried_at > _SKIP_PROBE_SECONDS:
            return
        if not await self.listens(address):
            raise PeerUnreachable(f"nothing listens at {address[0]}:{address[1]}")

    def mark_reached(self, peer: str) -> bool:
        """Records that a peer was reached; returns whether this is the first time and its address is unknown."""
        self.failed_at.pop(peer, None)
        is_new = peer not in self._seen
        self._seen.add(peer)
        return is_new and peer not in self.addresses

    def mark_unreachable(self, peer: str) -> None:
        """Records that a peer could not be reached."""
        self.failed_at[peer] = time.monotonic()

    @staticmethod
    async def listens(address: Address) -> bool:
        """Returns whether something listens at an address."""
        try:
            _, writer = await asyncio.wait_for(asyncio.open_connection(*address), _PROBE_SECONDS)
        except (OSError, asyncio.TimeoutError):
            return False
        writer.close()
        return True


_reachability = ReachabilityCache()  # of this process; a forked DHT node starts with a copy


def probe_before_dialing(peers: Iterable[str]) -> None:
    """Makes this process, and nodes that it forks, probe a peer before the daemon dials it.

    The peers count as unreachable until they are reached.
    """
    from hivemind.p2p.p2p_daemon_bindings.p2pclient import Client

    for text in peers:
        if (address := tcp_address(text)) is not None:
            peer = text.rpartition("/p2p/")[2]
            _reachability.addresses[peer] = address
            _reachability.mark_unreachable(peer)
    for name in ("call_unary_handler", "stream_open", "connect"):
        method = getattr(Client, name)
        if not hasattr(method, "__wrapped__"):
            setattr(Client, name, _probing(method))


def tcp_address(text: str) -> Address | None:
    """Returns the host and port of a peer's address; None if it is not plain TCP."""
    match = _TCP_ADDRESS.match(text)
    return None if match is None or int(match[2]) > 65535 else (match[1], int(match[2]))


def may_listen(text: str, timeout: float) -> bool:
    """Returns whether something listens at a peer's address; True if it is not plain TCP. `timeout` is in seconds."""
    return not why_unreachable(text, timeout)


def why_unreachable(text: str, timeout: float) -> str:
    """Explains why nothing seems to listen at a peer's address; empty if `may_listen`."""
    address = tcp_address(text)
    if address is None:
        return ""
    try:
        socket.create_connection(address, timeout=timeout).close()
    except ConnectionRefusedError:
        return "nothing listens there"
    except TimeoutError:
        return "no answer: the machine is off, or a firewall drops packets to that port"
    except (OSError, ValueError) as error:
        return os_reason(error) if isinstance(error, OSError) else str(error)
    return ""


def _probing(method: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    @functools.wraps(method)
    async def call(client: Any, peer_id: Any, *args: Any, **kwargs: Any) -> Any:
        peer = str(peer_id)
        await _reachability.require(peer)
        try:
            result = await method(client, peer_id, *args, **kwargs)
        except BaseException as error:
            if classify(error) in (Failure.UNREACHABLE, Failure.NO_ANSWER):
                _reachability.mark_unreachable(peer)
            raise
        if _reachability.mark_reached(peer):
            with contextlib.suppress(Exception):  # only serves to notice sooner that a peer is back
                await _learn_address(client, peer)
        return result

    return call


async def _learn_address(client: Any, peer: str) -> None:
    """Caches the listening address of a peer; a connection that the peer opened itself has another port."""
    for info in await client.list_peers():
        if str(info.peer_id) == peer:
            for address in filter(None, map(tcp_address, map(str, info.addrs))):
                if await _reachability.listens(address):
                    _reachability.addresses[peer] = address
