"""`python -m benchmarks.vocabulary`: memory and time of log-likelihoods with a large vocabulary.

dist_eval maps the output embedding of a language model from its file and processes it in chunks. A client of Petals
loads it in float32 and computes the logits of all positions at once. No swarm is needed: the ranks of a host score the
same hidden states in both ways.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from benchmarks.harness import Program, Report
from benchmarks.meter import MEBIBYTE, growth_of_private_memory, memory
from benchmarks.processes import call

QUESTION = "How much memory and time do log-likelihoods take with a large vocabulary?"
MAPPED, LOADED = "dist_eval, mapped and in chunks", "the embedding in float32, all logits at once"
_RANKS = 2

Score = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def measure(options: argparse.Namespace, scratch_dir: Path) -> None:
    """Measures both ways."""
    in_memory = Report("vocabulary-memory", QUESTION, unit="MiB", options=options, more_is_better=False)
    seconds = Report("vocabulary", QUESTION, unit="s", options=options, more_is_better=False)
    model = scratch_dir / "model"
    make_embedding(model, options.tokens, options.hidden)
    group = f"{options.tokens:,} x {options.hidden}, {options.positions} positions, {_RANKS} ranks"
    for _ in range(options.rounds):
        scores = []
        for way in (MAPPED, LOADED):
            task = {"way": way, "model": str(model), "positions": options.positions}
            ranks = call("benchmarks.vocabulary:score", scratch_dir, ranks=_RANKS, **task)
            most, held = max(found["private"] for found in ranks), sum(found["shared"] for found in ranks)
            in_memory.add(group, f"{way}: at most, of one rank", most / MEBIBYTE)
            in_memory.add(group, f"{way}: held, of all ranks", held / MEBIBYTE)
            seconds.add(group, way, max(found["seconds"] for found in ranks))
            scores.append(np.array([found["log_likelihoods"] for found in ranks]))
        in_memory.note(f"The largest difference of a log-likelihood was {np.abs(scores[0] - scores[1]).max():.1e}.")
    for what in ("at most, of one rank", "held, of all ranks"):
        loaded, mapped = (group, f"{LOADED}: {what}"), (group, f"{MAPPED}: {what}")
        in_memory.compare(f"{what}: loaded / mapped", loaded, mapped, bar=2.0)
    seconds.compare("seconds: loaded / mapped", (group, LOADED), (group, MAPPED))
    in_memory.finish()
    seconds.finish()


def make_embedding(folder: Path, vocabulary: int, hidden: int) -> None:
    """Writes the config of a Llama, and its output embedding in bfloat16."""
    from safetensors.torch import save_file
    from transformers import LlamaConfig

    folder.mkdir()
    LlamaConfig(vocab_size=vocabulary, hidden_size=hidden).save_pretrained(folder)
    weight = torch.randn(vocabulary, hidden, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    inputs = torch.zeros(1, hidden)  # by its name the rest of the model is found
    save_file({"lm_head.weight": weight, "model.embed_tokens.weight": inputs}, folder / "model.safetensors")


def mapped(model: Path) -> Score:
    """The evaluator's way."""
    from transformers import AutoConfig

    from dist_eval.model.output_embedding import OutputEmbedding

    output = OutputEmbedding(str(model), AutoConfig.from_pretrained(model))
    return lambda hidden, tokens: output.log_likelihoods(hidden, torch.arange(len(tokens)), tokens)[0]


def loaded(model: Path) -> Score:
    """That of a model with a language-model head, as Petals' client loads and uses it."""
    from safetensors.torch import load_file

    head = load_file(model / "model.safetensors")["lm_head.weight"].to(torch.float32)
    return lambda hidden, tokens: torch.log_softmax(hidden @ head.T, dim=1)[torch.arange(len(tokens)), tokens]


def score(scratch_dir: Path, *, way: str, model: str, positions: int) -> dict[str, Any]:
    """Scores random hidden states on a rank; returns time and memory."""
    from transformers import AutoConfig

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    config, random = AutoConfig.from_pretrained(model), torch.Generator().manual_seed(dist.get_rank())
    hidden = torch.randn(positions, config.hidden_size, generator=random) / config.hidden_size**0.5
    tokens = torch.randint(0, config.vocab_size, (positions,), generator=random)
    mapped(Path(model))  # imports are not what is measured
    before = memory("Pss", "smaps_rollup")
    dist.barrier()
    start = time.perf_counter()
    with growth_of_private_memory() as growth:
        function = (mapped if way == MAPPED else loaded)(Path(model))
        found = function(hidden, tokens)
    seconds = time.perf_counter() - start
    dist.barrier()  # all ranks hold their embedding now
    shared = memory("Pss", "smaps_rollup") - before
    dist.barrier()
    del function
    dist.destroy_process_group()
    return {"seconds": seconds, "private": max(growth), "shared": shared, "log_likelihoods": found.tolist()}


PROGRAM = Program("vocabulary", QUESTION, measure, quick={"tokens": 8_000, "hidden": 32, "positions": 64})
PROGRAM.add("--tokens", 128_256, "of the vocabulary")
PROGRAM.add("--hidden", 512, "width of the model")
PROGRAM.add("--positions", 512, "that each rank scores")

if __name__ == "__main__":
    PROGRAM.main()
