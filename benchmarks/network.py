"""`python -m benchmarks.network`: what 1024 tokens through two servers cost, hop by hop, as a chain and in a session.

The servers are on hosts of their own, behind a slow network (see `wire.py`), and return what they get instead of
computing (see `waiting_server.py`). Hop by hop, each request goes to the first server and back, and to the second one
and back. In a chain, token ids go to the first server, which sends hidden states to the second one, and the outputs of
one position come back the same way. In a session, they are a step that is passed on like a request, and replaces the
step before. Ways alternate within a round, on the same servers.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import psutil
import torch

from benchmarks.harness import Program, Report
from benchmarks.meter import MEBIBYTE, memory
from benchmarks.tcp import measure_link
from benchmarks.waiting_server import Speed
from benchmarks.wire import Loopback, Wire
from dist_eval.model.swarm_backbone import SwarmBackbone, load_swarm_backbone
from dist_eval.petals.server import private
from dist_eval.petals.server.private import PrivateSwarm

QUESTION = "What does a request cost, hop by hop and as a chain, and what share of a network does it get?"
TCP, HOPS, CHAIN, SESSION = "plain TCP, hop by hop", "hop by hop", "chain", "session"
_LAYERS, _TOKENS, _PORT, _TIMEOUT, _WARM_UP = 2, 1024, 31337, 180.0, 2
_SERVERS = "blocks", "handlers", "servers' daemons"


def measure(options: argparse.Namespace, scratch_dir: Path) -> None:
    """Measures all cells."""
    report = Report("network", QUESTION, unit="requests/s", options=options)
    links = [(0.0, math.inf)] if options.loopback else []
    for far, gigabits in [*links, *itertools.product(options.round_trips, options.gigabits)]:
        link = "loopback" if math.isinf(gigabits) else f"{gigabits:g} Gbit/s, {far:g} ms"
        with Loopback() if math.isinf(gigabits) else Wire(1 + _LAYERS, far / 1000, gigabits * 1e9 / 8) as wire:
            wire.enter(0)
            rates = [measure_link(wire.command(1), (), wire.address(1)) for _ in range(options.rounds)]
            for hidden, dtype in itertools.product(options.hidden, options.dtypes):
                group = f"{link}, hidden {hidden}, {dtype}"
                for rate in rates:
                    report.add(group, TCP, rate / (_LAYERS * _TOKENS * hidden * getattr(torch, dtype).itemsize))
                model = scratch_dir / f"wide-{hidden}"
                _write_model(model, hidden)
                with _swarm(wire, model, dtype, scratch_dir) as swarm:
                    _measure(report, group, swarm, dtype, hidden, options)
    report.note(
        "Processor time and memory of: the client; its daemon; the servers' processes with the blocks, their handlers "
        "(and DHT nodes), and their daemons. Memory is shared out among the processes that map it. The wire takes "
        "processor time that is not counted."
    )
    report.finish()


def _measure(
    report: Report, group: str, swarm: PrivateSwarm, dtype: str, hidden: int, options: argparse.Namespace
) -> None:
    hops = [HOPS if name == "none" else f"{HOPS}, --compression {name}" for name in options.compressions]
    ways = [*zip(hops, options.compressions, strict=True), (CHAIN, CHAIN), (SESSION, CHAIN)]
    with _backbones(swarm, ways) as backbones:
        for width, _ in itertools.product(options.in_flight, range(options.rounds)):
            for way in backbones:
                found = _send(backbones[way], way, width, torch.empty(1, _TOKENS, hidden), dtype, options)
                report.add(group, f"{way}, {width} in flight", options.requests / found["seconds"], found)
    for width in options.in_flight:
        for way in backbones:
            name = f"{way}, {width} in flight"
            report.note(f"{group}: {name}: {_costs(report.series[group, name].details, options.requests)}")
            report.compare(f"{group}: {name} / {TCP}", (group, name), (group, TCP))
        plain, *others = (f"{way}, {width} in flight" for way in (hops[0], CHAIN, SESSION))
        for other in others:
            report.compare(f"{group}: {other} / {plain}", (group, other), (group, plain))


def _costs(rounds: list[dict[str, Any]], requests: int) -> str:
    """Says what a request has cost, by the medians of some rounds."""

    def median(of: str, kind: str) -> float:
        return statistics.median(found[of].get(kind, 0.0) for found in rounds)

    kinds = "client", "client's daemon", *_SERVERS
    times = {kind: 1000 * median("processor_seconds", kind) / requests for kind in kinds}
    sizes = {kind: median("memory", kind) / MEBIBYTE for kind in kinds}
    sent, received = (
        statistics.median(found[way] for found in rounds) / requests / 1e6 for way in ("sent", "received")
    )
    return (
        f"{sum(times.values()):.0f} ms of processor time a request ("
        + ", ".join(f"{kind} {milliseconds:.0f}" for kind, milliseconds in times.items())
        + f"); servers take {sum(sizes[kind] for kind in _SERVERS):.0f} MiB ("
        + ", ".join(f"{kind} {sizes[kind]:.0f}" for kind in _SERVERS)
        + f"), the client {sizes['client']:.0f}; it sends {sent:.3g} MB and receives {received:.3g} MB a request."
    )


def _write_model(folder: Path, hidden: int) -> None:
    """Writes a model that is wide and otherwise small."""
    from transformers import LlamaConfig, LlamaForCausalLM

    from dist_eval.petals.base_model.weights import without_warnings

    config = LlamaConfig(
        vocab_size=64,
        hidden_size=hidden,
        intermediate_size=8,
        num_hidden_layers=_LAYERS,
        num_attention_heads=1,
        head_dim=8,
        max_position_embeddings=_TOKENS,
    )
    with without_warnings():  # and without a progress bar
        LlamaForCausalLM(config).save_pretrained(folder)


@contextmanager
def _swarm(wire: Wire | Loopback, model: Path, dtype: str, scratch_dir: Path) -> Iterator[PrivateSwarm]:
    """Starts a server for each block, on hosts 1, 2, ...; yields the first one."""
    from dist_eval.petals.client.hivemind_compat import prepare_hivemind

    prepare_hivemind(sockets=scratch_dir)
    from dist_eval.petals.client.client import join_swarm, leave_swarm
    from dist_eval.petals.client.coverage import wait_until_covered

    speeds = scratch_dir / "speeds.json"
    speeds.write_text(json.dumps([asdict(Speed(0.0, 1e-6))]))
    here, swarms = list(private.PYTHON), list[PrivateSwarm]()
    try:
        for block in range(_LAYERS):
            private.PYTHON[:] = [*wire.command(1 + block), sys.executable]
            swarm = PrivateSwarm(
                str(model),
                num_blocks=_LAYERS,
                dht_prefix=model.name,
                spans=[(block, block + 1)],
                torch_dtype=dtype,
                host=wire.address(1 + block),
                ports=[(_PORT + block, _PORT + block)],
                threads=1,
                initial_peers=swarms[0].initial_peers if swarms else (),
                program=("-m", "benchmarks.waiting_server", str(speeds)),
            )
            swarms.append(swarm.__enter__())
        dht = join_swarm(swarms[0].initial_peers, _TIMEOUT, check=swarms[0].require_alive)
        try:
            wait_until_covered(dht, model.name, _LAYERS, _TIMEOUT, check=swarms[-1].require_alive)
        finally:
            leave_swarm(dht)
        yield swarms[0]
    finally:
        private.PYTHON[:] = here
        for swarm in swarms:
            swarm.__exit__(None, None, None)


@contextmanager
def _backbones(swarm: PrivateSwarm, ways: list[tuple[str, str]]) -> Iterator[dict[str, SwarmBackbone]]:
    """Opens a client for each way: by a chain, or server by server in a compression."""
    from dist_eval.petals.client.client import join_swarm

    backbones: dict[str, SwarmBackbone] = {}
    try:
        for way, name in ways:
            dht = join_swarm(swarm.initial_peers, _TIMEOUT, check=swarm.require_alive)
            settings: dict[str, Any] = {"dht_prefix": swarm.dht_prefix, "request_timeout": _TIMEOUT, "max_retries": 0}
            settings |= {"chains": name == CHAIN, "compression": "none" if name == CHAIN else name}
            backbones[way] = load_swarm_backbone(swarm.model, dht, **settings)
        yield backbones
    finally:
        for backbone in backbones.values():
            backbone.close()


def _send(
    backbone: SwarmBackbone, way: str, width: int, shape: torch.Tensor, dtype: str, options: argparse.Namespace
) -> dict[str, Any]:
    """Sends requests through both servers, some at a time; returns what they cost in all."""
    from dist_eval.petals.client.forward import forward
    from dist_eval.petals.client.inputs import Inputs, TokenIds

    hidden = torch.randn_like(shape).to(getattr(torch, dtype))
    ids = TokenIds(torch.ones(1, _TOKENS, dtype=torch.int64), None, backbone.embedded, hidden.shape[2])
    requests, last = backbone.requests, torch.tensor([_TOKENS - 1])
    sessions: SimpleQueue[Any] = SimpleQueue()

    def send(_: int) -> None:
        if way == CHAIN:
            forward(requests, ids, None, rows=last)
        elif way == SESSION:
            session = sessions.get()
            session.step(ids, start=0, rows=last)
            sessions.put(session)
        else:
            forward(requests, hidden, None)

    with ExitStack() as stack, ThreadPoolExecutor(width) as pool:
        for _ in range(width if way == SESSION else 0):
            session = backbone.blocks.session(lambda given, _: Inputs.of(given), 1, _TOKENS, rolls_back=True)
            sessions.put(stack.enter_context(closing(session)))
        list(pool.map(send, range(max(width, _WARM_UP))))
        before, worked, began = requests.traffic(), _processor_seconds(), time.monotonic()
        list(pool.map(send, range(options.requests)))
        seconds, done = time.monotonic() - began, _processor_seconds()
    found = requests.traffic()
    return {
        "sent": found.bytes_sent - before.bytes_sent,
        "received": found.bytes_received - before.bytes_received,
        "seconds": seconds,
        "processor_seconds": {kind: done[kind] - worked[kind] for kind in done},
        "memory": dict(_memory()),
    }


def _processes() -> dict[int, str]:
    """Returns the client's and the servers' processes, and what each is."""
    kinds = {os.getpid(): "client"}
    for process in psutil.Process().children(recursive=True):  # parents before their children
        if process.status() == psutil.STATUS_ZOMBIE:  # of an earlier swarm
            continue
        parent, name = kinds.get(process.ppid(), ""), process.name()
        if name == "p2pd":
            kinds[process.pid] = "servers' daemons" if parent in ("blocks", "handlers") else "client's daemon"
        elif "benchmarks.waiting_server" in process.cmdline():
            kinds[process.pid] = "handlers" if parent in ("blocks", "handlers") else "blocks"
        elif parent == "client" and process.cmdline() == psutil.Process().cmdline():
            kinds[process.pid] = parent
    return kinds


def _processor_seconds() -> Counter[str]:
    seconds: Counter[str] = Counter()
    for number, kind in _processes().items():
        times = psutil.Process(number).cpu_times()
        seconds[kind] += times.user + times.system
    return seconds


def _memory() -> Counter[str]:
    sizes: Counter[str] = Counter()
    for number, kind in _processes().items():
        sizes[kind] += memory("Pss", "smaps_rollup", number)
    return sizes


PROGRAM = Program(
    "network",
    QUESTION,
    measure,
    quick={"hidden": [512], "requests": 4, "in_flight": [2], "gigabits": [8.0], "dtypes": ["float32"]},
)
PROGRAM.add("--hidden", (8192, 256), "widths of the models")
PROGRAM.add("--round-trips", (20.0,), "milliseconds")
PROGRAM.add("--gigabits", (8.0, 1.0), "of the network, per second")
PROGRAM.add("--dtypes", ("bfloat16",), "that the servers compute in", choices=["bfloat16", "float32"])
PROGRAM.add("--compressions", ("none",), "of the activations, hop by hop", choices=["none", "float16"])
PROGRAM.add("--in-flight", (1, 4), "requests of 1024 tokens under way at the same time")
PROGRAM.add("--requests", 20, "number of requests")
PROGRAM.add("--loopback", True, "also measure on one host, without a slow network")

if __name__ == "__main__":
    PROGRAM.main()
