"""Run by `benchmarks.eval_batch`: evaluates micro-batches with one implementation and writes the outcome.

torchrun --nproc_per_node=2 -m benchmarks.eval_batch_worker deepspeed TASK.json RESULT.json
python -m benchmarks.eval_batch_worker petals TASK.json RESULT.json
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dist_eval.model.checkpoint import TunedCheckpoint
from dist_eval.process.lifetime import die_with_parent, temporary_files_in, workspace
from dist_eval.process.logging_setup import silence_libraries

STAGES = 2
LOSS = nn.CrossEntropyLoss()

_WARM_UP = 4
"""Micro-batches before the clock starts."""


@dataclass(frozen=True)
class Task:
    """The task of an implementation.

    Attributes:
        base: folder of the base model.
        tuned: folder of the tuned checkpoint.
        micro_batches: file with `input_ids`, int64 of shape [micro-batches, rows, length], and `labels`, int64 of shape
            [micro-batches, rows]; DeepSpeed takes micro-batches of one shape only.
        initial_peers: addresses of the swarm.
        dht_prefix: name under which the swarm announces the model.
        in_flight: micro-batches in flight on the swarm; None for an adaptive number.
    """

    base: str
    tuned: str
    micro_batches: str
    initial_peers: list[str]
    dht_prefix: str
    in_flight: int | None = None


@dataclass(frozen=True)
class Outcome:
    """The outcome of an implementation.

    Attributes:
        seconds: duration of one `eval_batch` over all micro-batches, after a warm-up.
        loss: the mean loss.
        losses: the loss of each micro-batch.
        logits: logits of the last micro-batch, [rows][labels]; DeepSpeed returns no others.
    """

    seconds: float
    loss: float
    losses: list[float]
    logits: list[list[float]]


def with_deepspeed(task: Task) -> Outcome | None:
    """DeepSpeed's own `PipelineEngine`, a stage in each process.

    Returns:
        The outcome in the last stage; None in the others.
    """
    os.environ.update(DS_ACCELERATOR="cpu", DS_BUILD_OPS="0")
    import deepspeed
    from deepspeed.pipe import PipelineModule

    torch.set_num_threads(1)
    deepspeed.init_distributed(dist_backend="gloo", verbose=False)
    pairs = _micro_batches(task)
    rows = len(pairs[0][1])
    pipeline = PipelineModule(layers=_layers(task), num_stages=STAGES, loss_fn=LOSS, partition_method="uniform")
    settings = {
        "train_micro_batch_size_per_gpu": rows,
        "gradient_accumulation_steps": len(pairs),
        "train_batch_size": rows * len(pairs),
    }
    engine, *_ = deepspeed.initialize(model=pipeline, config=settings)

    def evaluate(**options: Any) -> Any:
        return engine.eval_batch(iter(pairs), **options)

    loss, seconds = _timed(evaluate)
    losses, logits = evaluate(return_logits=True, reduce_output=None, bcast_loss=False)
    if not engine.is_last_stage():
        return None
    return Outcome(seconds, float(loss), [float(one) for one in losses], logits.tolist())


def with_petals(task: Task) -> Outcome:
    """`PetalsPipeline`, whose stages are the servers of a swarm."""
    from dist_eval import PetalsPipeline, open_petals_classifier

    pairs = _micro_batches(task)
    with open_petals_classifier(
        task.base, task.initial_peers, checkpoint=task.tuned, dht_prefix=task.dht_prefix
    ) as model:
        pipeline = PetalsPipeline(model, LOSS, micro_batches=len(pairs), in_flight=task.in_flight)

        def evaluate(**options: Any) -> Any:
            return pipeline.eval_batch(iter(pairs), **options)

        loss, seconds = _timed(evaluate)
        losses, logits = evaluate(return_logits=True, reduce_output=None)
    return Outcome(seconds, float(loss), [float(one) for one in losses], logits[-len(pairs[-1][1]) :].tolist())


def _micro_batches(task: Task) -> list[tuple[torch.Tensor, torch.Tensor]]:
    from safetensors.torch import load_file

    tensors = load_file(task.micro_batches)
    return list(zip(tensors["input_ids"], tensors["labels"], strict=True))


def _timed(evaluate: Callable[..., Any]) -> tuple[Any, float]:
    evaluate(num_micro_batches=_WARM_UP)
    start = time.perf_counter()
    return evaluate(), time.perf_counter() - start


class _Embedding(nn.Module):
    """Token ids → prompts and embeddings."""

    def __init__(self, embeddings: nn.Module, prompts: torch.Tensor) -> None:
        super().__init__()
        self.embeddings, self.prompts = embeddings, nn.Parameter(prompts)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.prompts.expand(len(ids), -1, -1), self.embeddings(ids)], dim=1)


class _Block(nn.Module):
    """A block of Llama with its deep prompts."""

    def __init__(self, block: nn.Module, rotary: nn.Module, prompts: torch.Tensor) -> None:
        super().__init__()
        self.block, self.rotary, self.prompts = block, rotary, nn.Parameter(prompts)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        rows, length, _ = hidden.shape
        hidden = torch.cat([hidden[:, : len(self.prompts)] + self.prompts, hidden[:, len(self.prompts) :]], dim=1)
        future = torch.full((length, length), torch.finfo(hidden.dtype).min).triu(1)
        angles = self.rotary(hidden, torch.arange(length).unsqueeze(0))
        return self.block(hidden, attention_mask=future.expand(rows, 1, -1, -1), position_embeddings=angles)


class _Head(nn.Module):
    """Last token → logits."""

    def __init__(self, norm: nn.Module, head: torch.Tensor) -> None:
        super().__init__()
        self.norm, self.head = norm, nn.Parameter(head)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.norm(hidden[:, -1]) @ self.head.T


def _layers(task: Task) -> list[nn.Module]:
    from transformers import LlamaModel

    base, tuned = LlamaModel.from_pretrained(task.base).eval(), TunedCheckpoint.load(task.tuned)
    assert tuned.prompts is not None and tuned.deep_prompts is not None
    pairs = zip(base.layers, tuned.deep_prompts, strict=True)
    blocks = [_Block(block, base.rotary_emb, prompts) for block, prompts in pairs]
    return [_Embedding(base.embed_tokens, tuned.prompts), *blocks, _Head(base.norm, tuned.head)]


def main() -> None:
    """Runs one implementation and ends the process."""
    die_with_parent()
    silence_libraries()
    way, asked, answered = sys.argv[1:]
    task = Task(**json.loads(Path(asked).read_text(encoding="utf-8")))
    with workspace() as scratch_dir, temporary_files_in(scratch_dir):
        outcome = {"deepspeed": with_deepspeed, "petals": with_petals}[way](task)
        if outcome is not None:
            Path(answered).write_text(json.dumps(asdict(outcome)), encoding="utf-8")
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # everything is closed; see `temporary_files_in`


if __name__ == "__main__":
    main()
