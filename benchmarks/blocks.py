"""`python -m benchmarks.blocks`: the memory for loading some of a model's blocks, and the accuracy of estimates.

A model is written to disk, in shards. One process loads a quarter of its blocks as a server does, another the whole
model with transformers. Each then runs a forward of one token, because on a CPU weights are mapped from the files and
read on use. Then servers of several families start and report their memory.
"""

from __future__ import annotations

import argparse
import re
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu import make_model
from benchmarks.harness import BenchmarkError, Program, Report
from benchmarks.meter import MEBIBYTE, Meter, growth_of_private_memory, memory
from benchmarks.processes import call
from dist_eval.petals.base_model.weights import without_warnings
from dist_eval.petals.server.private import PrivateSwarm

QUESTION = "How much memory does loading a quarter of a model's blocks take, beside the whole model in transformers?"
FAMILIES_QUESTION = "How accurate is a server's estimate of the memory of its blocks?"
QUARTER, WHOLE = "dist_eval, a quarter of the blocks", "transformers, the whole model"
ESTIMATED, TAKEN = "dist_eval, estimated", "taken"
_INNER, _HEAD_WIDTH = 3.5, 128
_TIMEOUT, _POLL_SECONDS = 180.0, 0.5
_SIZES = re.compile(r": ([\d.]+) (MiB|GiB) \(estimated: ([\d.]+) (MiB|GiB)\)")
_COMMON: dict[str, Any] = {
    "vocab_size": 1000,
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_hidden_layers": 4,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
}
_EXPERTS: dict[str, Any] = {**_COMMON, "num_experts_per_tok": 2, "moe_intermediate_size": 704}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": _COMMON,
    "gemma3_text": {**_COMMON, "head_dim": 128},
    "mixtral": {**_COMMON, "num_local_experts": 4},
    "qwen3_moe": {**_EXPERTS, "head_dim": 128, "num_experts": 16},
    "deepseek_v3": {**_EXPERTS, "num_key_value_heads": 16, "n_routed_experts": 16, "first_k_dense_replace": 1},
}


def measure(options: argparse.Namespace, scratch_dir: Path) -> None:
    """Measures loading, and then servers of each family."""
    report = Report("blocks", QUESTION, unit="MiB", options=options, more_is_better=False)
    model = scratch_dir / "model"
    heads, layers = options.hidden // _HEAD_WIDTH, options.layers
    size = {"num_attention_heads": heads, "num_hidden_layers": layers, "hidden_size": options.hidden}
    make_model(model, {**size, "intermediate_size": int(_INNER * options.hidden)})
    on_disk = sum(file.stat().st_size for file in model.glob("*.safetensors"))
    for dtype in options.dtypes:
        group = f"{on_disk / 1e9:.1f} GB in {layers + 1} shards, loaded in {dtype}"
        for _ in range(options.rounds):
            for name, function in ((QUARTER, "load_quarter"), (WHOLE, "load_whole")):
                (found,) = call(f"benchmarks.blocks:{function}", scratch_dir, model=str(model), dtype=dtype)
                report.add(group, f"{name}: resident at most", found["resident"] / MEBIBYTE, found)
                report.add(group, f"{name}: not mapped", max(found["private"], 1) / MEBIBYTE)
        whole, quarter = ((group, f"{name}: resident at most") for name in (WHOLE, QUARTER))
        report.compare(f"resident at most, whole / quarter, {dtype}", whole, quarter, bar=3.5)
        blocks = [found["bytes"] for found in report.series[quarter].details]
        peaks = zip(report.series[quarter].values, blocks, strict=True)
        claim = f"resident at most / the weights of the blocks, {dtype}"
        report.bound(claim, [peak * MEBIBYTE / size for peak, size in peaks], 1.25)
    report.note("Growth of a process since its imports; resident also counts pages of mapped files that were read.")
    report.finish()
    measure_families(options, scratch_dir)


def measure_families(options: argparse.Namespace, scratch_dir: Path) -> None:
    """Starts servers that report the memory of their blocks."""
    report = Report("blocks-families", FAMILIES_QUESTION, unit="MiB", options=options, more_is_better=False)
    for family in options.families:
        model = scratch_dir / family
        make_family(model, family)
        for dtype in options.dtypes:
            group = f"{family}, {dtype}"
            for _ in range(options.rounds):
                taken, estimated = sizes_of_server(model, dtype)
                report.add(group, ESTIMATED, estimated)
                report.add(group, TAKEN, taken)
            report.compare(f"taken / estimated, {group}", (group, TAKEN), (group, ESTIMATED))
    report.note("A server with all blocks, on a CPU: taken is what its process has grown by, mapped files included.")
    report.finish()


def make_family(folder: Path, family: str) -> None:
    """Writes a model of a family with random weights in bfloat16."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(family, **FAMILIES[family])
    with without_warnings():  # and without a progress bar
        AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(folder)


def sizes_of_server(model: Path, dtype: str) -> tuple[float, float]:
    """Starts a server; returns the memory of its blocks and the estimate, in MiB, from its output."""
    blocks = _COMMON["num_hidden_layers"]
    with PrivateSwarm(
        str(model), num_blocks=blocks, dht_prefix=model.name, spans=[(0, blocks)], torch_dtype=dtype
    ) as swarm:
        deadline = time.monotonic() + _TIMEOUT
        while time.monotonic() < deadline:
            swarm.require_alive()
            for line in swarm.newly_loaded():
                if found := _SIZES.search(line):
                    taken, unit, estimated, other = found.groups()
                    scale = {"MiB": 1.0, "GiB": 1024.0}
                    return float(taken) * scale[unit], float(estimated) * scale[other]
            time.sleep(_POLL_SECONDS)
    raise BenchmarkError(f"A server of {model.name} did not start within {_TIMEOUT:g} s.")


def load_quarter(_: Path, *, model: str, dtype: str) -> dict[str, float]:
    """Loads the first quarter of the blocks as a server does; returns the memory in bytes."""
    from transformers import AutoConfig

    from dist_eval.petals.base_model.architecture import Architecture
    from dist_eval.petals.base_model.weights import ModelWeights
    from dist_eval.petals.server.blocks import load_block

    torch.set_num_threads(1)
    architecture = Architecture(AutoConfig.from_pretrained(model), model)
    count, loaded_in = architecture.config.num_hidden_layers // 4, getattr(torch, dtype)

    def load() -> list[torch.nn.Module]:
        weights = ModelWeights(model, architecture)
        blocks = [load_block(architecture, weights, index, loaded_in) for index in range(count)]
        hidden = torch.zeros(1, 1, architecture.config.hidden_size, dtype=loaded_in)
        for block in blocks:
            (hidden,) = block(hidden)
        return list(blocks)

    return _measured(load)


def load_whole(_: Path, *, model: str, dtype: str) -> dict[str, float]:
    """Loads the whole model as transformers does; returns the memory in bytes."""
    from transformers import AutoConfig, AutoModelForCausalLM

    from dist_eval.petals.base_model.architecture import Architecture

    torch.set_num_threads(1)
    Architecture(AutoConfig.from_pretrained(model), model)  # imports the family's code

    def load() -> list[torch.nn.Module]:
        whole: Any = AutoModelForCausalLM.from_pretrained(model, dtype=getattr(torch, dtype))
        whole(torch.zeros(1, 1, dtype=torch.long))
        return [whole]

    return _measured(load)


@torch.no_grad()
def _measured(load: Any) -> dict[str, float]:
    meter, before = Meter(), memory("VmRSS")
    with growth_of_private_memory() as private, meter.step("load"):
        modules = load()
    size = sum(parameter.nbytes for module in modules for parameter in module.parameters())
    return {
        "resident": meter.steps["load"]["peak"] - before,
        "private": max(private),
        "bytes": size,
        "seconds": meter.steps["load"]["seconds"],
    }


PROGRAM = Program(
    "blocks",
    QUESTION,
    measure,
    rounds=1,
    quick={"hidden": 512, "layers": 4, "dtypes": ["bfloat16"], "families": ["llama"]},
)
PROGRAM.add("--hidden", 4096, "width of the model; with 32 layers it would be Mistral's 7B")
PROGRAM.add("--layers", 16, "its layers, one per shard")
PROGRAM.add("--dtypes", ("bfloat16",), "to load in; the files are in bfloat16", choices=["bfloat16", "float32"])
PROGRAM.add("--families", tuple(FAMILIES), "to start servers of", choices=list(FAMILIES))

if __name__ == "__main__":
    PROGRAM.main()
