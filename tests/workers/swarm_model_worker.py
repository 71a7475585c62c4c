"""Run by torchrun: evaluates the embedded example's classifier on a swarm; FOLDER/rank-N.json has what it got.

Rank 0 closes its model, the others leave it to the end of the process.
"""

from __future__ import annotations

import csv
import json
import os
import sys
from pathlib import Path

import torch
from torch.utils.data import DataLoader
from transformers import AutoTokenizer

from dist_eval import AutoDistributedModelForSequenceClassification, PetalsPipeline, demo, evaluate

ROWS = 90


def batches(size: int, side: str = "right") -> DataLoader[dict[str, torch.Tensor]]:
    """Returns the first rows of the test data."""
    tokenizer = AutoTokenizer.from_pretrained(demo.BASE_MODEL, padding_side=side)
    with open(demo.TEST_DATA, newline="") as file:
        rows = list(csv.DictReader(file))[:ROWS]

    def collate(part: list[dict[str, str]]) -> dict[str, torch.Tensor]:
        encoded = tokenizer([row["text"] for row in part], padding=True, return_tensors="pt")
        return {**encoded, "labels": torch.tensor([int(row["label"]) for row in part])}

    return DataLoader(rows, batch_size=size, collate_fn=collate)  # type: ignore[arg-type]


def main() -> None:
    folder, peers, rank = Path(sys.argv[1]), sys.argv[2:], int(os.environ.get("RANK", 0))
    model = AutoDistributedModelForSequenceClassification.from_pretrained(
        demo.BASE_MODEL, initial_peers=peers, checkpoint=demo.CHECKPOINT
    )
    known = {side: evaluate(model, batches(16, side), return_predictions=True) for side in ("right", "left")}
    for result in known.values():
        result["predictions"] = result["predictions"].tolist()
    pipeline = PetalsPipeline(model, torch.nn.CrossEntropyLoss(), micro_batches=10)
    pairs = (((batch["input_ids"], batch["attention_mask"]), batch["labels"]) for batch in batches(16))
    known["loss"] = pipeline.eval_batch(pairs).item()
    (folder / f"rank-{rank}.json").write_text(json.dumps(known))
    if not rank:
        model.close()


if __name__ == "__main__":
    main()
