"""A model of 7B on one GPU: two servers of a private swarm beside the same model in one process.

    uv run python -m benchmarks.gpu                      # on a GPU: Mistral's 7B with random weights, bfloat16
    uv run python -m benchmarks.gpu --size tiny          # on a CPU: the same steps with a small config

Prints, as soon as they are known: tokens per second of forwards server by server and in chains, single-token steps of
sessions, memory of the GPU, and how far the logits are from those of the one process.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import inspect
import itertools
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

_SIZES: dict[str, dict[str, Any]] = {
    "7b": {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32},
    "tiny": {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8},
}
_VOCABULARY, _STD = 32768, 0.02
_ROWS, _LENGTH, _WARM_UP = 8, 256, 2
_PREFIX, _STEPS, _ROWS_OF_STEPS = 128, 64, (1, 16)


def main() -> None:
    """Runs all steps."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__.splitlines()[0])
    parser.add_argument("--size", choices=sorted(_SIZES), default="7b" if torch.cuda.is_available() else "tiny")
    parser.add_argument("--folder", type=Path, help="where the model of up to 15 GB is made (default: a temporary one)")
    parser.add_argument("--quantization", nargs="*", default=["none"], choices=["none", "int8", "nf4"])
    parser.add_argument("--in-flight", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--seconds", type=float, default=15.0, help="of each measurement of forwards")
    parser.add_argument("--whole", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.whole:
        measure_whole(options.folder, options.seconds)
        return
    with contextlib.ExitStack() as stack:
        folder = options.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        start = time.monotonic()
        if not (folder / "config.json").exists():
            make_model(folder, _SIZES[options.size])
        say("made the model", seconds=time.monotonic() - start)
        whole = [sys.executable, "-m", "benchmarks.gpu", "--whole", "--folder", str(folder)]
        subprocess.run([*whole, "--seconds", str(options.seconds)], check=True)
        for quantization in options.quantization:
            measure_swarm(folder, quantization, options.in_flight, options.seconds)


def say(what: str, **figures: float) -> None:
    """Prints a line of figures."""
    print(f"{what:32s}", *(f"{name} {value:.4g}" for name, value in figures.items()), sep="  ", flush=True)


def make_model(folder: Path, size: dict[str, Any]) -> None:
    """Writes a Mistral with random weights in bfloat16, a file for each layer."""
    from safetensors.torch import save_file
    from transformers import MistralConfig

    folder.mkdir(parents=True, exist_ok=True)
    heads = size["num_attention_heads"]
    config = MistralConfig(
        **size,
        vocab_size=_VOCABULARY,
        num_key_value_heads=heads // 4,
        head_dim=size["hidden_size"] // heads,
        max_position_embeddings=32768,
        sliding_window=None,
        architectures=["MistralForCausalLM"],
        dtype="bfloat16",
    )
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    generator = torch.Generator(device).manual_seed(0)

    def random(*shape: int) -> torch.Tensor:
        return (torch.randn(*shape, generator=generator, device=device) * _STD).to(torch.bfloat16).cpu()

    hidden, inner, keys = size["hidden_size"], size["intermediate_size"], size["hidden_size"] // 4
    places: dict[str, str] = {}

    def write(name: str, tensors: dict[str, torch.Tensor]) -> None:
        save_file(tensors, folder / name, metadata={"format": "pt"})
        places.update(dict.fromkeys(tensors, name))

    for layer in range(size["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        shapes = {"q_proj": (hidden, hidden), "k_proj": (keys, hidden), "v_proj": (keys, hidden)}
        tensors = {f"{at}self_attn.{name}.weight": random(*shape) for name, shape in shapes.items()}
        tensors[f"{at}self_attn.o_proj.weight"] = random(hidden, hidden)
        for name in ("gate_proj", "up_proj"):
            tensors[f"{at}mlp.{name}.weight"] = random(inner, hidden)
        tensors[f"{at}mlp.down_proj.weight"] = random(hidden, inner)
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{at}{name}.weight"] = torch.ones(hidden, dtype=torch.bfloat16)
        write(f"model-{layer:05d}.safetensors", tensors)
    outside = {"model.embed_tokens.weight": random(_VOCABULARY, hidden), "lm_head.weight": random(_VOCABULARY, hidden)}
    write("model-rest.safetensors", {**outside, "model.norm.weight": torch.ones(hidden, dtype=torch.bfloat16)})
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    config.save_pretrained(folder)


def token_ids(rows: int, length: int, seed: int = 1) -> torch.Tensor:
    """Returns random token ids, int64 of shape [rows, length]."""
    return torch.randint(3, _VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(seed))


def forwards_per_second(forward: Callable[[], Any], seconds: float, in_flight: int = 1) -> float:
    """Returns how many forwards are done in a second, after a few that do not count."""

    @torch.no_grad()  # of a thread
    def once() -> None:
        forward()

    for _ in range(_WARM_UP):
        once()
    done, start = 0, time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(in_flight) as pool:
        running = {pool.submit(once) for _ in range(in_flight)}
        while running:
            finished, running = concurrent.futures.wait(running, return_when=concurrent.futures.FIRST_COMPLETED)
            done += len(finished)
            elapsed = time.monotonic() - start
            for future in finished:
                future.result()
                if elapsed < seconds:
                    running.add(pool.submit(once))
    return done / (time.monotonic() - start)


def steps_per_second(step: Callable[[], Any]) -> float:
    """Returns how many steps are done in a second, after a few that do not count."""
    for _ in range(_WARM_UP):
        step()
    start = time.monotonic()
    for _ in range(_STEPS):
        step()
    return _STEPS / (time.monotonic() - start)


def gpu_memory() -> float:
    """Returns the memory that all processes take of the GPU, in GiB; 0 without one."""
    if not torch.cuda.is_available():
        return 0.0
    free, total = torch.cuda.mem_get_info()
    return (total - free) / 2**30


@torch.no_grad()
def measure_whole(folder: Path, seconds: float) -> None:
    """Measures the model in one process, and writes its logits for some texts."""
    from transformers import AutoModelForCausalLM, DynamicCache, StaticCache
    from transformers.utils import logging

    logging.disable_progress_bar()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    before, start = gpu_memory(), time.monotonic()
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
    model.to(device)
    say("one process: loaded", seconds=time.monotonic() - start)
    cache_name = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
    ids = token_ids(_ROWS, _LENGTH).to(device)
    torch.save(model(ids, use_cache=False).logits[:, -1].float().cpu(), folder / "logits.pt")

    def forward() -> None:
        model(ids, use_cache=False).logits[:, -1].cpu()

    rate = forwards_per_second(forward, seconds)
    say("one process: forwards", tokens_per_s=rate * ids.numel())
    # a compiled model needs a cache of constant size, and records its CUDA graphs in the first steps
    static = partial(StaticCache, config=model.config, max_cache_len=_PREFIX + _WARM_UP + _STEPS)
    ways: dict[str, tuple[Any, Callable[[], Any]]] = {"steps": (model, DynamicCache)}
    if torch.cuda.is_available():
        ways["steps in CUDA graphs"] = torch.compile(model, mode="reduce-overhead"), static
    for (what, (stepping, new_cache)), rows in itertools.product(ways.items(), _ROWS_OF_STEPS):
        cache = {cache_name: new_cache()}
        model(token_ids(rows, _PREFIX).to(device), **cache)
        step = token_ids(rows, 1).to(device)

        def step_once(run: Any = stepping, step: torch.Tensor = step, cache: dict[str, Any] = cache) -> None:
            run(step, **cache).logits.argmax(-1).cpu()

        say(f"one process: {what} of {rows} rows", steps_per_s=steps_per_second(step_once))
    say("one process: memory of the GPU", gib=gpu_memory() - before)


@contextlib.contextmanager
def opened(folder: Path, quantization: str) -> Iterator[dict[str, Any]]:
    """Starts two servers, and yields a backbone for each way of sending requests."""
    from dist_eval.model.swarm_backbone import load_swarm_backbone
    from dist_eval.petals.base_model.config import read_base_config
    from dist_eval.petals.client.client import join_swarm
    from dist_eval.petals.client.coverage import wait_until_covered
    from dist_eval.petals.client.hivemind_compat import prepare_hivemind
    from dist_eval.petals.server.private import PrivateSwarm, split_blocks
    from dist_eval.process.lifetime import workspace

    blocks = read_base_config(str(folder)).num_hidden_layers
    swarm = PrivateSwarm(
        str(folder),
        num_blocks=blocks,
        dht_prefix="made",
        spans=split_blocks(blocks, 2),
        torch_dtype="bfloat16",
        quant_type=quantization,
    )
    with workspace() as sockets, swarm:
        prepare_hivemind(sockets=sockets)
        options: dict[str, Any] = {"dht_prefix": "made", "request_timeout": 60, "max_retries": 2}
        with contextlib.ExitStack() as stack:
            ways = {}
            for way, chains in (("server by server", False), ("chains", True)):
                dht = join_swarm(swarm.initial_peers, 180, check=swarm.require_alive)
                wait_until_covered(dht, "made", blocks, 180, servers=2, check=swarm.require_alive)
                backbone = load_swarm_backbone(str(folder), dht, chains=chains, **options)
                ways[way] = stack.enter_context(contextlib.closing(backbone))
            yield ways


@torch.no_grad()
def measure_swarm(folder: Path, quantization: str, in_flight: Sequence[int], seconds: float) -> None:
    """Measures two servers on one GPU."""
    from dist_eval.model.output_embedding import OutputEmbedding

    name, before, start = f"two servers, {quantization}", gpu_memory(), time.monotonic()
    with opened(folder, quantization) as backbones:
        say(f"{name}: started", seconds=time.monotonic() - start)
        ids = token_ids(_ROWS, _LENGTH)
        last = torch.arange(1, _ROWS + 1) * _LENGTH - 1  # rows whose outputs are needed
        expected = torch.load(folder / "logits.pt")
        for way, backbone in backbones.items():
            output = OutputEmbedding(str(folder), backbone.config)
            logits = output.logits(backbone.final_norm(backbone.hidden_states(ids, rows=last)))
            say(
                f"{name}, {way}: logits",
                largest_difference=float((logits - expected).abs().max()),
                largest=float(expected.abs().max()),
                same_first_token=float((logits.argmax(1) == expected.argmax(1)).float().mean()),
            )
        for count, (way, backbone) in itertools.product(in_flight, backbones.items()):
            rate = forwards_per_second(partial(backbone.hidden_states, ids, rows=last), seconds, count)
            say(f"{name}, {way}: forwards, {count} in flight", tokens_per_s=rate * ids.numel())
        for rows, (way, backbone) in itertools.product(_ROWS_OF_STEPS, backbones.items()):
            with contextlib.closing(backbone.session(rows, _PREFIX + _WARM_UP + _STEPS)) as session:
                session.step(token_ids(rows, _PREFIX))
                rate = steps_per_second(partial(session.step, token_ids(rows, 1)))
            say(f"{name}, {way}: steps of {rows} rows", steps_per_s=rate)
        say(f"{name}: memory of the GPU", gib=gpu_memory() - before)


if __name__ == "__main__":
    main()
