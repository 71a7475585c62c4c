"""`python -m benchmarks.eval_batch`: `PetalsPipeline.eval_batch` compared with DeepSpeed's.

The same model, micro-batches and loss go through DeepSpeed's `PipelineEngine` with two stages, each a process with one
thread (gloo, on the CPU), and through a swarm of two servers with one thread each, with Petals' own class of the model.
Where DeepSpeed is not installed (`uv run --with deepspeed ...`) it is left out.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import sys
from dataclasses import asdict, replace
from pathlib import Path

import torch

from benchmarks import harness, ranks
from benchmarks.eval_batch_worker import STAGES, Outcome, Task
from benchmarks.hosting import swarm_of
from benchmarks.models import MEDIUM, PROMPT_TOKENS, SMALL, TINY, WIDE, Model, make_model
from benchmarks.petals_environment import petals_python
from benchmarks.program import BenchmarkError, run_program
from benchmarks.text import make_corpus

QUESTION = "How many examples per second does eval_batch evaluate, on a swarm and in DeepSpeed's pipeline?"
DEEPSPEED, OURS, ONE_BY_ONE = "DeepSpeed, 2 stages", "dist_eval, 2 servers", "dist_eval, one at a time"
_ROWS, _LENGTH, _BUDGET = 24, 25, 1024
SIZES = {str(size): size for size in (SMALL, MEDIUM, WIDE)}
_LEAST_SHARE = 0.95
_TOLERANCE = 1e-4
"""Tolerance for logits, which are of the order of 1: the implementations sum in different orders."""


def measure(options: argparse.Namespace, scratch_dir: Path) -> None:
    """Runs all implementations on the same micro-batches, in rounds.

    Args:
        options: the command line.
        scratch_dir: folder for temporary files.
    """
    report = harness.Report("eval_batch", QUESTION, unit="examples/s", options=options)
    size, count = (TINY, 4) if options.quick else (SIZES[options.base], options.micro_batches)
    assert _ROWS * (PROMPT_TOKENS + _LENGTH) <= _BUDGET
    group = f"Llama {size}, {count} micro-batches of {_ROWS} texts of {_LENGTH} tokens and {PROMPT_TOKENS} prompts"
    model = make_model(scratch_dir, size, make_corpus(100).sentences)
    with swarm_of(model, scratch_dir, servers=STAGES) as swarm:
        task = task_of(model, scratch_dir, count, swarm.initial_peers)
        ways = {OURS: task, ONE_BY_ONE: replace(task, in_flight=1)}
        if importlib.util.find_spec("deepspeed"):
            ways = {DEEPSPEED: task, **ways}
        for _ in range(1 if options.quick else options.rounds):
            outcomes = {name: run(name, one, scratch_dir) for name, one in ways.items()}
            for name, outcome in outcomes.items():
                report.add(group, name, count * _ROWS / outcome.seconds, asdict(outcome))
            largest = require_equal(outcomes)
    if DEEPSPEED in ways:
        bar = _LEAST_SHARE if size in (MEDIUM, WIDE) else None  # where computing counts
        report.compare(f"{OURS} / {DEEPSPEED}", (group, OURS), (group, DEEPSPEED), bar=bar)
    else:
        report.note("DeepSpeed is not installed: `uv run --with deepspeed python -m benchmarks.eval_batch` has it.")
    report.compare(f"{OURS} / {ONE_BY_ONE}", (group, OURS), (group, ONE_BY_ONE))
    report.note(f"Largest difference between the ways, of a logit or a loss: {largest:.1e}.")
    report.finish()


def task_of(model: Model, scratch_dir: Path, count: int, peers: list[str]) -> Task:
    """Writes the micro-batches."""
    from safetensors.torch import save_file
    from transformers import AutoConfig

    generator, path = torch.Generator().manual_seed(1), scratch_dir / "micro-batches.safetensors"
    config = AutoConfig.from_pretrained(model.base)
    words = config.pad_token_id + 1, config.vocab_size  # a trailing padding id would not count as text
    save_file(
        {
            "input_ids": torch.randint(*words, (count, _ROWS, _LENGTH), generator=generator),
            "labels": torch.randint(0, 2, (count, _ROWS), generator=generator),
        },
        path,
    )
    return Task(str(model.base), str(model.tuned), str(path), peers, model.dht_prefix)


def run(name: str, task: Task, scratch_dir: Path) -> Outcome:
    """Runs one implementation on the micro-batches, in separate processes."""
    asked, answered = scratch_dir / "task.json", scratch_dir / "outcome.json"
    asked.write_text(json.dumps(asdict(task)), encoding="utf-8")
    if name == DEEPSPEED:
        way, launcher, python = "deepspeed", ranks.torchrun(STAGES), sys.executable
    else:
        way, launcher, python = "petals", list[str](), petals_python()
    arguments = ["-m", "benchmarks.eval_batch_worker", way, str(asked), str(answered)]
    ranks.run([*launcher, *arguments], scratch_dir, python=python)
    return Outcome(**json.loads(answered.read_text(encoding="utf-8")))


def require_equal(outcomes: dict[str, Outcome]) -> float:
    """Returns the largest difference between the implementations' logits and losses.

    Raises:
        BenchmarkError: it exceeds the tolerance.
    """
    figures = {
        name: torch.tensor([one.loss, *one.losses, *itertools.chain.from_iterable(one.logits)])
        for name, one in outcomes.items()
    }
    largest = max(float((values - figures[OURS]).abs().max()) for values in figures.values())
    if not largest <= _TOLERANCE:
        raise BenchmarkError(f"The implementations differ by {largest:.1e} in a logit or a loss; they should agree.")
    return largest


def main() -> None:
    """Runs the command line."""
    parser = harness.parser("eval_batch", QUESTION, rounds=3)
    parser.add_argument("--base", choices=SIZES, default=str(SMALL), help="size of the model (%(default)s)")
    parser.add_argument("--micro-batches", type=int, default=60, help="of an eval_batch (default 60)")
    options = parser.parse_args()
    run_program(lambda scratch_dir: measure(options, scratch_dir))


if __name__ == "__main__":
    main()
