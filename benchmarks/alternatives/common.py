"""Common parts of the alternatives: the task, the model on the swarm, timing, and the result file.

As for dist_eval, tokenizing is not timed. One warm-up forward pass precedes the timed loop.
"""

from __future__ import annotations

import csv
import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import torch

from dist_eval.api.petals_classifier import open_petals_classifier
from dist_eval.process.lifetime import die_with_parent, temporary_files_in, workspace
from dist_eval.process.logging_setup import silence_libraries

_Answer = TypeVar("_Answer")


@dataclass(frozen=True)
class Spec:
    """The task of an alternative.

    Attributes:
        model: folder of the base model and its tokenizer.
        checkpoint: folder of the tuned checkpoint.
        dataset: CSV file with the columns `sentence` and `label`.
        initial_peers: addresses of the swarm; empty for a local model.
        dht_prefix: name under which the swarm announces the model.
        batch_size: examples in a batch.
        max_length: tokens to which every text is padded or truncated; None pads to the longest text of a batch.
    """

    model: str
    checkpoint: str
    dataset: str
    initial_peers: list[str]
    dht_prefix: str
    batch_size: int = 32
    max_length: int | None = None


@dataclass(frozen=True)
class Result:
    """The result of an alternative.

    Attributes:
        seconds: duration of the evaluation loop, on the slowest rank.
        predictions: predicted class of each example, in dataset order.
    """

    seconds: float
    predictions: list[int]


def main(evaluate: Callable[[Any, Path], Any], kind: type[Any] = Spec) -> NoReturn:
    """Runs an alternative as a program and ends the process.

    Args:
        evaluate: called with the task and a private folder; rank 0's result, a dataclass, is written.
        kind: dataclass of the task.
    """
    die_with_parent()
    silence_libraries()
    spec = kind(**json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
    code = 1
    try:
        with workspace() as scratch_dir, temporary_files_in(scratch_dir):
            result = evaluate(spec, scratch_dir)
            if os.environ.get("RANK", "0") == "0":
                Path(sys.argv[2]).write_text(json.dumps(asdict(result)), encoding="utf-8")
            code = 0
    except Exception:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # also after an error: hivemind's threads would keep the process alive, and other ranks would wait


def tokenized(spec: Spec) -> tuple[Any, Any]:
    """Returns a dataset of `input_ids`, `attention_mask` and `labels`, and the tokenizer."""
    from transformers import PreTrainedTokenizerFast

    with Path(spec.dataset).open(newline="", encoding="utf-8") as file:
        sentences, labels = zip(*((row["sentence"], int(row["label"])) for row in csv.DictReader(file)), strict=True)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(spec.model)
    padding: dict[str, Any] = {"padding": "max_length", "max_length": spec.max_length} if spec.max_length else {}
    encoded = tokenizer(list(sentences), truncation=True, return_token_type_ids=False, **padding)
    convert: Any = torch.tensor if spec.max_length else list  # the padding collator takes lists
    columns = zip(encoded["input_ids"], encoded["attention_mask"], labels, strict=True)
    rows = [
        {"input_ids": convert(ids), "attention_mask": convert(mask), "labels": label} for ids, mask, label in columns
    ]
    return rows, tokenizer


def swarm_model(spec: Spec) -> AbstractContextManager[Any]:
    """Opens Petals' own classifier with the tuned prompts and head.

    Open it before a process group: it forks, and the fork must not inherit connections.
    """
    return open_petals_classifier(
        spec.model, spec.initial_peers, checkpoint=spec.checkpoint, dht_prefix=spec.dht_prefix
    )


def classify(model: Any, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
    """Returns the logits of a batch that is padded on the right.

    The mask is not sent, because Petals rejects it, but locates the last token: transformers would search for the
    padding id, which is wrong for texts that contain that id.
    """
    hidden = model.transformer(input_ids=input_ids)[0]
    rows = torch.arange(len(input_ids))
    return model.score(hidden[rows, attention_mask.sum(dim=1) - 1])


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
