"""`python -m benchmarks.network`: what share of a network large activations get through, and what makes them smaller.

Two servers on hosts of their own, which return what they get instead of computing (see `waiting_server.py`), behind a
slow network (see `wire.py`). Server by server, each request goes to the first server and back, and to the second one
and back. In a chain, token ids go to the first server, which sends hidden states to the second one, and the outputs of
one position come back the same way.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from benchmarks.harness import Program, Report
from benchmarks.tcp import measure_link
from benchmarks.waiting_server import Speed
from benchmarks.wire import Wire
from dist_eval.model.classifier import load_swarm_backbone
from dist_eval.petals.server import private
from dist_eval.petals.server.private import PrivateSwarm

QUESTION = "What share of a network do large activations get through, and what do compression and chains buy?"
TCP, CHAIN = "plain TCP", "chain"
_LAYERS, _TOKENS, _PORT, _TIMEOUT, _WARM_UP = 2, 1024, 31337, 180.0, 2


def measure(options: argparse.Namespace, scratch_dir: Path) -> None:
    """Measures all cells."""
    report = Report("network", QUESTION, unit="MB/s", options=options)
    model = scratch_dir / "wide"
    _write_model(model, options.hidden)
    for far, gigabits in itertools.product(options.round_trips, options.gigabits):
        group = f"{gigabits:g} Gbit/s, {far:g} ms"
        with Wire(1 + _LAYERS, far / 1000, gigabits * 1e9 / 8) as wire:
            wire.enter(0)
            for _ in range(options.rounds):
                report.add(group, TCP, measure_link(wire.command(1), (), wire.addresses[1]) / 1e6)
            for dtype in options.dtypes:
                with _swarm(wire, model, dtype, scratch_dir) as swarm:
                    by_server = {name: f"{dtype}, --compression {name}" for name in options.compressions}
                    ways = {**by_server, CHAIN: f"{dtype}, {CHAIN}"}
                    for way, width in itertools.product(ways, options.in_flight):
                        name = f"{ways[way]}, {width} in flight"
                        for _ in range(options.rounds):
                            found = _send(wire, swarm, dtype, way, width, options)
                            report.add(group, name, found["activations"] / found["seconds"] / 1e6, found)
                        report.compare(f"{group}: {name} / {TCP}", (group, name), (group, TCP))
                        worked = found["processor_seconds"] / options.requests
                        could = (os.cpu_count() or 1) / worked * found["activations"] / options.requests / 1e6
                        report.note(
                            f"{group}: {name}: {options.requests / found['seconds']:.3g} requests/s, for each of which "
                            f"the client sends {found['sent'] / options.requests / 1e6:.3g} MB and receives "
                            f"{found['received'] / options.requests / 1e6:.3g} MB. {worked:.3f} s of processor time a "
                            f"request, with which all of this host's processors could do at most {could:.3g} MB/s."
                        )
                        if way == CHAIN and "none" in by_server:
                            plain = group, f"{by_server['none']}, {width} in flight"
                            report.compare(f"{group}: {name} / server by server", (group, name), plain)
    report.note(
        "MB/s that the client sends, and as much that it receives, headers and handshakes not counted; with chains "
        "what it would have sent server by server."
    )
    report.finish()


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
def _swarm(wire: Wire, model: Path, dtype: str, scratch_dir: Path) -> Iterator[PrivateSwarm]:
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
                host=wire.addresses[1 + block],
                ports=[(_PORT, _PORT)],
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


def _send(
    wire: Wire, swarm: PrivateSwarm, dtype: str, way: str, width: int, options: argparse.Namespace
) -> dict[str, float]:
    """Sends requests through both servers, some at a time, by a chain or compressed; returns bytes and seconds."""
    from dist_eval.petals.client.client import join_swarm
    from dist_eval.petals.client.inputs import TokenIds

    dht = join_swarm(swarm.initial_peers, _TIMEOUT, check=swarm.require_alive)
    settings: dict[str, Any] = {"dht_prefix": swarm.dht_prefix, "request_timeout": _TIMEOUT, "max_retries": 0}
    settings |= {"chains": way == CHAIN, "compression": "none" if way == CHAIN else way}
    backbone = load_swarm_backbone(swarm.model, dht, **settings)
    hidden = torch.randn(1, _TOKENS, options.hidden, dtype=getattr(torch, dtype))
    ids = TokenIds(torch.ones(1, _TOKENS, dtype=torch.int64), None, backbone.embedded, options.hidden)
    requests, last = backbone.requests, torch.tensor([_TOKENS - 1])

    def send(_: int) -> None:
        if way == CHAIN:
            requests.forward(ids, None, rows=last)
        else:
            requests.forward(hidden, None)

    try:
        with ThreadPoolExecutor(width) as pool:
            list(pool.map(send, range(max(width, _WARM_UP))))
            before, worked, began = requests.traffic(), wire.processor_seconds(), time.monotonic()
            list(pool.map(send, range(options.requests)))
            seconds = time.monotonic() - began
        found = requests.traffic()
        sent, received = found.bytes_sent - before.bytes_sent, found.bytes_received - before.bytes_received
        return {
            "sent": sent,
            "received": received,
            "activations": _LAYERS * options.requests * hidden.nbytes if way == CHAIN else sent,
            "seconds": seconds,
            "processor_seconds": wire.processor_seconds() - worked,
        }
    finally:
        backbone.close()


PROGRAM = Program(
    "network",
    QUESTION,
    measure,
    rounds=1,
    quick={"hidden": 512, "requests": 4, "in_flight": [2], "round_trips": [20.0], "dtypes": ["float32"]},
)
PROGRAM.add("--hidden", 8192, "width of the model")
PROGRAM.add("--round-trips", (20.0,), "milliseconds")
PROGRAM.add("--gigabits", (8.0,), "of the network, per second")
PROGRAM.add("--dtypes", ("bfloat16", "float32"), "that the servers compute in", choices=["bfloat16", "float32"])
PROGRAM.add("--compressions", ("none", "float16"), "of the activations", choices=["none", "float16"])
PROGRAM.add("--in-flight", (1, 4, 8), "requests of 1024 tokens under way at the same time")
PROGRAM.add("--requests", 40, "number of requests")

if __name__ == "__main__":
    PROGRAM.main()
