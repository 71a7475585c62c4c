"""`eval_batch` on a swarm, with the semantics of DeepSpeed's `PipelineEngine`, forward only.

The servers of a swarm are the stages, and the ranks are data-parallel replicas of the whole pipeline. Known defects of
DeepSpeed are corrected: averages are weighted by samples, so a smaller last micro-batch has the weight of its examples;
logits are returned for all micro-batches, in order; and the module's mode is restored, even after an error.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any, cast

import torch
from torch import nn

from dist_eval.api.evaluate import raise_on_all_ranks
from dist_eval.api.in_flight import outputs_in_flight
from dist_eval.distributed.collectives import all_gather, group_of_program
from dist_eval.distributed.rank_store import Topology
from dist_eval.errors import ConfigError, DataError
from dist_eval.model.user_model import evaluation_mode, logits_of, without_wrapper
from dist_eval.petals.model.model import SwarmModel

LossFunction = Callable[[Any, Any], Any]
Tensors = torch.Tensor | tuple[torch.Tensor, ...]


class PetalsPipeline:
    """A model hosted on a swarm, evaluated with several micro-batches in its stages at the same time.

    Args:
        model: a classifier on a swarm (see `AutoDistributedModelForSequenceClassification`), for which several
            micro-batches are in flight; or any module that takes a micro-batch's inputs.
        loss_fn: called with a micro-batch's outputs and labels; returns the mean loss, a scalar tensor, or a list of
            several. Without it the outputs are the loss.
        micro_batches: default number of micro-batches that `eval_batch` takes from an iterator.
        in_flight: number of requests in flight on a swarm; by default adaptive. Requests of a classifier contain texts
            of several micro-batches.
    """

    def __init__(
        self,
        model: nn.Module,
        loss_fn: LossFunction | None = None,
        *,
        micro_batches: int = 1,
        in_flight: int | None = None,
    ) -> None:
        if micro_batches < 1:
            raise ConfigError(f"micro_batches must be at least 1, not {micro_batches}.")
        self.module, self.loss_fn, self.micro_batches = model, loss_fn, micro_batches
        self._in_flight = in_flight

    def eval_batch(
        self,
        data_iter: Iterator[Any],
        return_logits: bool = False,
        compute_loss: bool = True,
        reduce_output: str | None = "avg",
        bcast_loss: bool = True,
        num_micro_batches: int | None = None,
    ) -> Any:
        """Evaluates the next micro-batches of an iterator; every rank calls it, with its own data.

        Args:
            data_iter: yields pairs of inputs and labels, or mappings with `labels`. Inputs are `input_ids`, int64 of
                shape [batch, length], alone, followed by an `attention_mask` of the same shape, or in a mapping.
                Micro-batches may differ in size.
            return_logits: whether to also return the outputs.
            compute_loss: whether to apply `loss_fn`; otherwise the outputs are reduced in place of a loss.
            reduce_output: "avg" for the mean over all samples of all micro-batches and ranks; None for the loss of each
                micro-batch of this rank, in order.
            bcast_loss: accepted for compatibility and ignored: each rank has the whole pipeline, so no last stage must
                broadcast the loss.
            num_micro_batches: number of micro-batches to take; by default `micro_batches`. If the iterator ends
                earlier, all that it yielded are evaluated.

        Returns:
            The reduced loss, a tensor, or a list if `loss_fn` returns several; with `return_logits`, a pair of the loss
            and this rank's outputs, of shape [samples, ...] in the order of the iterator (a tuple if there are several,
            None if this rank had no micro-batch).

        Raises:
            StopIteration: the iterators of all ranks are exhausted.
            ConfigError: an argument has an invalid value, or outputs to be averaged have different shapes.
            DataError: a micro-batch is neither a pair nor a mapping.
            ModelOutputError: a named output has no logits.
            SwarmError: a swarm did not answer.
            RunError: another rank failed.
        """
        count = self.micro_batches if num_micro_batches is None else num_micro_batches
        if (reduce_output is not None and reduce_output.lower() != "avg") or count < 1:
            raise ConfigError(
                f"eval_batch reduces by 'avg' or None, not {reduce_output!r}, and takes at least one micro-batch, not "
                f"{count}."
            )
        if not hasattr(data_iter, "__next__"):
            raise ConfigError(
                f"eval_batch takes an iterator, not a {type(data_iter).__name__}, whose first micro-batches every call "
                "would take. Pass iter(...) of it."
            )
        model = without_wrapper(self.module)
        with group_of_program() as topology, evaluation_mode(model):
            all_gather(None)  # a barrier: no rank starts before the others have finished
            taken = raise_on_all_ranks(lambda: self._forward(model, itertools.islice(data_iter, count), topology))
            losses = raise_on_all_ranks(lambda: [self._loss(*pair) if compute_loss else pair[0] for pair in taken])
            samples = raise_on_all_ranks(lambda: [_rows(labels) for _, labels in taken])
            everybody = all_gather((_on_cpu(losses), samples)) if reduce_output else [(losses, samples)]
            ended = all(not rows for rows in all_gather(samples))
        if ended:
            raise StopIteration("no rank has another micro-batch")
        reduced = _average(everybody) if reduce_output else losses
        return (reduced, _joined([outputs for outputs, _ in taken])) if return_logits else reduced

    def _loss(self, outputs: Tensors, labels: Any) -> Any:
        if self.loss_fn is None:
            return outputs
        loss = self.loss_fn(outputs, labels)
        return torch.as_tensor(loss) if isinstance(loss, (int, float)) else loss

    def _forward(self, model: nn.Module, micro_batches: Iterable[Any], topology: Topology) -> list[tuple[Tensors, Any]]:
        """Returns outputs and labels of each micro-batch, in order."""

        def call(_: Any, inputs: Any) -> Tensors:
            return _outputs(model, inputs)

        name = _named if isinstance(model, SwarmModel) else lambda inputs: inputs
        numbered = (
            ((number, labels), name(inputs)) for number, (inputs, labels) in enumerate(map(_pair, micro_batches))
        )
        answers = outputs_in_flight(
            *(model, call, numbered, topology), named=lambda key: f"Micro-batch {key[0]}", in_flight=self._in_flight
        )
        with closing(answers):
            found = sorted(answers, key=lambda answer: answer[0][0])
        return [(outputs, labels) for (_, labels), outputs in found]


def _named(inputs: Any) -> Mapping[str, Any]:
    """Names positional inputs, because families order them differently."""
    if isinstance(inputs, Mapping):
        return inputs
    values = _as_tuple(inputs)
    if len(values) > 2:
        raise DataError(
            f"A micro-batch has {len(values)} inputs. A model on a swarm takes input_ids, alone or followed by an "
            "attention_mask; others need names, in a mapping."
        )
    return dict(zip(("input_ids", "attention_mask"), values, strict=False))


def _on_cpu(losses: Sequence[Any]) -> list[Any]:
    return [
        loss.cpu() if isinstance(loss, torch.Tensor) else [part.cpu() for part in _as_tuple(loss)] for loss in losses
    ]


def _pair(micro_batch: Any) -> tuple[Any, Any]:
    if isinstance(micro_batch, Mapping) and "labels" in micro_batch:
        return {name: value for name, value in micro_batch.items() if name != "labels"}, micro_batch["labels"]
    if isinstance(micro_batch, (tuple, list)) and len(micro_batch) == 2:
        return micro_batch[0], micro_batch[1]
    raise DataError(
        "eval_batch takes pairs of inputs and labels, or mappings with 'labels', but a "
        f"{type(micro_batch).__name__} came."
    )


def _outputs(module: nn.Module, inputs: Any) -> Tensors:
    outputs = module(**inputs) if isinstance(inputs, Mapping) else module(*_as_tuple(inputs))
    if isinstance(outputs, Mapping) or hasattr(outputs, "logits"):
        return logits_of(outputs)
    return tuple(outputs) if isinstance(outputs, list) else outputs


def _as_tuple(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


def _rows(labels: Any) -> int:
    first = next(iter(labels.values())) if isinstance(labels, Mapping) else _as_tuple(labels)[0]
    if not isinstance(first, torch.Tensor) or not first.ndim:
        raise DataError(
            "The labels of a micro-batch must be a tensor with one row per sample, or several such tensors."
        )
    return len(first)


def _average(everybody: Sequence[tuple[Sequence[Any], Sequence[int]]]) -> Any:
    of_batches = [batch for losses, counts in everybody for batch in zip(losses, counts, strict=True)]
    # the mean loss of an empty micro-batch is not a number
    losses, rows = zip(*([batch for batch in of_batches if batch[1]] or of_batches), strict=True)
    is_one = isinstance(losses[0], torch.Tensor)
    columns = list(zip(*map(_as_tuple, losses), strict=True))
    for column in columns:
        shapes = sorted({str(list(loss.shape)) for loss in column})
        if len(shapes) > 1:
            raise ConfigError(f"Outputs of the shapes {', '.join(shapes)} cannot be averaged: set reduce_output=None.")
    means = [
        sum(loss.double() * count for loss, count in zip(column, rows, strict=True)) / sum(rows) for column in columns
    ]
    typed = [
        mean.to(column[0].dtype if column[0].is_floating_point() else torch.float32)
        for mean, column in zip(means, columns, strict=True)
    ]
    return typed[0] if is_one else typed


def _joined(outputs: Sequence[Tensors]) -> Any:
    """Concatenates the outputs of micro-batches; None if this rank had none."""
    if not outputs:
        return None
    if isinstance(outputs[0], torch.Tensor):
        return torch.cat(cast(list[torch.Tensor], outputs))
    return tuple(torch.cat(column) for column in zip(*outputs, strict=True))
