"""Made-up requests, for questions that have nothing to do with the text: batches of random tokens."""

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
    """What a run of requests did.

    Attributes:
        seconds: from the first request to the last answer.
        examples: texts that were classified.
        tokens: that were sent, prompts included.
    """

    seconds: float
    examples: int
    tokens: int


def random_checkpoint(config: Any, prompt_tokens: int) -> TunedCheckpoint:
    """Makes deep prompts and a head of two labels for any base model; they are random and of no other use."""
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
    """Makes batches of random token ids that fill a token budget.

    Args:
        count: number of batches.
        budget: tokens in a batch, prompts included.
        length: tokens of a text.
        prompt_tokens: tokens in front of each text.
        vocabulary: ids are below this.
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
    """Sends batches, a window of them at a time.

    Args:
        classify: sends one batch and waits for its answer.
        batches: all that may be sent.
        window: how many may be under way.
        prompt_tokens: tokens that go in front of each text.
        retries: requests repeated so far.
        seconds: after this time no further batch is sent.
    """
    start, waiting, examples, tokens = time.monotonic(), list(reversed(batches)), 0, 0
    under_way: dict[Future[float], Batch] = {}

    def one(batch: Batch) -> float:
        sent = time.monotonic()
        classify(*batch)
        return time.monotonic() - sent

    with ThreadPoolExecutor(window.largest) as pool:
        while True:
            while waiting and len(under_way) < window.size and time.monotonic() - start < seconds:
                batch = waiting.pop()
                under_way[pool.submit(one, batch)] = batch
            if not under_way:
                return Load(time.monotonic() - start, examples, tokens)
            for future in wait(under_way, return_when=FIRST_COMPLETED).done:
                ids, _ = under_way.pop(future)
                window.finished(future.result(), retries())
                examples += ids.shape[0]
                tokens += ids.shape[0] * (ids.shape[1] + prompt_tokens)
