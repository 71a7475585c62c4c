"""`python -m benchmarks.swarm --model … --initial-peers …`: the throughput of a swarm, and its bottleneck.

Sends synthetic requests (random tokens, no user data) of several sizes, with several numbers of them in flight, each
for a fixed time. Without `--initial-peers` it starts a private swarm of the embedded example's base model.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.load import drive, random_batches, random_checkpoint
from benchmarks.program import run_program
from dist_eval import demo
from dist_eval.inference.window import Window
from dist_eval.results.work import ServerTraffic
from dist_eval.swarm.router import Router
from dist_eval.swarm.routes import Span

QUESTION = "What does this swarm sustain, and which of its servers limit it?"
_TIMEOUT = 120.0
_MOST_BATCHES = 100_000


def measure(options: argparse.Namespace, scratch_dir: Path) -> None:
    """Measures all sizes and windows, in rounds.

    Args:
        options: the command line.
        scratch_dir: folder for temporary files.
    """
    from dist_eval.swarm.families import default_dht_prefix, read_base_config
    from dist_eval.swarm.hivemind_compat import prepare_hivemind

    prepare_hivemind(sockets=scratch_dir)
    from dist_eval.model.classifier import load_on_swarm
    from dist_eval.model.swarm_backbone import SwarmBackbone
    from dist_eval.swarm.client import join_swarm
    from dist_eval.swarm.coverage import wait_until_covered
    from dist_eval.swarm.directory import ServerDirectory
    from dist_eval.swarm.requests import SwarmRequests

    report = harness.Report("swarm", QUESTION, unit="tokens/s", options=options)
    config = read_base_config(options.model)
    prefix = options.dht_prefix or default_dht_prefix(options.model, config)
    blocks, prompts = config.num_hidden_layers, options.prompt_tokens
    settings: dict[str, Any] = {"request_timeout": options.request_timeout, "max_retries": 2}
    with _peers(options, prefix, blocks) as peers:
        dht = join_swarm(peers, options.swarm_timeout)
        coverage = wait_until_covered(dht, prefix, blocks, options.swarm_timeout)
        tuned = random_checkpoint(config, prompts)
        classifier = load_on_swarm(options.model, tuned, dht, dht_prefix=prefix, **settings)
        backbone, directory = classifier.backbone, ServerDirectory(dht, prefix, blocks)
        assert isinstance(backbone, SwarmBackbone)
        directory.start(options.swarm_timeout)
        best: tuple[float, str, SwarmRequests] | None = None
        retries = 0
        try:
            for _ in range(1 if options.quick else options.rounds):
                for budget in options.budgets:
                    batches = random_batches(
                        16, budget=budget, length=options.length, prompt_tokens=prompts, vocabulary=config.vocab_size
                    ) * (_MOST_BATCHES // 16)
                    for size in options.windows:
                        backbone.requests = SwarmRequests(directory, config, **settings)
                        window = Window(size or None, timeout=options.request_timeout)
                        load = drive(
                            classifier.logits,
                            batches,
                            window,
                            prompt_tokens=prompts,
                            retries=lambda: classifier.retries,
                            seconds=options.seconds,
                        )
                        retries += classifier.retries
                        name = f"{size} under way" if size else "window free"
                        details = {"examples_per_second": load.examples / load.seconds, "window": window.size}
                        rate = load.tokens / load.seconds
                        report.add(f"{budget} tokens a request", name, rate, details)
                        if best is None or rate > best[0]:
                            sentence = (
                                f"Best: {budget} tokens a request, {name}: {rate:.0f} tokens/s, "
                                f"{load.examples / load.seconds:.1f} examples/s of {options.length} tokens and "
                                f"{prompts} prompt tokens. There:"
                            )
                            best = rate, sentence, backbone.requests
            assert best is not None
            spans = backbone.requests.servers.spans()
        finally:
            classifier.close()
    _, sentence, requests = best
    report.note(f"{coverage.describe()}\n\n{sentence}")
    report.note(describe_servers(requests.traffic().servers, spans, requests.router))
    report.note(f"{describe_bottleneck(spans, requests.router, blocks)} Retries in all: {retries}.")
    report.finish()


@contextmanager
def _peers(options: argparse.Namespace, prefix: str, blocks: int) -> Iterator[Sequence[str]]:
    if options.initial_peers:
        yield options.initial_peers
        return
    from dist_eval.swarm.private import PrivateSwarm, split_blocks

    with PrivateSwarm(
        options.model, num_blocks=blocks, dht_prefix=prefix, spans=split_blocks(blocks, 2), threads=1
    ) as swarm:
        yield swarm.initial_peers


def describe_servers(servers: Sequence[ServerTraffic], spans: Sequence[Span], router: Router) -> str:
    """Returns a table of the servers' requests and speeds.

    Args:
        servers: what each of them was sent.
        spans: the servers' blocks.
        router: the router with its measurements.
    """
    blocks = {str(span.peer): span for span in spans}
    speeds = {str(peer): server.pacing.seconds_per_work for peer, server in router.servers.items()}
    lines = ["server       blocks    requests  failures   p50 s   p95 s  tokens/s through its blocks"]
    for server in servers:
        peer = server.peer
        span, speed, p50, p95 = blocks.get(peer), speeds.get(peer), server.latency_p50, server.latency_p95
        where = f"{span.start}:{span.end}" if span else "gone"
        rate = f"{1 / (speed * (span.end - span.start)):.0f}" if span and speed else "?"
        times = "      ?       ?" if p50 is None else f"{p50:7.3f} {p95:7.3f}"
        lines.append(f"...{peer[-8:]}  {where:<8}  {server.requests:>8}  {server.failures:>8} {times}  {rate:>8}")
    return "\n".join(lines)


def describe_bottleneck(spans: Sequence[Span], router: Router, blocks: int) -> str:
    """Names the blocks whose servers have the lowest total throughput.

    The capacity of a server is its measured throughput through all of its blocks; replicas add up.

    Args:
        spans: the servers' blocks.
        router: the router with its measurements.
        blocks: number of blocks of the model.
    """
    capacity = []
    for block in range(blocks):
        total = 0.0
        for span in spans:
            speed = router.stats(span.peer).pacing.seconds_per_work
            if span.start <= block < span.end and speed:
                total += 1.0 / (speed * (span.end - span.start))
        capacity.append(total)
    least = min(capacity)
    limited = [block for block, rate in enumerate(capacity) if rate <= least * 1.001]
    holders = [f"...{str(span.peer)[-8:]}" for span in spans if span.start <= limited[0] < span.end]
    return (
        f"Bottleneck: blocks {limited[0]}:{limited[-1] + 1}, held by {', '.join(holders)}: "
        f"about {least:.0f} tokens/s at most."
    )


def main() -> None:
    """Runs the command line."""
    parser = harness.parser("swarm", QUESTION, rounds=1)
    parser.add_argument("--model", default=str(demo.BASE_MODEL), help="folder or hub name of the base model")
    parser.add_argument("--initial-peers", nargs="+", default=[], metavar="ADDRESS", help="addresses of the swarm")
    parser.add_argument("--dht-prefix", help="name under which the swarm announces the model")
    parser.add_argument("--budgets", type=int, nargs="+", default=[128, 512, 1024], help="tokens in a request")
    parser.add_argument("--windows", type=int, nargs="+", default=[1, 4, 16, 0], help="requests in flight; 0: adaptive")
    parser.add_argument("--length", type=int, default=32, help="tokens of a text (default 32)")
    parser.add_argument("--prompt-tokens", type=int, default=16, help="deep prompts (default 16)")
    parser.add_argument("--seconds", type=float, default=10.0, help="for each measurement (default 10)")
    parser.add_argument("--swarm-timeout", type=float, default=_TIMEOUT, metavar="SECONDS")
    parser.add_argument("--request-timeout", type=float, default=60.0, metavar="SECONDS")
    options = parser.parse_args()
    if options.quick:
        options.budgets, options.windows, options.seconds = [128, 512], [1, 0], 1.0

    run_program(lambda scratch_dir: measure(options, scratch_dir))


if __name__ == "__main__":
    main()
