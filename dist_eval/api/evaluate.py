"""The usual evaluation loop as one call: `evaluate(model, eval_dataloader)`.

It avoids the usual mistakes of hand-written loops: each example counts once on any number of ranks, metrics are
computed over all examples instead of averaged over batches or ranks, and the model's mode is restored. For a model on a
swarm, several batches are in flight.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from typing import Any, TypeVar, cast

import numpy as np
import torch
from torch import nn

from dist_eval.api.in_flight import outputs_in_flight
from dist_eval.api.loaders import LoaderShard, shard_loader
from dist_eval.distributed.collectives import all_gather, group_of_program, require_agreement
from dist_eval.distributed.rank_store import Topology
from dist_eval.errors import DataError, ModelOutputError, RunError, error_summary
from dist_eval.evaluation.scoring import Gathered, gather, score
from dist_eval.metrics.predictions import Predictions
from dist_eval.model.user_model import evaluation_mode, fingerprint_of, logits_of, names_taken, without_wrapper

Result = TypeVar("Result")

_SHORT_NAMES = ("precision", "recall", "f1")


def evaluate(
    model: nn.Module,
    eval_dataloader: Iterable[Mapping[str, Any]],
    device: str | torch.device = "cpu",
    *,
    return_predictions: bool = False,
) -> dict[str, Any]:
    """Evaluates a classifier on all batches of a DataLoader, on one process or under torchrun.

    Under torchrun every rank calls it and gets the same result. The batches of a plain DataLoader are divided among the
    ranks; one with a `DistributedSampler` keeps its shards, and its repeats count once. The program's process group is
    used if there is one; otherwise a group is opened for the call. Not thread-safe.

    Args:
        model: a classifier on a swarm (see `AutoDistributedModelForSequenceClassification`), for which several batches
            are in flight; a Hugging Face classifier; or any module whose output has `logits` of shape [batch,
            num_labels]. Its mode (`train`, `eval`) and the grad mode are restored, even after an error.
        eval_dataloader: yields mappings of names to tensors: `labels`, int64 of shape [batch], and arguments of the
            model's `forward`, such as `input_ids` and `attention_mask` of shape [batch, length]. Other entries, such as
            the texts themselves, are ignored. Every rank passes the same data, which `evaluate` shards.
        device: device that the batches are moved to.
        return_predictions: whether to add the predicted classes in dataset order.

    Returns:
        `accuracy`, `loss` (mean cross-entropy in nats), `precision`, `recall` and `f1` (weighted by the classes'
        examples; also as `f1_weighted`, `f1_macro`, `f1_micro` and so on), and the other metrics of
        `dist_eval.compute_metrics`, as floats (NaN if undefined for these data); `examples`, the number of examples;
        with `return_predictions`, `predictions`, int64 of shape [examples].

    Raises:
        ConfigError: the DataLoader leaves examples out or repeats them, or its batches lack labels; or the model is
            sharded over the ranks.
        DataError: a label is not one of the model's classes.
        ExactnessError: ranks have different models or data, or the examples were not covered exactly once.
        ModelOutputError: the logits are not finite or have a wrong shape.
        SwarmError: a swarm did not answer.
        RunError: another rank failed.

    Examples:
        >>> class Sign(torch.nn.Module):
        ...     def forward(self, x):
        ...         return {"logits": torch.stack([-x, x], dim=1)}
        >>> batches = [{"x": torch.tensor([1.0, -2.0]), "labels": torch.tensor([1, 0])}]
        >>> result = evaluate(Sign(), [*batches, {"x": torch.tensor([3.0]), "labels": torch.tensor([0])}])
        >>> print(f"{result['accuracy']:.4f} of {result['examples']}")
        0.6667 of 3
    """
    model = without_wrapper(model)
    with group_of_program() as topology, evaluation_mode(model):
        require_agreement({"model": fingerprint_of(model)})
        shard = shard_loader(eval_dataloader, rank=topology.rank, world_size=topology.world_size, gather=all_gather)
        local = raise_on_all_ranks(lambda: _predictions(model, shard, torch.device(device), topology))
        width = max(all_gather(0 if local is None else local.num_labels))
        count = shard.count()
        if not count:
            raise DataError("The eval_dataloader yields no examples.")
        local = local or Predictions.empty(width)
        gathered = gather(local)
        result = raise_on_all_ranks(lambda: _metrics(gathered, count) if topology.is_leader else {})
        if topology.is_leader and return_predictions:
            result["predictions"] = gathered.predictions.prediction
        return dict(all_gather(result)[0])


def raise_on_all_ranks(action: Callable[[], Result]) -> Result:
    """Runs an action on all ranks; if it fails on one, it raises on all, so that the others do not wait forever."""
    result, failure = None, None
    try:
        result = action()
    except Exception as error:  # any error must reach the other ranks
        failure = error
    failures = all_gather(failure and error_summary(failure))
    if failure is not None:
        try:
            raise failure
        finally:
            del failure  # its traceback keeps the action's resources alive, such as a loader's processes
    for rank, text in enumerate(failures):
        if text:
            raise RunError(f"Rank {rank} failed: {text}")
    return cast(Result, result)


def _predictions(model: nn.Module, shard: LoaderShard, device: torch.device, topology: Topology) -> Predictions | None:
    """Predicts this rank's shard; None if it is empty."""
    takes = names_taken(model)

    def call(_: Any, inputs: Mapping[str, Any]) -> torch.Tensor:
        moved = {k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in inputs.items()}
        return logits_of(model(**moved))

    def inputs_of(batch: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in batch.items() if name != "labels" and takes(name, value)}

    batches = (((positions, torch.as_tensor(batch["labels"])), inputs_of(batch)) for positions, batch in shard.batches)
    answers = outputs_in_flight(model, call, batches, topology, named=lambda key: _named(key[0]))
    with closing(answers):
        parts = [_part(*key, logits) for key, logits in answers]
    return Predictions.concatenate(parts) if parts else None


def _named(positions: np.ndarray) -> str:
    """Names the examples of a batch for a message, without repeats."""
    real = positions[positions >= 0]
    if not len(real):
        return "A batch of repeats"
    return f"Example {real[0]}" if len(real) == 1 else f"Examples {real.min()} to {real.max()}"


def _part(positions: np.ndarray, labels: torch.Tensor, logits: torch.Tensor) -> Predictions:
    """Validates a batch's answer and drops repeated examples."""
    if logits.ndim != 2 or len(logits) != len(positions):
        raise ModelOutputError(
            f"The model's logits have shape {list(logits.shape)} instead of [{len(positions)}, num_labels]."
            + (" Evaluate a language model with dist_eval.run(prompt=...) or run_tasks." if logits.ndim > 2 else "")
        )
    if logits.shape[1] < 2:
        raise DataError("The model has a single output, as for a regression; evaluate takes classifiers of one label.")
    if labels.is_floating_point() or labels.ndim != 1:
        raise DataError(
            f"The labels of a batch are {labels.dtype} of shape {list(labels.shape)}, instead of a class number for "
            "each example."
        )
    if len(labels) != len(logits):
        raise DataError(f"A batch has {len(labels)} labels for {len(logits)} examples.")
    kept = positions >= 0
    positions = positions[kept]
    numbers, values = labels.cpu().numpy()[kept], logits.to("cpu", torch.float32).numpy()[kept]
    is_unknown = (numbers < 0) | (numbers >= values.shape[1])
    is_infinite = ~np.isfinite(values).all(axis=1)
    for is_bad, error, what in (
        (is_unknown, DataError, f"is outside the {values.shape[1]} classes"),
        (is_infinite, ModelOutputError, "has logits that are not finite"),
    ):
        if is_bad.any():
            row = int(is_bad.argmax())
            raise error(f"Example {positions[row]} of the eval_dataloader, label {numbers[row]}, {what}.")
    return Predictions.from_logits(positions, numbers, values)


def _metrics(gathered: Gathered, count: int) -> dict[str, Any]:
    """Computes the result; called on the leader."""
    names = [f"LABEL_{number}" for number in range(gathered.predictions.num_labels)]
    _, metrics = score(gathered, count, names)
    values = {name: math.nan if value is None else value for name, value in metrics.values.items()}
    return {"examples": count, **values, **{name: values[f"{name}_weighted"] for name in _SHORT_NAMES}}
