"""Synthetic requests for measurements that do not depend on the text: batches of random tokens."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

import torch

from dist_eval.inference.window import Window
from dist_eval.model.checkpoint import TunedCheckpoint

Batch = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class Load:
    """The totals of a series of requests.

    Attributes:
        seconds: time from the first request to the last answer.
        examples: number of classified texts.
        tokens: number of tokens sent, including prompts.
    """

    seconds: float
    examples: int
    tokens: int


def random_checkpoint(config: Any, prompt_tokens: int) -> TunedCheckpoint:
    """Builds random deep prompts and a head with two labels for a base model."""
    generator = torch.Generator().manual_seed(0)
    hidden, layers = config.hidden_size, config.num_hidden_layers
    return TunedCheckpoint(
        head=0.02 * torch.randn(2, hidden, generator=generator),
        prompts=0.02 * torch.randn(prompt_tokens, hidden, generator=generator) if prompt_tokens else None,
        deep_prompts=0.02 * torch.randn(layers, prompt_tokens, hidden, generator=generator) if prompt_tokens else None,
        label_names=["0", "1"],
        architecture={key: getattr(config, key) for key in ("model_type", "hidden_size", "num_hidden_layers")},
    )


def random_batches(count: int, *, budget: int, length: int, prompt_tokens: int, vocabulary: int) -> list[Batch]:
    """Builds batches of random token ids that fill a token budget.

    Args:
        count: number of batches.
        budget: maximum number of tokens in a batch, including prompts.
        length: tokens of a text.
        prompt_tokens: tokens before each text.
        vocabulary: size of the vocabulary.
    """
    generator = torch.Generator().manual_seed(1)
    rows = max(1, budget // (length + prompt_tokens))
    lengths = torch.full((rows,), length)
    return [(torch.randint(0, vocabulary, (rows, length), generator=generator), lengths) for _ in range(count)]


def drive(
    classify: Callable[[torch.Tensor, torch.Tensor], Any],
    batches: Sequence[Batch],
    window: Window,
    *,
    prompt_tokens: int,
    retries: Callable[[], int] = lambda: 0,
    seconds: float = float("inf"),
) -> Load:
    """Sends batches with a limited number in flight.

    Args:
        classify: sends one batch and waits for its answer.
        batches: the batches to send.
        window: limits the number in flight.
        prompt_tokens: tokens before each text.
        retries: returns the number of retries so far.
        seconds: time after which no further batch is sent.
    """
    start, waiting, examples, tokens = time.monotonic(), list(reversed(batches)), 0, 0
    in_flight: dict[Future[float], Batch] = {}

    def one(batch: Batch) -> float:
        sent = time.monotonic()
        classify(*batch)
        return time.monotonic() - sent

    with ThreadPoolExecutor(window.largest) as pool:
        while True:
            while waiting and len(in_flight) < window.size and time.monotonic() - start < seconds:
                batch = waiting.pop()
                in_flight[pool.submit(one, batch)] = batch
            if not in_flight:
                return Load(time.monotonic() - start, examples, tokens)
            for future in wait(in_flight, return_when=FIRST_COMPLETED).done:
                ids, _ = in_flight.pop(future)
                window.finished(future.result(), retries())
                examples += ids.shape[0]
                tokens += ids.shape[0] * (ids.shape[1] + prompt_tokens)
