"""Evaluates a tuned checkpoint as programs of users do, on a private swarm of its own.

    swarm_loop_worker.py MODEL CHECKPOINT DATASET

It prints the accuracy of `evaluate`, and by how much the logits of `eval_batch` differ from those of a local model.
"""

from __future__ import annotations

import csv
import json
import sys
from typing import Any

import torch
from torch.utils.data import DataLoader
from transformers import AutoTokenizer

from dist_eval import PetalsPipeline, PrivateSwarm, evaluate, open_petals_classifier
from dist_eval.model.checkpoint import TunedCheckpoint
from dist_eval.model.classifier import load_locally


def main() -> None:
    base, checkpoint, dataset = sys.argv[1:]
    tokenizer = AutoTokenizer.from_pretrained(base)
    with open(dataset, newline="") as file:
        rows = list(csv.DictReader(file))

    def collate(rows: list[dict[str, str]]) -> dict[str, Any]:
        batch = tokenizer([row["text"] for row in rows], padding=True, return_tensors="pt")
        return {**batch, "labels": torch.tensor([int(row["label"]) for row in rows])}

    loader = DataLoader(rows, batch_size=8, collate_fn=collate)
    micro_batches = [((batch["input_ids"], batch["attention_mask"]), batch["labels"]) for batch in loader]
    with (
        PrivateSwarm(base, num_blocks=4, dht_prefix="base", spans=[(0, 2), (2, 4)], threads=1) as swarm,
        open_petals_classifier(base, swarm.initial_peers, checkpoint=checkpoint, dht_prefix="base") as model,
    ):
        result = evaluate(model, loader)
        pipeline = PetalsPipeline(model, loss_fn=torch.nn.CrossEntropyLoss(), micro_batches=len(micro_batches))
        _, logits = pipeline.eval_batch(iter(micro_batches), return_logits=True)
    local = load_locally(base, TunedCheckpoint.load(checkpoint))
    expected = torch.cat([local.logits(ids, mask.sum(dim=1)) for (ids, mask), _ in micro_batches])
    print(json.dumps({"accuracy": result["accuracy"], "difference": float((logits - expected).abs().max())}))


if __name__ == "__main__":
    main()
