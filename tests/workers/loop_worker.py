"""Run by torchrun: evaluates one model in several ways and writes what each rank got to FOLDER/rank-N.json."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler, TensorDataset

from dist_eval import evaluate
from dist_eval.errors import EvaluationError

EXAMPLES, CLASSES, LENGTH = 37, 3, 6


class Texts(Dataset[dict[str, torch.Tensor]]):
    def __init__(self, count: int = EXAMPLES) -> None:
        generator = torch.Generator().manual_seed(0)
        self.input_ids = torch.randint(0, 50, (count, LENGTH), generator=generator)
        self.labels = torch.randint(0, CLASSES, (count,), generator=generator)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        mask = torch.ones(LENGTH, dtype=torch.int64)
        return {"input_ids": self.input_ids[index], "attention_mask": mask, "labels": self.labels[index]}


class Bag(nn.Module):
    """A classifier that is wrong often enough; with dropout, so that it matters that it is in eval mode."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.embedding, self.dropout, self.head = nn.Embedding(50, 8), nn.Dropout(0.5), nn.Linear(8, CLASSES)
        self.frozen = nn.Dropout(0.5).eval()
        self.register_buffer("step", torch.zeros(1))  # what DistributedDataParallel would send in every forward

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> SimpleNamespace:
        assert not torch.is_grad_enabled()
        bag = (self.embedding(input_ids) * attention_mask.unsqueeze(-1)).mean(dim=1)
        return SimpleNamespace(logits=self.head(self.frozen(self.dropout(bag))))


class Failing(Bag):
    """Fails on the rank that has the first example."""

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> SimpleNamespace:
        if (input_ids == Texts().input_ids[0]).all(dim=1).any():
            raise RuntimeError("the model broke")
        return super().forward(input_ids, attention_mask)


def result_of(model: nn.Module, loader: Any) -> dict[str, Any]:
    result = evaluate(model, loader, return_predictions=True)
    return {name: value.tolist() if name == "predictions" else value for name, value in result.items()}


def main() -> None:
    folder, rank, world_size = Path(sys.argv[1]), int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    texts, model = Texts(), Bag()
    sampler = DistributedSampler(texts, world_size, rank, shuffle=True)
    known: dict[str, Any] = {"plain": result_of(model, DataLoader(texts, 5))}
    known["again"] = result_of(model, DataLoader(texts, 5))
    known["distributed"] = result_of(model, DataLoader(texts, 5, sampler=sampler))
    known["few"] = result_of(model, DataLoader(Texts(1), 5))
    try:
        result_of(Failing(), DataLoader(texts, 5))
    except (EvaluationError, RuntimeError) as error:
        known["failure"] = f"{type(error).__name__}: {error}"
    dist.init_process_group("gloo")
    for epoch in range(2):  # as after each epoch of a training loop
        known[f"epoch {epoch}"] = result_of(model, DataLoader(texts, 5, shuffle=True))
    known["data parallel"] = result_of(DistributedDataParallel(model), DataLoader(texts, 5))
    total = torch.ones(1)
    dist.all_reduce(total)
    known["ranks"] = int(total)
    known["modes"] = [model.training, model.dropout.training, model.frozen.training, torch.is_grad_enabled()]
    try:
        evaluate(model, DataLoader(TensorDataset(texts.input_ids, texts.labels), 5))
    except EvaluationError as error:
        known["tuples"] = str(error)
    dist.destroy_process_group()
    (folder / f"rank-{rank}.json").write_text(json.dumps(known))


if __name__ == "__main__":
    main()
