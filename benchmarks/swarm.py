"""`python -m benchmarks.swarm --model … --initial-peers …`: the throughput of a swarm, and its bottleneck.

Sends synthetic requests (random tokens, no user data) of several sizes, with several numbers of them in flight, each
for a fixed time. Without `--initial-peers` it starts a private swarm of the embedded example's base model.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from benchmarks.harness import Program, Report
from dist_eval import demo
from dist_eval.inference.in_flight import Window
from dist_eval.petals.client.records import ServerTraffic
from dist_eval.petals.client.router import Router
from dist_eval.petals.client.routes import Span
from dist_eval.petals.model.checkpoint import TunedCheckpoint

QUESTION = "What does this swarm sustain, and which of its servers limit it?"


def measure(options: argparse.Namespace, scratch_dir: Path) -> None:
    """Measures all sizes and windows, in rounds."""
    from dist_eval.petals.base_model.config import default_dht_prefix, read_base_config
    from dist_eval.petals.client.hivemind_compat import prepare_hivemind

    prepare_hivemind(sockets=scratch_dir)
    from dist_eval.model.classifier import with_tuned_head
    from dist_eval.model.swarm_backbone import load_swarm_backbone
    from dist_eval.petals.client.client import join_swarm
    from dist_eval.petals.client.coverage import wait_until_covered
    from dist_eval.petals.client.directory import ServerDirectory
    from dist_eval.petals.client.requests import SwarmRequests

    report = Report("swarm", QUESTION, unit="tokens/s", options=options)
    config = read_base_config(options.model)
    prefix = options.dht_prefix or default_dht_prefix(options.model, config)
    blocks, prompts = config.num_hidden_layers, options.prompt_tokens
    settings: dict[str, Any] = {"request_timeout": options.request_timeout, "max_retries": 2}
    best: tuple[float, str, SwarmRequests] | None = None
    retries = 0
    with _peers(options, prefix, blocks) as peers:
        dht = join_swarm(peers, options.swarm_timeout)
        coverage = wait_until_covered(dht, prefix, blocks, options.swarm_timeout)
        tuned = random_checkpoint(config, prompts)
        backbone = load_swarm_backbone(options.model, dht, dht_prefix=prefix, **settings)
        classifier = with_tuned_head(backbone, options.model, tuned)
        directory = ServerDirectory(dht, prefix, blocks)
        directory.start(options.swarm_timeout)
        try:
            for _, budget, size in itertools.product(range(options.rounds), options.budgets, options.windows):
                rows = max(1, budget // (options.length + prompts))
                input_ids = torch.randint(0, config.vocab_size, (rows, options.length))
                batch = (input_ids, torch.full((rows,), options.length))
                backbone.requests = SwarmRequests(directory, config, **settings)
                window = Window(size or None, timeout=options.request_timeout)
                send = functools.partial(classifier.logits, *batch)
                batches, seconds = drive(send, window, options.seconds, lambda: classifier.retries)
                retries += classifier.retries
                examples, tokens = batches * rows / seconds, batches * rows * (options.length + prompts) / seconds
                name = f"{size} under way" if size else "window free"
                details = {"examples_per_second": examples, "window": window.size}
                report.add(f"{budget} tokens a request", name, tokens, details)
                if best is None or tokens > best[0]:
                    sentence = (
                        f"Best: {budget} tokens a request, {name}: {tokens:.0f} tokens/s, {examples:.1f} examples/s "
                        f"of {options.length} tokens and {prompts} prompt tokens. There:"
                    )
                    best = tokens, sentence, backbone.requests
            spans = backbone.requests.servers.spans()
        finally:
            classifier.close()
    assert best is not None
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
    from dist_eval.petals.server.private import PrivateSwarm, split_blocks

    with PrivateSwarm(
        options.model, num_blocks=blocks, dht_prefix=prefix, spans=split_blocks(blocks, 2), threads=1
    ) as swarm:
        yield swarm.initial_peers


def random_checkpoint(config: Any, prompt_tokens: int) -> TunedCheckpoint:
    """Builds random deep prompts and a head with two labels for a base model."""
    generator = torch.Generator().manual_seed(0)
    hidden, layers = config.hidden_size, config.num_hidden_layers
    return TunedCheckpoint(
        head=0.02 * torch.randn(2, hidden, generator=generator),
        prompts=0.02 * torch.randn(prompt_tokens, hidden, generator=generator) if prompt_tokens else None,
        deep_prompts=0.02 * torch.randn(layers, prompt_tokens, hidden, generator=generator) if prompt_tokens else None,
        label_names=["0", "1"],
        architecture={key: getattr(config, key) for key in ("model_type", "hidden_size", "num_hidden_layers")},
    )


def drive(send: Callable[[], Any], window: Window, seconds: float, retries: Callable[[], int]) -> tuple[int, float]:
    """Sends requests for some time, as many at a time as a window allows.

    Args:
        send: sends one request and waits for its answer.
        window: limits the number in flight.
        seconds: time after which no further request is sent.
        retries: returns the number of retries so far.

    Returns:
        How many were answered, and the seconds until the last answer.
    """
    start, answered = time.monotonic(), 0
    in_flight: set[Future[float]] = set()

    def timed() -> float:
        sent = time.monotonic()
        send()
        return time.monotonic() - sent

    with ThreadPoolExecutor(window.largest) as pool:
        while True:
            while len(in_flight) < window.size and time.monotonic() - start < seconds:
                in_flight.add(pool.submit(timed))
            if not in_flight:
                return answered, time.monotonic() - start
            done, in_flight = wait(in_flight, return_when=FIRST_COMPLETED)
            for future in done:
                window.finished(future.result(), retries())
            answered += len(done)


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
    capacity = [0.0] * blocks
    for span in spans:
        speed = router.stats(span.peer).pacing.seconds_per_work
        if speed:
            for block in range(span.start, span.end):
                capacity[block] += 1.0 / (speed * (span.end - span.start))
    least = min(capacity)
    limited = [block for block, rate in enumerate(capacity) if rate <= least * 1.001]
    holders = [f"...{str(span.peer)[-8:]}" for span in spans if span.start <= limited[0] < span.end]
    return (
        f"Bottleneck: blocks {limited[0]}:{limited[-1] + 1}, held by {', '.join(holders)}: "
        f"about {least:.0f} tokens/s at most."
    )


PROGRAM = Program(
    "swarm", QUESTION, measure, rounds=1, quick={"budgets": [128, 512], "windows": [1, 0], "seconds": 1.0}
)
PROGRAM.add("--model", str(demo.BASE_MODEL), "folder or hub name of the base model")
PROGRAM.parser.add_argument("--initial-peers", nargs="+", default=[], metavar="ADDRESS", help="of the swarm")
PROGRAM.parser.add_argument("--dht-prefix", help="name under which the swarm announces the model")
PROGRAM.add("--budgets", (128, 512, 1024), "tokens in a request")
PROGRAM.add("--windows", (1, 4, 16, 0), "requests in flight; 0: adaptive")
PROGRAM.add("--length", 32, "tokens of a text")
PROGRAM.add("--prompt-tokens", 16, "deep prompts")
PROGRAM.add("--seconds", 10.0, "for each measurement")
PROGRAM.add("--swarm-timeout", 120.0, "until the swarm answers and has all blocks", metavar="SECONDS")
PROGRAM.add("--request-timeout", 60.0, "for each request", metavar="SECONDS")

if __name__ == "__main__":
    PROGRAM.main()
