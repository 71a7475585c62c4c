"""The benchmark for owners of a swarm: how it finds what limits one."""

from __future__ import annotations

import pytest

from benchmarks.swarm import describe_bottleneck, describe_servers
from dist_eval.petals.client.pacing import Ticket
from dist_eval.petals.client.records import Announcement, ServerTraffic
from dist_eval.petals.client.router import Router
from dist_eval.petals.client.routes import Span


def measured(**seconds_per_work: float) -> Router:
    router = Router()
    for peer, seconds in seconds_per_work.items():
        pacing = router.stats(peer).pacing
        ticket = pacing.admit(1000, 0.0)
        assert isinstance(ticket, Ticket)
        pacing.answered(ticket, 1000 * seconds)
    return router


def test_the_bottleneck_is_where_replicas_together_do_least() -> None:
    spans = [Span("first", 0, 4), Span("a", 4, 8), Span("b", 4, 8)]
    # through four blocks each: 250 tokens/s, and 100 + 200 tokens/s
    text = describe_bottleneck(spans, measured(first=0.001, a=0.0025, b=0.00125), 8)
    assert text.startswith("Bottleneck: blocks 0:4, held by ...first: about 250 tokens/s")
    text = describe_bottleneck(spans, measured(first=0.0005, a=0.0025, b=0.00125), 8)
    assert text.startswith("Bottleneck: blocks 4:8, held by ...a, ...b: about 300 tokens/s")


@pytest.mark.parametrize("gone", [True, False])
def test_every_server_that_answered_is_listed(gone: bool) -> None:
    router = measured(a=0.001)
    counts = {"requests": 1, "failures": 2, "wrong_answers": 0, "token_blocks": 1000}
    servers = [ServerTraffic(peer="a", announced=Announcement(), latency_p50=0.5, latency_p95=0.7, **counts)]
    line = describe_servers(servers, [] if gone else [Span("a", 0, 4)], router).splitlines()[1].split()
    assert line[:4] == ["...a", "gone" if gone else "0:4", "1", "2"]
    assert line[4:] == ["0.500", "0.700", "?" if gone else "250"]
