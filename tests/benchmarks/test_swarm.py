"""The benchmark for owners of a swarm, on a running one and on its own; and how it finds what limits a swarm."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import Launcher

from benchmarks.swarm import describe_bottleneck, describe_servers
from dist_eval import demo
from dist_eval.results.work import ServerTraffic
from dist_eval.swarm.pacing import Ticket
from dist_eval.swarm.private import PrivateSwarm
from dist_eval.swarm.router import Router
from dist_eval.swarm.routes import Span


def measured(**seconds_per_work: float) -> Router:
    router = Router()
    for peer, seconds in seconds_per_work.items():
        pacing = router.stats(peer).pacing
        ticket = pacing.admit(1000, 0.0)
        assert isinstance(ticket, Ticket)
        pacing.answered(ticket, 1000 * seconds)
    return router


def test_it_tells_what_a_running_swarm_sustains(launcher: Launcher, demo_swarm: PrivateSwarm, tmp_path: Path) -> None:
    peers = ["--initial-peers", *demo_swarm.initial_peers, "--model", str(demo.BASE_MODEL)]
    done = launcher.run("-m", "benchmarks.swarm", "--quick", *peers, "--output", str(tmp_path), preloaded=False)
    assert done.returncode == 0, done.stderr
    assert "Bottleneck: blocks" in done.stdout
    for address in demo_swarm.initial_peers:
        assert f"...{address[-8:]}" in done.stdout
    found = json.loads((tmp_path / "swarm.json").read_text())
    assert {(one["group"], one["name"]) for one in found["series"]} == {
        (f"{budget} tokens a request", name) for budget in (128, 512) for name in ("1 under way", "window free")
    }
    assert all(one["values"][0] > 0 and one["details"][0]["examples_per_second"] > 0 for one in found["series"])
    assert (tmp_path / "swarm.png").read_bytes().startswith(b"\x89PNG")
    assert launcher.leftovers() == []


def test_a_swarm_that_does_not_answer_is_one_clear_message(launcher: Launcher, tmp_path: Path) -> None:
    peer = "/ip4/127.0.0.1/tcp/9/p2p/QmXrBc2Pm66y8HsrBPtxEp6jaBQaRzN15V8UcNophNNmik"
    done = launcher.run(
        *("-m", "benchmarks.swarm", "--initial-peers", peer, "--swarm-timeout", "2", "--output", str(tmp_path)),
        preloaded=False,
    )
    assert done.returncode == 1
    assert "None of the swarm's peers answered within 2 s" in done.stderr
    assert "Traceback" not in done.stderr
    assert launcher.leftovers() == []


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
    servers = [ServerTraffic(peer="a", latency_p50=0.5, latency_p95=0.7, **counts)]
    line = describe_servers(servers, [] if gone else [Span("a", 0, 4)], router).splitlines()[1].split()
    assert line[:4] == ["...a", "gone" if gone else "0:4", "1", "2"]
    assert line[4:] == ["0.500", "0.700", "?" if gone else "250"]
