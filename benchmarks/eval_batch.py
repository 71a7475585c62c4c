"""`python -m benchmarks.eval_batch`: `PetalsPipeline.eval_batch` compared with DeepSpeed's.

The same model, micro-batches and loss go through DeepSpeed's `PipelineEngine` with two stages, each a process with one
thread (gloo, on the CPU), and through a swarm of two servers with one thread each.
Where DeepSpeed is not installed (`uv run --with deepspeed ...`) it is left out.
"""

from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path
from typing import Any

import torch

from benchmarks.alternatives.eval_batch import STAGES
from benchmarks.contenders import Contender, Outcome, run_round
from benchmarks.harness import BenchmarkError, Program, Report
from benchmarks.models import MEDIUM, PROMPT_TOKENS, SIZES, SMALL, WIDE, Model, make_model
from benchmarks.processes import call
from benchmarks.swarms import swarm_of
from benchmarks.text import make_corpus

QUESTION = "How many examples per second does eval_batch evaluate, on a swarm and in DeepSpeed's pipeline?"
DEEPSPEED, OURS, ONE_BY_ONE = "DeepSpeed, 2 stages", "dist_eval, 2 servers", "dist_eval, one at a time"
TOLERANCE = 1e-4  # for logits, which are of the order of 1: the implementations sum in different orders
_ROWS, _LENGTH = 24, 25
_LEAST_SHARE = 0.95


def measure(options: argparse.Namespace, scratch_dir: Path) -> None:
    """Runs all implementations on the same micro-batches, in rounds."""
    report = Report("eval_batch", QUESTION, unit="examples/s", options=options)
    size, count = SIZES[options.base], options.micro_batches
    group = f"Llama {size}, {count} micro-batches of {_ROWS} texts of {_LENGTH} tokens and {PROMPT_TOKENS} prompts"
    model = make_model(scratch_dir, size, make_corpus(100).sentences)
    task = {"base": str(model.base), "tuned": str(model.tuned)}
    task["micro_batches"] = str(write_micro_batches(model, scratch_dir, count))
    with swarm_of(model, scratch_dir) as swarm:

        def ours(name: str, in_flight: int | None) -> Contender:
            where = {"initial_peers": swarm.initial_peers, "dht_prefix": model.dht_prefix, "in_flight": in_flight}
            return Contender(name, lambda: _run("with_petals", scratch_dir, count, **task, **where))

        contenders = [ours(OURS, None), ours(ONE_BY_ONE, 1)]
        if importlib.util.find_spec("deepspeed"):
            deepspeed = Contender(DEEPSPEED, lambda: _run("with_deepspeed", scratch_dir, count, ranks=STAGES, **task))
            contenders.append(deepspeed)
        else:
            report.note("DeepSpeed is not installed: `uv run --with deepspeed python -m benchmarks.eval_batch` has it.")
        for _ in range(options.rounds):
            outcomes = run_round(report, group, contenders, tolerance=TOLERANCE)
    figures = torch.tensor([outcome.answers for outcome in outcomes.values()])
    largest = float((figures - figures[0]).abs().max())
    if largest > TOLERANCE:
        raise BenchmarkError(f"The implementations differ by {largest:.1e} in a logit or a loss; they should agree.")
    bar = _LEAST_SHARE if size in (MEDIUM, WIDE) else None  # where computing counts
    report.compare(f"{OURS} / {DEEPSPEED}", (group, OURS), (group, DEEPSPEED), bar=bar)
    report.compare(f"{OURS} / {ONE_BY_ONE}", (group, OURS), (group, ONE_BY_ONE))
    report.note(f"Largest difference between the ways, of a logit or a loss: {largest:.1e}.")
    report.finish()


def write_micro_batches(model: Model, folder: Path, count: int) -> Path:
    """Writes `input_ids`, [micro-batches, rows, length], and `labels`: DeepSpeed takes one shape only."""
    from safetensors.torch import save_file
    from transformers import AutoConfig

    generator, path = torch.Generator().manual_seed(1), folder / "micro-batches.safetensors"
    config = AutoConfig.from_pretrained(model.base)
    words = config.pad_token_id + 1, config.vocab_size  # a trailing padding id would not count as text
    input_ids = torch.randint(*words, (count, _ROWS, _LENGTH), generator=generator)
    save_file({"input_ids": input_ids, "labels": torch.randint(0, 2, (count, _ROWS), generator=generator)}, path)
    return path


def _run(function: str, folder: Path, count: int, **task: Any) -> Outcome:
    found = call(f"benchmarks.alternatives.eval_batch:{function}", folder, **task)[-1]
    logits = [number for row in found["logits"] for number in row]
    return Outcome(found["seconds"], [found["loss"], *found["losses"], *logits], units=count * _ROWS)


PROGRAM = Program("eval_batch", QUESTION, measure, quick={"base": "64x4", "micro_batches": 4})
PROGRAM.add("--base", str(SMALL), "size of the model", choices=SIZES)
PROGRAM.add("--micro-batches", 60, "of an eval_batch")

if __name__ == "__main__":
    PROGRAM.main()
