"""Hugging Face `Trainer.predict` with dynamic padding; a thin wrapper hides the attention mask from Petals."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.alternatives.common import Task, logits_of, timed


class WithoutMask(nn.Module):
    """Petals' classifier for `Trainer`, which always passes an attention mask."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, labels: torch.Tensor | None = None
    ) -> dict[str, torch.Tensor]:
        """Returns logits and, with labels, the loss."""
        logits = logits_of(self.model, input_ids, attention_mask)
        if labels is None:
            return {"logits": logits}
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def classify(scratch_dir: Path, **task: Any) -> dict[str, Any]:
    """Classifies the dataset of a task."""
    from transformers import DataCollatorWithPadding, Trainer, TrainingArguments

    _bridge_accelerate()
    settings = Task(**task)
    dataset, tokenizer = settings.tokenized()
    model = settings.load_model(scratch_dir)
    arguments = TrainingArguments(
        output_dir=str(scratch_dir),
        per_device_eval_batch_size=settings.batch_size,
        use_cpu=True,
        disable_tqdm=True,
        report_to=[],
    )
    trainer: Any = Trainer(model=WithoutMask(model), args=arguments, data_collator=DataCollatorWithPadding(tokenizer))
    trainer.predict(dataset[: settings.batch_size])
    output, seconds = timed(lambda: trainer.predict(dataset))
    return {"seconds": seconds, "answers": output.predictions.argmax(axis=-1).tolist()}


def _bridge_accelerate() -> None:
    """Makes the Trainer of transformers 4.34 omit an argument that newer versions of accelerate have removed."""
    from accelerate import Accelerator

    trainer: Any = importlib.import_module("transformers.trainer")

    def accelerator(dispatch_batches: bool | None = None, **kwargs: Any) -> Accelerator:
        return Accelerator(**kwargs)

    trainer.Accelerator = accelerator
