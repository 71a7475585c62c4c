"""Petals' own forward: batches of random tokens after deep prompts, with a number of them in flight."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.alternatives.common import main
from benchmarks.load import Batch, drive, random_batches
from dist_eval.api.petals_classifier import open_petals_classifier
from dist_eval.inference.window import Window


@dataclass(frozen=True)
class Spec:
    """What is sent, and where.

    Attributes:
        model: folder of the base model.
        checkpoint: folder of the tuned checkpoint.
        initial_peers: addresses of the swarm.
        dht_prefix: name under which the swarm announces the model.
        batches: number of batches.
        budget: tokens of a batch at most, with prompts.
        length: tokens of a text.
        in_flight: batches at a time.
    """

    model: str
    checkpoint: str
    initial_peers: list[str]
    dht_prefix: str
    batches: int
    budget: int
    length: int
    in_flight: int


@dataclass(frozen=True)
class Result:
    """What was found.

    Attributes:
        seconds: from the first request to the last answer.
        tokens: number of tokens sent, with prompts.
    """

    seconds: float
    tokens: int


def evaluate(spec: Spec, scratch_dir: Path) -> Result:
    """Sends the batches."""
    with open_petals_classifier(
        spec.model, spec.initial_peers, checkpoint=spec.checkpoint, dht_prefix=spec.dht_prefix
    ) as model:
        prompts = model.config.pre_seq_len
        batches: list[Batch] = random_batches(
            spec.batches,
            budget=spec.budget,
            length=spec.length,
            prompt_tokens=prompts,
            vocabulary=model.config.vocab_size,
        )

        @torch.no_grad()  # of a thread
        def forward(ids: torch.Tensor, lengths: torch.Tensor) -> None:
            model.transformer(input_ids=ids)

        forward(*batches[0])  # Petals sets itself up
        load = drive(forward, batches, Window(spec.in_flight), prompt_tokens=prompts)
    return Result(load.seconds, load.tokens)


if __name__ == "__main__":
    main(evaluate, Spec)
