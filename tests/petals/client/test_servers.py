"""Which servers are used, and what is said while requests wait for them."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from transformers import AutoConfig

from dist_eval.errors import OutageError, SwarmError
from dist_eval.petals.client import servers as module
from dist_eval.petals.client.attempts import NoServer
from dist_eval.petals.client.petals_version import ANNOUNCED
from dist_eval.petals.client.records import Announcement
from dist_eval.petals.client.routes import Span
from dist_eval.petals.client.servers import SwarmServers


class Outage:
    """Servers that cannot be reached, and a clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: self.now))
        monkeypatch.setattr(module, "_POLL_SECONDS", 0.0)
        nothing: Any = SimpleNamespace(num_blocks=4)
        self.servers = SwarmServers(nothing, None, nothing, outage_timeout=120.0, rejoin=lambda: None)
        self.begin()

    def begin(self) -> None:
        self.began, why = self.now, "a long text of a library"
        self.error = NoServer("blocks 2:4 (peer QmLong)", why, self.now, "blocks 2:4 (peer ...Long)")

    def said_within(self, seconds: int) -> list[tuple[float, str]]:
        """Waits, and returns what was said, and when after the outage began."""
        said = []
        for _ in range(seconds):
            asyncio.run(self.servers.wait(self.error))
            if text := self.servers.notice():
                said.append((self.now - self.began, text))
            self.now += 1.0
        return said


@pytest.fixture
def outage(monkeypatch: pytest.MonkeyPatch) -> Outage:
    return Outage(monkeypatch)


def test_an_outage_is_said_in_growing_intervals_and_its_end_once(outage: Outage) -> None:
    said = outage.said_within(110)
    assert [at for at, _ in said] == [0, 15, 45, 105]
    line = "no server to reach for blocks 2:4 (peer ...Long); the run waits up to 120 s (--swarm-timeout)"
    assert {text for _, text in said} == {line}
    outage.servers.came_back()
    assert [outage.servers.notice() for _ in range(2)] == ["servers can be reached again, the run goes on", ""]
    outage.begin()
    assert outage.said_within(3) == [(0, line)], "the next outage is said at once"


def test_a_daemon_that_backs_off_for_some_seconds_is_no_outage_yet(outage: Outage) -> None:
    outage.error.why = "failed to dial: all dials failed * [/ip4/127.0.0.1/tcp/31337] dial backoff"
    assert [at for at, _ in outage.said_within(20)] == [13]


def test_an_outage_is_not_over_while_other_requests_wait(outage: Outage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_POLL_SECONDS", 0.01)
    assert len(outage.said_within(1)) == 1
    for _ in range(5):  # one request has its answer, while another one still waits
        outage.servers.came_back()
        assert outage.said_within(1) == []
    assert outage.servers.notice() == "servers can be reached again, the run goes on"


def test_what_was_not_said_has_no_end_either_and_after_giving_up_an_outage_is_said_anew(outage: Outage) -> None:
    outage.servers.came_back()
    assert outage.servers.notice() == ""
    assert len(outage.said_within(1)) == 1
    outage.now += 120.0
    with pytest.raises(OutageError, match=r"for 120 s .* no server to reach for blocks 2:4 .*: a long text"):
        outage.said_within(1)
    outage.begin()
    assert len(outage.said_within(1)) == 1


def servers_of(config: dict[str, Any], *spans: Span) -> SwarmServers:
    directory: Any = SimpleNamespace(num_blocks=4, dht_prefix="model", spans=lambda: spans, start=lambda timeout: None)
    nothing: Any = None
    return SwarmServers(directory, AutoConfig.for_model(**config), nothing, outage_timeout=120.0, rejoin=lambda: None)


def test_servers_that_would_compute_something_else_are_not_used_beside_those_that_do_not() -> None:
    release, today = (Span(version, 0, 4, Announcement(version=version)) for version in ("2.2.0.post1", ANNOUNCED))
    assert servers_of({"model_type": "llama"}, release, today).spans() == [release, today]
    servers = servers_of({"model_type": "qwen3"}, release, today)
    servers.start(1.0)
    assert servers.spans() == [today]
    with pytest.raises(SwarmError, match="compute something else: this model needs servers with `dist-eval swarm`"):
        servers_of({"model_type": "qwen3"}, release).start(1.0)
