"""The familiar evaluation loop as one call: `evaluate(model, eval_dataloader)`.

What people write by hand after each epoch, with the mistakes taken out: each example counts once on any number of
ranks, metrics are computed over all of them instead of averaged over batches or ranks, texts end where their mask says,
and the model is left as it was found. A model whose blocks a Petals swarm hosts is evaluated as `python -m dist_eval`
does it: a window of batches in flight, prompts once per request.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar, cast
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import nn

from dist_eval.backbone import SwarmBackbone
from dist_eval.collectives import all_gather, gather_predictions, group_of_program, sum_over_ranks
from dist_eval.errors import ConfigError, DataError, ModelOutputError, RunError, first_line
from dist_eval.in_flight import map_in_flight
from dist_eval.loaders import LoaderShard, shard_loader
from dist_eval.metrics import Totals, compute_metrics, require_same_totals
from dist_eval.model import Classifier, classifier_of, is_on_swarm
from dist_eval.predictions import Predictions, prove_coverage
from dist_eval.window import Window

if TYPE_CHECKING:
    from dist_eval.swarm.requests import SwarmRequests

Result = TypeVar("Result")

_requests: WeakKeyDictionary[nn.Module, SwarmRequests] = WeakKeyDictionary()
"""The way to each model's swarm, with what was learned about its servers."""


def evaluate(
    model: nn.Module,
    eval_dataloader: Iterable[Mapping[str, Any]],
    device: str | torch.device = "cpu",
    *,
    return_predictions: bool = False,
) -> dict[str, Any]:
    """Evaluates a classifier on all batches of a DataLoader, on one process or under torchrun.

    Under torchrun every rank calls it and gets the same result. A plain DataLoader is dealt out by batches; one with a
    `DistributedSampler` is taken as it is, and its repeats count once. It uses the program's process group if there is
    one, and one of its own for the time of the call otherwise.

    Args:
        model: a Petals `Distributed*ForSequenceClassification`, a Hugging Face classifier, or any module whose output
            has `logits` of shape [batch, num_labels]. Its mode (`train`, `eval`) and the grad mode are afterwards what
            they were, also after an error.
        eval_dataloader: yields mappings of names to tensors: `labels`, int64 of shape [batch], and what the model's
            `forward` takes, such as `input_ids` and `attention_mask` of shape [batch, length]. A model on Petals takes
            these two, padded on the right. What `forward` does not take, such as the texts themselves, stays out.
        device: where the batches are moved.
        return_predictions: add the predicted classes in dataset order.

    Returns:
        `accuracy`, `precision`, `recall` and `f1` (each with `_macro`, `_weighted` and `_micro`), `loss` (mean
        cross-entropy in nats) and the other metrics of `dist_eval.compute_metrics`, as floats (NaN where the data leave
        one undefined); `examples`, their number; with `return_predictions`, `predictions`, int64 of shape [examples].

    Raises:
        ConfigError: the DataLoader leaves examples out or repeats them, its batches lack labels, or the model is
            sharded over the ranks.
        DataError: a label is none of the model's classes, or a text is padded on the left, or masked inside.
        ModelOutputError: the logits are not finite or have a wrong shape.
        SwarmError: the swarm did not answer.
        RunError: another rank failed.
    """
    model = _without_wrapper(model)
    with group_of_program() as launch, evaluation_mode(model):
        shard = shard_loader(eval_dataloader, rank=launch.rank, world_size=launch.world_size, gather=all_gather)
        local = told_to_all(lambda: _predictions(model, shard, torch.device(device)))
        width = max(all_gather(0 if local is None else local.num_labels))
        count = shard.count()
        if not count:
            raise DataError("The eval_dataloader yields no example.")
        local = local or Predictions.empty(width)
        combined, totals = gather_predictions(local), sum_over_ranks(Totals.of(local))
        result = told_to_all(lambda: _figures(combined, totals, count) if launch.is_leader else {})
        if launch.is_leader and return_predictions:
            result["predictions"] = combined.prediction
        return dict(all_gather(result)[0])


def _without_wrapper(model: nn.Module) -> nn.Module:
    """Returns the model that `DistributedDataParallel` wraps: the wrapper waits for all ranks in each forward.

    Ranks have as many batches as fall to them, so they would wait for ever.

    Raises:
        ConfigError: the model is sharded (FSDP), and cannot do a forward without all ranks.
    """
    if isinstance(model, nn.parallel.DistributedDataParallel):
        return cast(nn.Module, model.module)
    if any(type(module).__name__.startswith(("FullyShardedDataParallel", "FSDP")) for module in model.modules()):
        raise ConfigError(
            "The model is sharded over the ranks (FSDP), which have different numbers of batches here. Give evaluate() "
            "a model that is whole on each rank."
        )
    return model


def told_to_all(action: Callable[[], Result]) -> Result:
    """Does something on all ranks; if it fails on one, it fails on all, instead of leaving the others waiting."""
    result, problem = None, None
    try:
        result = action()
    except Exception as error:  # whatever it is
        problem = error
    problems = all_gather(problem and f"{type(problem).__name__}: {first_line(problem)}")
    if problem is not None:
        raise problem
    for rank, text in enumerate(problems):
        if text:
            raise RunError(f"Rank {rank} failed: {text}")
    return cast(Result, result)


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Within this context a model is in eval mode and records no gradients; afterwards every part is as it was."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, mode in modes:
            module.training = mode


def _predictions(model: nn.Module, shard: LoaderShard, device: torch.device) -> Predictions | None:
    """Predicts this rank's share; None if it is empty."""
    answers = _from_swarm(model, shard) if is_on_swarm(model) else _from_module(model, shard, device)
    parts = [_part(positions, labels, logits) for positions, labels, logits in answers]
    return Predictions.concatenate(parts) if parts else None


Answer = tuple[np.ndarray, torch.Tensor, torch.Tensor]
"""Positions, labels and logits of a batch."""


def _from_module(model: nn.Module, shard: LoaderShard, device: torch.device) -> Iterator[Answer]:
    takes = _names_taken(model)
    for positions, batch in shard.batches:
        inputs = {name: value for name, value in batch.items() if name != "labels" and takes(name)}
        outputs = model(**{k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in inputs.items()})
        logits = outputs["logits"] if isinstance(outputs, Mapping) else getattr(outputs, "logits", None)
        if not isinstance(logits, torch.Tensor):
            raise ModelOutputError(f"The model's output is a {type(outputs).__name__} without logits.")
        yield positions, torch.as_tensor(batch["labels"]), logits


def _names_taken(model: nn.Module) -> Callable[[str], bool]:
    """Returns what tells whether a model's `forward` takes an argument of some name."""
    parameters = inspect.signature(model.forward).parameters
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    return lambda name: takes_any or name in parameters


def classifier_on_swarm(model: nn.Module) -> Classifier:
    """Makes a classifier of a Petals model as it is now, which knows what earlier ones learned about its servers."""
    classifier = classifier_of(model, _requests.get(model))
    _requests[model] = cast(SwarmBackbone, classifier.backbone).requests
    return classifier


def _from_swarm(model: nn.Module, shard: LoaderShard) -> Iterator[Answer]:
    classifier = classifier_on_swarm(model)

    def answer(item: tuple[np.ndarray, Any]) -> Answer:
        positions, batch = item
        input_ids, lengths = texts_of(positions, batch)
        return positions, torch.as_tensor(batch["labels"]), classifier.logits(input_ids, lengths)

    yield from map_in_flight(answer, shard.batches, Window(), retries=lambda: classifier.retries)


def texts_of(positions: np.ndarray, batch: Mapping[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns token ids without columns of padding only, and the length of each text."""
    for name in ("inputs_embeds", "position_ids"):
        if batch.get(name) is not None:
            raise DataError(f"A batch of the eval_dataloader has {name!r}, which a model on Petals cannot take.")
    if batch.get("input_ids") is None:
        raise DataError(f"A batch of the eval_dataloader has no 'input_ids', only {', '.join(map(str, batch))}.")
    input_ids = batch["input_ids"].to("cpu", torch.int64)
    mask = batch.get("attention_mask")
    if mask is None:
        return input_ids, torch.full((len(input_ids),), input_ids.shape[1])
    mask = mask.to("cpu", torch.bool)
    lengths = mask.sum(dim=1)
    is_right = (mask == (torch.arange(mask.shape[1]) < lengths[:, None])).all(dim=1) & (lengths > 0)
    if not is_right.all():
        row = int((~is_right).nonzero()[0])
        what = "has no token" if not lengths[row] else "is padded on the left, or masked inside"
        raise DataError(
            f"Example {positions[row]} of the eval_dataloader {what}. Models on Petals take no mask, so padding has to "
            "stand on the right: set tokenizer.padding_side = 'right'."
        )
    return input_ids[:, : int(lengths.max())], lengths


def _part(positions: np.ndarray, labels: torch.Tensor, logits: torch.Tensor) -> Predictions:
    """Checks a batch's answer and leaves repeats out."""
    if logits.ndim != 2 or len(logits) != len(positions):
        raise ModelOutputError(
            f"The model's logits have shape {list(logits.shape)} instead of [{len(positions)}, num_labels]."
        )
    if labels.is_floating_point() or labels.ndim != 1:
        raise DataError(f"The labels of a batch are {labels.dtype} of shape {list(labels.shape)}, not class numbers.")
    numbers, values = labels.cpu().numpy(), logits.to("cpu", torch.float32).numpy()
    for is_bad, error, what in (
        (
            (numbers < 0) | (numbers >= values.shape[1]),
            DataError,
            f"has none of the {values.shape[1]} classes as label",
        ),
        (~np.isfinite(values).all(axis=1), ModelOutputError, "got logits that are not finite"),
    ):
        if is_bad.any():
            row = int(is_bad.argmax())
            raise error(f"Example {positions[row]} of the eval_dataloader, label {numbers[row]}, {what}.")
    kept = positions >= 0
    return Predictions.from_logits(positions[kept], numbers[kept], values[kept])


def _figures(combined: Predictions, totals: Totals, count: int) -> dict[str, Any]:
    """Proves that each example counts once, and computes the result on the leader."""
    prove_coverage(combined.index, count)
    require_same_totals(totals, Totals.of(combined))
    names = [f"LABEL_{number}" for number in range(combined.num_labels)]
    values = compute_metrics(combined, names).values
    return {"examples": count, **{name: math.nan if value is None else value for name, value in values.items()}}
