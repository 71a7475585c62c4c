"""Probing peers before the daemon dials them."""

from __future__ import annotations

import asyncio
import socket

import pytest

from dist_eval.petals.client import reachability
from dist_eval.petals.client.failures import Failure, PeerUnreachable, classify
from dist_eval.petals.client.reachability import ReachabilityCache, tcp_address


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/ip4/127.0.0.1/tcp/4001/p2p/Qm1", ("127.0.0.1", 4001)),
        ("/ip6/::1/tcp/4001/p2p/Qm1", ("::1", 4001)),
        ("/dns4/example.invalid/tcp/80", ("example.invalid", 80)),
        ("/ip4/127.0.0.1/tcp/70000/p2p/Qm1", None),
        ("/ip4/127.0.0.1/udp/4001/quic/p2p/Qm1", None),
        ("/ip4/127.0.0.1/tcp/4001/p2p/Qm1/p2p-circuit/p2p/Qm2", None),
        ("/dnsaddr/example.invalid/p2p/Qm1", None),
        ("", None),
    ],
)
def test_only_plain_tcp_can_be_probed(text: str, expected: tuple[str, int] | None) -> None:
    assert tcp_address(text) == expected


def test_an_unreachable_peer_is_not_dialed_until_something_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = ReachabilityCache()
    with socket.create_server(("127.0.0.1", 0)) as server:
        cache.addresses["peer"] = address = server.getsockname()[:2]

    async def scenario() -> None:
        await cache.require("peer")  # no attempt has failed yet
        cache.mark_unreachable("peer")
        with pytest.raises(PeerUnreachable, match=f"nothing listens at 127.0.0.1:{address[1]}") as caught:
            await cache.require("peer")
        assert classify(caught.value) is Failure.NOT_LISTENING
        with socket.create_server(address):
            await cache.require("peer")
        monkeypatch.setattr(reachability, "_SKIP_PROBE_SECONDS", 0.0)
        await cache.require("peer")  # it may have moved

    asyncio.run(scenario())


def test_a_peers_address_is_learned_once() -> None:
    cache = ReachabilityCache()
    cache.mark_unreachable("unknown")
    asyncio.run(cache.require("unknown"))
    assert [cache.mark_reached("unknown"), cache.mark_reached("unknown")] == [True, False]
    cache.addresses["known"] = ("127.0.0.1", 1)
    assert not cache.mark_reached("known")
    cache.mark_unreachable("known")
    assert not cache.mark_reached("known")
    assert not cache.failed_at
