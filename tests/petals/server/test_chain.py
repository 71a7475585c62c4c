"""What a server knows of those that it passes requests on to; real chains are in `client/test_chain.py`."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Mapping
from typing import Any

import pytest

from dist_eval.petals.client.announcements import ServerRecord
from dist_eval.petals.client.chain import Hop
from dist_eval.petals.client.petals_version import ANNOUNCED
from dist_eval.petals.server import chain
from dist_eval.petals.server.chain import AnnouncedServers, CannotPassOn

PEER = "QmRxVLPuFyTNFHhxwGXpQ4KqjM5vDohjvnVSbdRW38bWd3"
HOP = Hop(peer=PEER, start=3, end=5, patience=1.0)
RECORD = ServerRecord(state="online", throughput=1.0, start_block=3, end_block=6, version=ANNOUNCED)


class Swarm:
    """Takes the place of the DHT: look-ups last until they are released."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.records: dict[str, ServerRecord] = {PEER: RECORD}
        self.look_ups, self.released = 0, threading.Event()
        self.released.set()
        monkeypatch.setattr(chain, "read_block", self._read)

    def _read(self, dht: Any, dht_prefix: str, block: int, timeout: float) -> Mapping[str, ServerRecord]:
        assert block == HOP.start
        self.look_ups += 1
        self.released.wait(20.0)
        return dict(self.records)


@pytest.fixture
def swarm(monkeypatch: pytest.MonkeyPatch) -> Swarm:
    return Swarm(monkeypatch)


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 20.0))


def test_requests_wait_for_the_first_look_up_only(swarm: Swarm, monkeypatch: pytest.MonkeyPatch) -> None:
    async def ask() -> None:
        servers = AnnouncedServers(None, "m")
        found = await asyncio.gather(*(servers.named(HOP, "") for _ in range(9)))
        assert {(str(span.peer), span.start, span.end) for span in found} == {(PEER, 3, 5)} and swarm.look_ups == 1
        monkeypatch.setattr(chain, "_READ_SECONDS", 0.0)
        swarm.released.clear()
        for _ in range(9):
            await servers.named(HOP, "")  # although the look-up goes on
        swarm.records.clear()
        swarm.released.set()
        while servers._reading[HOP.start] and not servers._reading[HOP.start].done():
            await asyncio.sleep(0.01)
        assert swarm.look_ups == 2
        with pytest.raises(CannotPassOn, match="is not announced as a server of blocks 3:5"):
            await servers.named(HOP, "")

    run(ask())


def test_what_was_prepared_is_known(swarm: Swarm) -> None:
    async def ask() -> None:
        servers = AnnouncedServers(None, "m")
        for _ in range(3):
            servers.prepare(HOP.start)
        await servers.named(HOP, "")
        servers.prepare(HOP.start)
        assert swarm.look_ups == 1

    run(ask())


def test_a_server_that_is_not_known_is_looked_up_again_but_not_at_once(
    swarm: Swarm, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def ask() -> None:
        servers, record = AnnouncedServers(None, "m"), swarm.records.pop(PEER)
        for _ in range(3):
            with pytest.raises(CannotPassOn):
                await servers.named(HOP, "")
        assert swarm.look_ups == 1
        swarm.records[PEER] = record
        monkeypatch.setattr(chain, "_READ_AGAIN_SECONDS", 0.0)
        assert (await servers.named(HOP, "")).announced.version == ANNOUNCED
        with pytest.raises(CannotPassOn):
            await servers.named(HOP, "an-adapter")

    run(ask())


def test_a_request_that_ends_does_not_end_the_look_up_of_others(swarm: Swarm) -> None:
    async def ask() -> None:
        servers = AnnouncedServers(None, "m")
        swarm.released.clear()
        first, second = (asyncio.create_task(servers.named(HOP, "")) for _ in range(2))
        await asyncio.sleep(0.05)
        first.cancel()
        await asyncio.sleep(0)
        swarm.released.set()
        assert (await second).end == HOP.end and swarm.look_ups == 1

    run(ask())
