"""Run by torchrun: each rank evaluates micro-batches of its own and writes what it got to FOLDER/rank-N.json."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dist_eval import PetalsPipeline
from dist_eval.errors import EvaluationError

SIZES = ([4, 4, 1], [3], [])
"""Micro-batches of each rank."""


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 8), nn.Dropout(0.5), nn.Tanh(), nn.Linear(8, 3))


def micro_batches(rank: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(rank)
    return [
        (torch.randn(size, 5, generator=generator), torch.randint(0, 3, (size,), generator=generator))
        for size in SIZES[rank]
    ]


def main() -> None:
    folder, rank = Path(sys.argv[1]), int(os.environ.get("RANK", 0))
    pipeline = PetalsPipeline(model(), nn.CrossEntropyLoss(), micro_batches=5)
    loss, logits = pipeline.eval_batch(iter(micro_batches(rank)), return_logits=True)
    known: dict[str, Any] = {"loss": loss.item(), "rows": 0 if logits is None else len(logits)}
    each = pipeline.eval_batch(iter(micro_batches(rank)), reduce_output=None)
    known["each"] = [one.item() for one in each]
    try:
        pipeline.eval_batch(iter([]))
    except StopIteration as error:
        known["ended"] = str(error)

    def broken() -> Iterator[Any]:
        yield from micro_batches(rank)
        if rank == 1:
            raise ValueError("no more data")

    try:
        pipeline.eval_batch(broken())
    except (EvaluationError, ValueError) as error:
        known["failure"] = f"{type(error).__name__}: {error}"
    known["untouched"] = pipeline.module.training and torch.is_grad_enabled()
    (folder / f"rank-{rank}.json").write_text(json.dumps(known))


if __name__ == "__main__":
    main()
