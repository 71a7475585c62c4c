"""Hugging Face accelerate: a prepared data loader with dynamic padding, and `gather_for_metrics` after every batch."""

from __future__ import annotations

from pathlib import Path

import torch
from torch.utils.data import DataLoader

from benchmarks.alternatives.common import Result, Spec, classify, main, swarm_model, timed, tokenized


def evaluate(spec: Spec, scratch_dir: Path) -> Result:
    """Classifies the dataset."""
    from accelerate import Accelerator
    from transformers import DataCollatorWithPadding

    dataset, tokenizer = tokenized(spec)
    with swarm_model(spec) as model:
        accelerator = Accelerator(cpu=True)
        collate = DataCollatorWithPadding(tokenizer)
        loader = accelerator.prepare(DataLoader(dataset, batch_size=spec.batch_size, collate_fn=collate))

        def predict(batch: dict[str, torch.Tensor]) -> torch.Tensor:
            with torch.no_grad():
                return classify(model, batch["input_ids"], batch["attention_mask"]).argmax(dim=-1)

        def predict_all() -> list[int]:
            predictions: list[int] = []
            for batch in loader:
                found, _ = accelerator.gather_for_metrics((predict(batch), batch["labels"]))
                predictions += found.tolist()
            return predictions

        predict(collate(dataset[: spec.batch_size]))
        predictions, seconds = timed(predict_all)
        accelerator.end_training()
    return Result(seconds, predictions)


if __name__ == "__main__":
    main(evaluate)
