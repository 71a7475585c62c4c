"""A typical hand-written loop: every text padded to a fixed length, one batch after the other.

On several ranks a `DistributedSampler` distributes the examples.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler, SequentialSampler

from benchmarks.alternatives.common import Task, logits_of, timed

_WARM_UP_ROWS = 32


def classify(scratch_dir: Path, **task: Any) -> dict[str, Any]:
    """Classifies the dataset of a task."""
    settings = Task(**task)
    dataset, _ = settings.tokenized()
    model = settings.load_model(scratch_dir)
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    if ranks > 1:
        dist.init_process_group("gloo")
    sampler: Any = DistributedSampler(dataset, shuffle=False) if ranks > 1 else SequentialSampler(dataset)
    loader = DataLoader(dataset, batch_size=settings.batch_size, sampler=sampler)

    def predict(batch: dict[str, torch.Tensor]) -> list[int]:
        with torch.no_grad():
            logits = logits_of(model, batch["input_ids"], batch["attention_mask"])
        return logits.argmax(dim=-1).tolist()

    predict({name: column[:_WARM_UP_ROWS] for name, column in next(iter(loader)).items()})
    predictions, seconds = timed(lambda: [label for batch in loader for label in predict(batch)])
    if ranks > 1:
        predictions = _gather(predictions, ranks, len(dataset))
        dist.destroy_process_group()
    return {"seconds": seconds, "answers": predictions}


def _gather(predictions: list[int], ranks: int, count: int) -> list[int]:
    """Gathers all predictions in dataset order, without the examples that the sampler repeated."""
    parts: list[Any] = [None] * ranks
    dist.all_gather_object(parts, predictions)
    return [parts[position % ranks][position // ranks] for position in range(count)]
