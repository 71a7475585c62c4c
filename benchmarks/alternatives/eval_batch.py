"""`eval_batch` of a pipeline: DeepSpeed's own `PipelineEngine`, and `PetalsPipeline` on a swarm.

Both return the seconds of one `eval_batch` over all micro-batches after a warm-up, the mean loss, the loss of each
micro-batch, and the logits of the last one, [rows][labels]; DeepSpeed returns no others.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

STAGES = 2
_LOSS = nn.CrossEntropyLoss()
_WARM_UP = 4  # micro-batches before the clock starts


def with_deepspeed(scratch_dir: Path, *, base: str, tuned: str, micro_batches: str) -> dict[str, Any] | None:
    """Evaluates micro-batches with DeepSpeed, a stage in each process; only the last stage has an outcome."""
    os.environ.update(DS_ACCELERATOR="cpu", DS_BUILD_OPS="0")
    import deepspeed
    from deepspeed.pipe import PipelineModule

    torch.set_num_threads(1)
    deepspeed.init_distributed(dist_backend="gloo", verbose=False)
    pairs = _read(micro_batches)
    rows = len(pairs[0][1])
    layers = _layers(base, tuned)
    pipeline = PipelineModule(layers=layers, num_stages=STAGES, loss_fn=_LOSS, partition_method="uniform")
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
    return _outcome(seconds, loss, losses, logits) if engine.is_last_stage() else None


def with_petals(
    scratch_dir: Path,
    *,
    base: str,
    tuned: str,
    micro_batches: str,
    initial_peers: list[str],
    dht_prefix: str,
    in_flight: int | None,
) -> dict[str, Any]:
    """Evaluates micro-batches with `PetalsPipeline`, whose stages are the servers of a swarm."""
    from dist_eval import AutoDistributedModelForSequenceClassification, PetalsPipeline

    pairs = _read(micro_batches)
    settings: dict[str, Any] = {"initial_peers": initial_peers, "checkpoint": tuned, "dht_prefix": dht_prefix}
    with AutoDistributedModelForSequenceClassification.from_pretrained(base, **settings) as model:
        pipeline = PetalsPipeline(model, _LOSS, micro_batches=len(pairs), in_flight=in_flight)

        def evaluate(**options: Any) -> Any:
            return pipeline.eval_batch(iter(pairs), **options)

        loss, seconds = _timed(evaluate)
        losses, logits = evaluate(return_logits=True, reduce_output=None)
    return _outcome(seconds, loss, losses, logits[-len(pairs[-1][1]) :])


def _read(micro_batches: str) -> list[tuple[torch.Tensor, torch.Tensor]]:
    from safetensors.torch import load_file

    tensors = load_file(micro_batches)
    return list(zip(tensors["input_ids"], tensors["labels"], strict=True))


def _timed(evaluate: Callable[..., Any]) -> tuple[Any, float]:
    evaluate(num_micro_batches=_WARM_UP)
    start = time.perf_counter()
    return evaluate(), time.perf_counter() - start


def _outcome(seconds: float, loss: Any, losses: Any, logits: Any) -> dict[str, Any]:
    return {"seconds": seconds, "loss": float(loss), "losses": list(map(float, losses)), "logits": logits.tolist()}


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


def _layers(base: str, tuned: str) -> list[nn.Module]:
    from transformers import LlamaModel

    from dist_eval.petals.model.checkpoint import TunedCheckpoint

    model, checkpoint = LlamaModel.from_pretrained(base).eval(), TunedCheckpoint.load(tuned)
    assert checkpoint.prompts is not None and checkpoint.deep_prompts is not None
    pairs = zip(model.layers, checkpoint.deep_prompts, strict=True)
    blocks = [_Block(block, model.rotary_emb, prompts) for block, prompts in pairs]
    return [_Embedding(model.embed_tokens, checkpoint.prompts), *blocks, _Head(model.norm, checkpoint.head)]
