"""`python -m benchmarks.vocabulary`: the memory and time that log-likelihoods take with a large vocabulary.

The output embedding of a language model is mapped from the model's file and gone through in chunks. A client of Petals
holds it in float32, and computes the logits of all positions at once. No swarm is needed: the ranks of a host score the
same hidden states in both ways.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch

from benchmarks import harness
from benchmarks.program import run_program
from benchmarks.ranks import MEBIBYTE, run, torchrun

QUESTION = "How much memory and time do log-likelihoods take with a large vocabulary?"
MAPPED, LOADED = "dist_eval, mapped and in chunks", "the embedding in float32, all logits at once"
_SIZES, _QUICK_SIZES, _RANKS = (128_256, 512, 512), (8_000, 32, 64), 2


def make_embedding(folder: Path, vocabulary: int, hidden: int) -> None:
    """Writes the config of a Llama, and its output embedding in bfloat16."""
    from safetensors.torch import save_file
    from transformers import LlamaConfig

    folder.mkdir()
    LlamaConfig(vocab_size=vocabulary, hidden_size=hidden).save_pretrained(folder)
    weight = torch.randn(vocabulary, hidden, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    save_file({"lm_head.weight": weight}, folder / "model.safetensors")


def measure(options: argparse.Namespace, scratch_dir: Path) -> None:
    """Measures both ways.

    Args:
        options: the command line.
        scratch_dir: folder for temporary files.
    """
    make = harness.Report
    memory = make("vocabulary-memory", QUESTION, unit="MiB", options=options, more_is_better=False)
    seconds = make("vocabulary", QUESTION, unit="s", options=options, more_is_better=False)
    vocabulary, hidden, positions = _QUICK_SIZES if options.quick else _SIZES
    model, group = scratch_dir / "model", f"{vocabulary:,} x {hidden}, {positions} positions, {_RANKS} ranks"
    make_embedding(model, vocabulary, hidden)
    for number in range(1 if options.quick else options.rounds):
        found: dict[str, list[dict[str, Any]]] = {}
        for way, name in (("mapped", MAPPED), ("loaded", LOADED)):
            folder = scratch_dir / f"{way}-{number}"
            folder.mkdir()
            command = ["-m", "benchmarks.vocabulary_rank", way, str(model), str(positions), str(folder)]
            run([*torchrun(_RANKS), *command], scratch_dir)
            found[way] = [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(_RANKS)]
            memory.add(group, f"{name}: at most, of one rank", max(one["private"] for one in found[way]) / MEBIBYTE)
            memory.add(group, f"{name}: held, of all ranks", sum(one["shared"] for one in found[way]) / MEBIBYTE)
            seconds.add(group, name, max(one["seconds"] for one in found[way]))
        apart = max(
            abs(one - other)
            for ours, theirs in zip(found["mapped"], found["loaded"], strict=True)
            for one, other in zip(ours["log_likelihoods"], theirs["log_likelihoods"], strict=True)
        )
        memory.note(f"The largest difference of a log-likelihood was {apart:.1e}.")
    for what in ("at most, of one rank", "held, of all ranks"):
        bar = None if options.quick else 2.0
        memory.compare(f"{what}: loaded / mapped", (group, f"{LOADED}: {what}"), (group, f"{MAPPED}: {what}"), bar=bar)
    seconds.compare("seconds: loaded / mapped", (group, LOADED), (group, MAPPED))
    memory.finish()
    seconds.finish()


def main() -> None:
    """Runs the command line."""
    options = harness.parser("vocabulary", QUESTION, rounds=3).parse_args()
    run_program(lambda scratch_dir: measure(options, scratch_dir))


if __name__ == "__main__":
    main()
