"""Hugging Face accelerate: a prepared data loader with dynamic padding, and `gather_for_metrics` after every batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

from benchmarks.alternatives.common import Task, logits_of, timed


def classify(scratch_dir: Path, **task: Any) -> dict[str, Any]:
    """Classifies the dataset of a task."""
    from accelerate import Accelerator
    from transformers import DataCollatorWithPadding

    settings = Task(**task)
    dataset, tokenizer = settings.tokenized()
    model = settings.load_model(scratch_dir)
    accelerator = Accelerator(cpu=True)
    collate = DataCollatorWithPadding(tokenizer)
    loader = accelerator.prepare(DataLoader(dataset, batch_size=settings.batch_size, collate_fn=collate))

    def predict(batch: dict[str, torch.Tensor]) -> torch.Tensor:
        with torch.no_grad():
            return logits_of(model, batch["input_ids"], batch["attention_mask"]).argmax(dim=-1)

    def predict_all() -> list[int]:
        predictions: list[int] = []
        for batch in loader:
            gathered, _ = accelerator.gather_for_metrics((predict(batch), batch["labels"]))
            predictions += gathered.tolist()
        return predictions

    predict(collate(dataset[: settings.batch_size]))
    predictions, seconds = timed(predict_all)
    accelerator.end_training()
    return {"seconds": seconds, "answers": predictions}
