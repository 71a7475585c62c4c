"""The upper limit of the machine: dist_eval's batches in one process with all cores, without a swarm."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from benchmarks.alternatives.common import Task, timed
from dist_eval.data.dataset import tokenize_dataset
from dist_eval.data.labelled_rows import LabelledRows
from dist_eval.data.plan import plan_batches
from dist_eval.model.classifier import load_locally
from dist_eval.options.groups import MAX_TOKEN_BUDGET
from dist_eval.petals.model.checkpoint import TunedCheckpoint


def classify(scratch_dir: Path, **task: Any) -> dict[str, Any]:
    """Classifies the dataset of a task."""
    from transformers import AutoTokenizer

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    settings = Task(**task)
    tuned = TunedCheckpoint.load(settings.checkpoint)
    classifier = load_locally(settings.model, tuned)
    tokenizer = AutoTokenizer.from_pretrained(settings.model)
    data = tokenize_dataset(
        LabelledRows(settings.dataset, ["sentence"], "label", tuned.label_names),
        scratch_dir,
        tokenizer=tokenizer,
        max_length=tokenizer.model_max_length - tuned.pre_seq_len,
    )
    plan = plan_batches(data.lengths, token_budget=MAX_TOKEN_BUDGET, extra_tokens=tuned.pre_seq_len)

    def predict(number: int) -> torch.Tensor:
        input_ids, lengths = data.padded(plan.batch(number))
        return classifier.logits(torch.from_numpy(input_ids), torch.from_numpy(lengths)).argmax(dim=1)

    predict(0)
    planned, seconds = timed(lambda: torch.cat([predict(number) for number in range(len(plan))]))
    predictions = torch.empty_like(planned)
    predictions[torch.from_numpy(plan.order)] = planned
    return {"seconds": seconds, "answers": predictions.tolist()}
