"""Where peers listen, and whether it is worth making the daemon dial them."""

from __future__ import annotations

import asyncio
import socket

import pytest

from dist_eval.swarm import p2p_daemon as daemon
from dist_eval.swarm.failures import Failure, classify
from dist_eval.swarm.p2p_daemon import PeerUnreachable, ReachabilityCache, tcp_address


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
def test_only_plain_tcp_can_be_knocked_at(text: str, expected: tuple[str, int] | None) -> None:
    assert tcp_address(text) == expected


def test_a_peer_that_went_away_is_not_dialled_until_something_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    bell = ReachabilityCache()
    with socket.create_server(("127.0.0.1", 0)) as server:
        bell.addresses["peer"] = address = server.getsockname()[:2]

    async def story() -> None:
        await bell.require("peer")  # nobody has failed to reach it
        bell.not_reached("peer")
        with pytest.raises(PeerUnreachable, match=f"nothing listens at 127.0.0.1:{address[1]}") as caught:
            await bell.require("peer")
        assert classify(caught.value) is Failure.UNREACHABLE
        with socket.create_server(address):
            await bell.require("peer")
        monkeypatch.setattr(daemon, "_LET_THROUGH_SECONDS", 0.0)
        await bell.require("peer")  # it may have moved

    asyncio.run(story())


def test_where_a_peer_listens_is_found_out_once() -> None:
    bell = ReachabilityCache()
    bell.not_reached("unknown")
    asyncio.run(bell.require("unknown"))
    assert [bell.reached("unknown"), bell.reached("unknown")] == [True, False]
    bell.addresses["known"] = ("127.0.0.1", 1)
    assert not bell.reached("known")
    bell.not_reached("known")
    assert not bell.reached("known")
    assert not bell.away
