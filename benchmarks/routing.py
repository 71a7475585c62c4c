"""`python -m benchmarks.routing`: the cost of a slow replica, with Petals' choice of servers and with dist_eval's.

Two servers hold all blocks. One of them is throttled: its process is stopped four fifths of the time, so that it is
five times slower, while its connections stay open. The same requests are then sent through the swarm in several ways.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.alternatives.forwards import Spec
from benchmarks.contenders import Contender, run_alternative
from benchmarks.load import Load, drive, random_batches
from benchmarks.models import PROMPT_TOKENS, SMALL, TINY, Model, make_model
from benchmarks.program import run_program
from benchmarks.text import make_corpus
from dist_eval.inference.window import Window
from dist_eval.model.checkpoint import TunedCheckpoint
from dist_eval.swarm.private import PrivateSwarm
from dist_eval.swarm.router import Router
from dist_eval.swarm.routes import Span

QUESTION = "Of two replicas one is five times slower: how fast is a run, by the way its servers are chosen?"
GROUP = "one replica five times slower"
ALONE, PETALS, BY_LENGTH, MEASURED, FREE = (
    "the fast replica alone",
    "Petals' own forward",
    "servers at random, as Petals",
    "dist_eval",
    "dist_eval, window free",
)
_SLOWDOWN, _PERIOD_SECONDS = 5.0, 0.05
_WINDOW, _TEXT_TOKENS, _BUDGET = 8, 25, 1024
_TIMEOUT, _POLL_SECONDS = 120.0, 0.2


class ByLength(Router):
    """Petals' rule: random, weighted by the number of blocks that a server holds."""

    def next_segment(self, spans: Sequence[Span], start: int, end: int, tokens: int, now: float) -> Span | None:
        """See `Router.next_segment`."""
        here = [span for span in spans if span.start <= start < span.end]
        chosen = random.choices(here, [span.end - span.start for span in here])[0]
        return replace(chosen, start=start, end=min(chosen.end, end))


class Only(Router):
    """Uses one server only."""

    def __init__(self, peer: str) -> None:
        super().__init__()
        self._peer = peer

    def next_segment(self, spans: Sequence[Span], start: int, end: int, tokens: int, now: float) -> Span | None:
        """See `Router.next_segment`."""
        return super().next_segment([span for span in spans if str(span.peer) == self._peer], start, end, tokens, now)


@contextmanager
def held_up(process: int, slowdown: float) -> Iterator[None]:
    """Throttles a process: it runs during a part of each period only."""
    done = threading.Event()

    def stop_and_go() -> None:
        while not done.is_set():
            os.kill(process, signal.SIGSTOP)
            done.wait(_PERIOD_SECONDS * (1.0 - 1.0 / slowdown))
            os.kill(process, signal.SIGCONT)
            done.wait(_PERIOD_SECONDS / slowdown)

    thread = threading.Thread(target=stop_and_go)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def measure(options: argparse.Namespace, scratch_dir: Path) -> None:
    """Sends the same batches with each routing, in rounds.

    Args:
        options: the command line.
        scratch_dir: folder for temporary files.
    """
    from dist_eval.swarm.hivemind_compat import prepare_hivemind

    prepare_hivemind(sockets=scratch_dir)
    report = harness.Report("routing", QUESTION, unit="tokens/s", options=options)
    size, batches = (TINY, 16) if options.quick else (SMALL, options.batches)
    model = make_model(scratch_dir, size, make_corpus(100).sentences)
    with PrivateSwarm(
        str(model.base), num_blocks=size.layers, dht_prefix=model.dht_prefix, spans=[(0, size.layers)] * 2, threads=1
    ) as swarm:
        for _ in range(1 if options.quick else options.rounds):
            _round(report, swarm, model, batches, scratch_dir)
    bar = None if options.quick else 1.6
    report.compare("dist_eval / Petals' own forward", (GROUP, MEASURED), (GROUP, PETALS), bar=bar)
    report.compare("dist_eval / servers at random", (GROUP, MEASURED), (GROUP, BY_LENGTH), bar=bar)
    report.compare("dist_eval / the fast replica alone", (GROUP, MEASURED), (GROUP, ALONE))
    report.note(
        f"All but Petals' own forward go through dist_eval's requests. {batches} batches of {_BUDGET} tokens at most, "
        f"{_WINDOW} under way at a time, except where the window is free. What a server takes for a token and a block "
        "is measured anew in every run."
    )
    report.finish()


def _round(report: harness.Report, swarm: PrivateSwarm, model: Model, count: int, scratch_dir: Path) -> None:
    from transformers import AutoConfig

    from dist_eval.model.classifier import load_on_swarm
    from dist_eval.model.swarm_backbone import SwarmBackbone
    from dist_eval.swarm.client import join_swarm
    from dist_eval.swarm.coverage import look_up_coverage
    from dist_eval.swarm.directory import ServerDirectory
    from dist_eval.swarm.requests import SwarmRequests

    blocks = model.size.layers
    config = AutoConfig.from_pretrained(model.base)
    dht = join_swarm(swarm.initial_peers, _TIMEOUT, check=swarm.require_alive)
    while min(look_up_coverage(dht, swarm.dht_prefix, blocks, _TIMEOUT).replicas) < len(swarm.servers):
        swarm.require_alive()
        time.sleep(_POLL_SECONDS)
    tuned = TunedCheckpoint.load(model.tuned)
    settings: dict[str, Any] = {"request_timeout": _TIMEOUT, "max_retries": 2}
    classifier = load_on_swarm(str(model.base), tuned, dht, dht_prefix=swarm.dht_prefix, **settings)
    backbone, directory = classifier.backbone, ServerDirectory(dht, swarm.dht_prefix, blocks)
    assert isinstance(backbone, SwarmBackbone)
    directory.start(_TIMEOUT)
    spec = Spec(
        model=str(model.base),
        checkpoint=str(model.tuned),
        initial_peers=swarm.initial_peers,
        dht_prefix=swarm.dht_prefix,
        batches=count,
        budget=_BUDGET,
        length=_TEXT_TOKENS,
        in_flight=_WINDOW,
    )
    batches = random_batches(
        count, budget=_BUDGET, length=_TEXT_TOKENS, prompt_tokens=PROMPT_TOKENS, vocabulary=config.vocab_size
    )

    def ours(window: Window, router: Router) -> Load:
        backbone.requests = SwarmRequests(directory, config, router=router, **settings)
        return drive(classifier.logits, batches, window, prompt_tokens=PROMPT_TOKENS)

    try:
        fast = swarm.addresses[0].rpartition("/")[2]
        with held_up(swarm.servers[1].pid, _SLOWDOWN):
            _add(report, ALONE, ours(Window(_WINDOW), Only(fast)))
            theirs = run_alternative(Contender(PETALS, "forwards"), scratch_dir, spec, petals=True)
            report.add(GROUP, PETALS, theirs["tokens"] / theirs["seconds"])
            _add(report, BY_LENGTH, ours(Window(_WINDOW), ByLength()))
            _add(report, MEASURED, ours(Window(_WINDOW), router := Router()), router)
            _add(report, FREE, ours(Window(), Router()))
    finally:
        classifier.close()


def _add(report: harness.Report, name: str, load: Load, router: Router | None = None) -> None:
    servers = [] if router is None else list(router.servers.values())
    details = [
        {"requests": one.requests, "seconds_per_token_and_block": one.pacing.seconds_per_work} for one in servers
    ]
    report.add(GROUP, name, load.tokens / load.seconds, details)


def main() -> None:
    """Runs the command line."""
    parser = harness.parser("routing", QUESTION, rounds=3)
    parser.add_argument("--batches", type=int, default=60, help="requests in each run (default 60)")
    options = parser.parse_args()
    run_program(lambda scratch_dir: measure(options, scratch_dir))


if __name__ == "__main__":
    main()
