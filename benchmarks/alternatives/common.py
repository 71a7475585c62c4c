"""Common parts of the alternatives: the text, the model on the swarm, and timing.

As for dist_eval, tokenizing is not timed. One warm-up forward pass precedes the timed loop.
"""

from __future__ import annotations

import csv
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch

from benchmarks.alternatives.petals_models import load_classifier, load_language_model

_Answer = TypeVar("_Answer")


@dataclass(frozen=True)
class Task:
    """The texts to classify, and the model.

    Attributes:
        model: folder of the base model and its tokenizer.
        checkpoint: folder of the tuned checkpoint.
        dataset: CSV file with the columns `sentence` and `label`.
        initial_peers: addresses of the swarm.
        dht_prefix: name under which the swarm announces the model.
        batch_size: examples in a batch.
        max_length: tokens to which every text is padded or truncated; None pads to the longest text of a batch.
    """

    model: str
    checkpoint: str
    dataset: str
    initial_peers: list[str]
    dht_prefix: str
    batch_size: int
    max_length: int | None

    def tokenized(self) -> tuple[Any, Any]:
        """Returns a dataset of `input_ids`, `attention_mask` and `labels`, and the tokenizer."""
        from transformers import PreTrainedTokenizerFast

        with Path(self.dataset).open(newline="", encoding="utf-8") as file:
            examples = [(row["sentence"], int(row["label"])) for row in csv.DictReader(file)]
        tokenizer = PreTrainedTokenizerFast.from_pretrained(self.model)
        padding: dict[str, Any] = {"padding": "max_length", "max_length": self.max_length} if self.max_length else {}
        sentences = [sentence for sentence, _ in examples]
        encoded = tokenizer(sentences, truncation=True, return_token_type_ids=False, **padding)
        convert: Any = torch.tensor if self.max_length else list  # the padding collator takes lists
        columns = zip(encoded["input_ids"], encoded["attention_mask"], examples, strict=True)
        rows = [
            {"input_ids": convert(ids), "attention_mask": convert(mask), "labels": label}
            for ids, mask, (_, label) in columns
        ]
        return rows, tokenizer

    def load_model(self, scratch_dir: Path) -> Any:
        """Loads Petals' own classifier with the tuned prompts and head; do so before a process group is opened."""
        return load_classifier(self.model, self.checkpoint, self.initial_peers, self.dht_prefix, scratch_dir)


def logits_of(model: Any, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
    """Returns the logits of a batch that is padded on the right.

    The mask is not sent, because Petals rejects it, but locates the last token: transformers would search for the
    padding id, which is wrong for texts that contain that id.
    """
    hidden = model.transformer(input_ids=input_ids)[0]
    rows = torch.arange(len(input_ids))
    return model.score(hidden[rows, attention_mask.sum(dim=1) - 1])


def causal_model(model: str, initial_peers: list[str], dht_prefix: str, scratch_dir: Path) -> Any:
    """Loads Petals' own causal model on a swarm; without peers one in this process, where all cores compute it."""
    if not initial_peers:
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(len(os.sched_getaffinity(0)))
        return AutoModelForCausalLM.from_pretrained(model)
    return load_language_model(model, initial_peers, dht_prefix, scratch_dir)


def timed(action: Callable[[], _Answer]) -> tuple[_Answer, float]:
    """Runs an action on all ranks, which start at the same time.

    Returns:
        The result of this rank's action, and the seconds of the slowest rank.
    """
    import torch.distributed as dist

    together = dist.is_available() and dist.is_initialized()
    if together:
        dist.barrier()
    start = time.perf_counter()
    answer = action()
    seconds = torch.tensor(time.perf_counter() - start, dtype=torch.float64)
    if together:
        dist.all_reduce(seconds, dist.ReduceOp.MAX)
    return answer, float(seconds)
