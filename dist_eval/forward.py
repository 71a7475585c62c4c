"""A shard's batches through the classifier, a window of them in flight at a time."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Protocol

import numpy as np
import torch

from dist_eval.data import TokenizedDataset
from dist_eval.errors import EvaluationError, ModelOutputError, SwarmError
from dist_eval.plan import Plan
from dist_eval.predictions import Predictions
from dist_eval.window import Window

_ROWS_NAMED = 5


class TextClassifier(Protocol):
    """What a shard is sent through (see `dist_eval.model.Classifier`)."""

    @property
    def num_labels(self) -> int:
        """Width of the head."""
        ...

    @property
    def retries(self) -> int:
        """Requests that had to be repeated so far."""
        ...

    def logits(self, input_ids: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """Classifies a batch."""
        ...


def predict_batches(
    classifier: TextClassifier,
    dataset: TokenizedDataset,
    plan: Plan,
    batch_numbers: Iterable[int],
    *,
    window: Window,
) -> Iterator[tuple[int, Predictions]]:
    """Sends batches through the classifier and yields each as soon as it is back, in any order.

    Args:
        classifier: the model.
        dataset: the tokenized examples.
        plan: all batches of the run.
        batch_numbers: the batches to send.
        window: how many batches may be under way at a time; it is told of every batch that comes back.

    Yields:
        The batch's number and its predictions, in the batch's order.

    Raises:
        ModelOutputError: the model's outputs are no predictions; the message names rows of the batch.
        SwarmError: a batch got no answer within the retries; the message names rows of the batch.
    """
    numbers = iter(batch_numbers)
    pool = ThreadPoolExecutor(max_workers=window.largest, thread_name_prefix="forward")
    pending: dict[Future[tuple[Predictions, float]], int] = {}
    try:
        while True:
            while len(pending) < window.size and (number := next(numbers, None)) is not None:
                pending[pool.submit(_predict_batch, classifier, dataset, plan.batch(number), number)] = number
            if not pending:
                return
            done, _ = wait(pending, return_when=FIRST_COMPLETED)
            for future in done:
                predictions, seconds = future.result()
                window.finished(seconds, classifier.retries)
                yield pending.pop(future), predictions
    finally:
        # on an error the rest is given up: a request under way cannot be called back
        pool.shutdown(wait=False, cancel_futures=True)


def _predict_batch(
    classifier: TextClassifier, dataset: TokenizedDataset, rows: np.ndarray, number: int
) -> tuple[Predictions, float]:
    input_ids, lengths = dataset.padded(rows)
    start = time.monotonic()
    try:
        logits = classifier.logits(torch.from_numpy(input_ids), torch.from_numpy(lengths))
    except EvaluationError as error:
        raise type(error)(f"{_name(dataset, rows, number)}: {error}") from error
    except Exception as error:  # whatever Petals and hivemind raise once their retries are used up
        reason = (str(error).strip().splitlines() or [""])[0][:300] or type(error).__name__
        raise SwarmError(f"{_name(dataset, rows, number)} got no answer: {reason}") from error
    seconds = time.monotonic() - start
    if logits.shape[0] != len(rows):
        raise ModelOutputError(f"{_name(dataset, rows, number)}: {logits.shape[0]} answers for {len(rows)} texts.")
    return Predictions.from_logits(rows, dataset.labels[rows], logits.numpy()), seconds


def _name(dataset: TokenizedDataset, rows: np.ndarray, number: int) -> str:
    named = ", ".join(map(str, rows[:_ROWS_NAMED])) + (", ..." if len(rows) > _ROWS_NAMED else "")
    return f"Batch {number} ({dataset.facts.source}, rows {named})"
