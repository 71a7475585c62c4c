"""`python -m benchmarks.cost`: where the processor time of an evaluation goes, on a swarm and without one.

The same batches are classified by a swarm of two servers on this host and by one process. The processor seconds of
every process of both are read from the system and attributed to its role. On cores that all roles share, the overhead
besides computing limits the share of the local speed that a swarm can reach.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import psutil
import torch

from benchmarks import harness
from benchmarks.hosting import swarm_of
from benchmarks.load import drive, random_batches, random_checkpoint
from benchmarks.models import MEDIUM, PROMPT_TOKENS, SMALL, TINY, WIDE, Model, Size, make_model
from benchmarks.program import run_program
from benchmarks.text import make_corpus
from dist_eval.inference.window import Window
from dist_eval.swarm.private import PrivateSwarm

QUESTION = "Where does the processor time of an evaluation go, on a swarm of this host and without one?"
LOCAL, ALL = "local, no swarm", "swarm: all parts"
COMPUTING, HANDLERS, DHT, SERVER_DAEMONS, CLIENT, CLIENT_DAEMON = (
    "swarm: servers, computing",
    "swarm: servers, handlers of requests",
    "swarm: servers, DHT nodes",
    "swarm: servers, p2p daemons",
    "swarm: client",
    "swarm: client's node and p2p daemon",
)
PARTS = (COMPUTING, HANDLERS, DHT, SERVER_DAEMONS, CLIENT, CLIENT_DAEMON)
_TEXT_TOKENS, _BUDGET, _TIMEOUT = 25, 1024, 120.0


def processor_seconds(swarm: PrivateSwarm) -> dict[str, float]:
    """Returns the processor seconds of a swarm's servers and of this process so far, by role."""
    seconds = {**dict.fromkeys(PARTS, 0.0), CLIENT: _seconds_of(psutil.Process())}
    for server in swarm.servers:
        computing = psutil.Process(server.pid)
        seconds[COMPUTING] += _seconds_of(computing)
        for helper in computing.children(recursive=True):
            is_node = any(_is_daemon(child) for child in helper.children())
            part = SERVER_DAEMONS if _is_daemon(helper) else DHT if is_node else HANDLERS
            seconds[part] += _seconds_of(helper)
    servers = {server.pid for server in swarm.servers}
    for child in psutil.Process().children():
        if child.pid not in servers:
            seconds[CLIENT_DAEMON] += sum(map(_seconds_of, [child, *child.children(recursive=True)]))
    return seconds


def _is_daemon(process: psutil.Process) -> bool:
    return process.name() == "p2pd"


def _seconds_of(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def measure(options: argparse.Namespace, scratch_dir: Path) -> None:
    """Classifies the same batches on a swarm and in one process, in rounds.

    Args:
        options: the command line.
        scratch_dir: folder for temporary files.
    """
    from dist_eval.swarm.hivemind_compat import prepare_hivemind

    prepare_hivemind(sockets=scratch_dir)
    report = harness.Report("cost", QUESTION, unit="processor seconds", options=options, more_is_better=False)
    sizes: dict[Size, int] = {SMALL: options.batches, MEDIUM: options.batches // 2, WIDE: options.batches // 10}
    for size, count in ({TINY: 8} if options.quick else sizes).items():
        model = make_model(scratch_dir, size, make_corpus(100).sentences)
        group = f"Llama {size}, {count} batches of {_BUDGET} tokens at most"
        with swarm_of(model, scratch_dir) as swarm:
            for _ in range(1 if options.quick else options.rounds):
                _round(report, group, swarm, model, count)
        shares = [
            (local["seconds"] / here["seconds"])
            for local, here in zip(report.series[group, LOCAL].details, report.series[group, ALL].details, strict=True)
        ]
        report.compare(f"{size}: computing in servers / local", (group, COMPUTING), (group, LOCAL))
        report.compare(f"{size}: all parts / local", (group, ALL), (group, LOCAL))
        report.bound(f"{size}: share of the local speed", shares)
    report.note(
        "The swarm has two servers with a thread each, the local process as many threads as there are cores. The "
        "servers' computing contains their queues. Seconds by the clock, bytes and round trips are in the JSON file."
    )
    report.finish()


def _round(report: harness.Report, group: str, swarm: PrivateSwarm, model: Model, count: int) -> None:
    from transformers import AutoConfig

    from dist_eval.model.classifier import load_locally, load_on_swarm
    from dist_eval.swarm.client import join_swarm

    config = AutoConfig.from_pretrained(model.base)
    tuned = random_checkpoint(config, PROMPT_TOKENS)
    batches = random_batches(
        count, budget=_BUDGET, length=_TEXT_TOKENS, prompt_tokens=PROMPT_TOKENS, vocabulary=config.vocab_size
    )
    threads = torch.get_num_threads()
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    try:
        local = load_locally(str(model.base), tuned)
        local.logits(*batches[0])
        used, start = _seconds_of(psutil.Process()), time.monotonic()
        for batch in batches:
            local.logits(*batch)
        clock = {"seconds": time.monotonic() - start}
        report.add(group, LOCAL, _seconds_of(psutil.Process()) - used, clock)
    finally:
        torch.set_num_threads(threads)
    del local
    dht = join_swarm(swarm.initial_peers, _TIMEOUT, check=swarm.require_alive)
    remote = load_on_swarm(
        str(model.base), tuned, dht, dht_prefix=swarm.dht_prefix, request_timeout=_TIMEOUT, max_retries=2
    )
    try:
        remote.logits(*batches[0])
        before = processor_seconds(swarm)
        load = drive(remote.logits, batches, Window(), prompt_tokens=PROMPT_TOKENS)
        spent = {part: seconds - before[part] for part, seconds in processor_seconds(swarm).items()}
        traffic = remote.backbone.traffic()
    finally:
        remote.close()
    for part in PARTS:
        report.add(group, part, spent[part])
    kept = ("round_trips", "bytes_sent", "bytes_received")
    report.add(
        group, ALL, sum(spent.values()), {"seconds": load.seconds, **{name: getattr(traffic, name) for name in kept}}
    )


def main() -> None:
    """Runs the command line."""
    parser = harness.parser("cost", QUESTION, rounds=3)
    parser.add_argument("--batches", type=int, default=100, help="batches of the smallest model (default 100)")
    options = parser.parse_args()
    run_program(lambda scratch_dir: measure(options, scratch_dir))


if __name__ == "__main__":
    main()
