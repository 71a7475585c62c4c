"""Updates of the tuned tensors: each rank's gradients, their sum over the ranks, and one step of AdamW.

Every rank takes its part of the same global batch, and gradients are summed over examples before the division by their
number. So N ranks make the same updates as one process, up to rounding, and the tensors are bit-identical on all ranks.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from dist_eval.data.dataset import TokenizedDataset
from dist_eval.data.plan import plan_batches
from dist_eval.distributed.collectives import all_reduce_sum
from dist_eval.distributed.rank_store import Topology
from dist_eval.errors import EvaluationError, ModelOutputError, with_place
from dist_eval.inference.in_flight import Window, map_in_flight
from dist_eval.model.classifier import Classifier
from dist_eval.options.tuning import LearningOptions
from dist_eval.petals.model.checkpoint import ARCHITECTURE, TunedCheckpoint

# most scales of the loss for an update, each half of the one before; beyond it, the scale is not the cause
_MOST_SCALES = 20

_SPREAD = 0.02
_DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16}


def empty_checkpoint(
    options: LearningOptions, base: Any, label_names: list[str], *, base_model: str | None, adapter: str | None = None
) -> TunedCheckpoint:
    """Creates a checkpoint of zeros, with the shapes of the tensors to tune."""
    length, hidden, layers = options.pre_seq_len, base.hidden_size, base.num_hidden_layers
    return TunedCheckpoint(
        head=torch.zeros(len(label_names), hidden),
        prompts=torch.zeros(length, hidden),
        deep_prompts=torch.zeros(layers, length, hidden) if options.tuning_mode == "deep_ptune" else None,
        label_names=label_names,
        architecture={name: getattr(base, name) for name in ARCHITECTURE},
        base_model=base_model,
        adapter=adapter,
    )


def initial_parameters(empty: TunedCheckpoint, words: torch.Tensor, seed: int) -> TunedCheckpoint:
    """Fills a checkpoint with the initial values, equal on all ranks.

    Prompts start as embeddings of random words (Lester et al., 2021, "The power of scale for parameter-efficient prompt
    tuning"), deep prompts at zero, the head with small random values.
    """
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(len(words), (empty.pre_seq_len,), generator=generator)
    return replace(
        empty,
        head=_SPREAD * torch.randn(empty.head.shape, generator=generator),
        prompts=words.detach().to("cpu", torch.float32)[drawn].clone(),
    )


def snapshot(tuned: TunedCheckpoint) -> TunedCheckpoint:
    """Returns copies of the current tuned tensors, in float32 on the CPU."""
    tensors = _tensors_of(tuned).items()
    return replace(tuned, **{name: tensor.detach().to("cpu", torch.float32, copy=True) for name, tensor in tensors})


def _tensors_of(tuned: TunedCheckpoint) -> dict[str, Any]:
    tensors = {"head": tuned.head, "prompts": tuned.prompts, "deep_prompts": tuned.deep_prompts}
    return {name: tensor for name, tensor in tensors.items() if tensor is not None}


def global_batches(examples: int, size: int, *, seed: int, epoch: int) -> list[np.ndarray]:
    """Divides all examples of an epoch into global batches, shuffled differently in each epoch."""
    order = np.random.default_rng([seed, epoch]).permutation(examples)
    return [order[start : start + size] for start in range(0, examples, size)]


@dataclass(frozen=True)
class Update:
    """The result of an update."""

    loss_sum: float  # sum of its examples' losses before the update, in nats, on all ranks
    examples: int  # number of its examples, on all ranks
    is_applied: bool  # whether the tensors have changed; if not, the run is stopping, and the same rows come again
    is_last: bool  # whether a stop was requested; equal on all ranks


def precision_of(precision: str, device: torch.device) -> str:
    """Returns the precision of local computation on a device, by the option `--precision`."""
    if precision != "auto":
        return precision
    return "float16" if device.type == "cuda" else "float32"


class Trainer:
    """Updates the tuned tensors."""

    def __init__(
        self,
        options: LearningOptions,
        classifier: Classifier,
        data: TokenizedDataset,
        topology: Topology,
        *,
        updates: int,
        token_budget: int,
        window: Window,
        device: torch.device,
    ) -> None:
        from transformers import get_linear_schedule_with_warmup

        self._named = {
            name: tensor.detach().to(device).clone().requires_grad_()
            for name, tensor in _tensors_of(classifier.tuned).items()
        }
        self._size = sum(tensor.numel() for tensor in self._named.values())
        classifier.backbone.move(device)
        self.tuned = replace(classifier.tuned, **self._named)
        self._classifier = Classifier(classifier.backbone, self.tuned)
        self._data, self._topology, self._token_budget, self._window = data, topology, token_budget, window
        self._max_norm, self._device = options.max_grad_norm, device
        self.precision = precision_of(options.precision, device)
        self._dtype = _DTYPES.get(self.precision)
        self._optimizer = torch.optim.AdamW(
            self._named.values(), lr=options.learning_rate, weight_decay=options.weight_decay
        )
        self._schedule = get_linear_schedule_with_warmup(self._optimizer, round(options.warmup * updates), updates)
        self._scaler = torch.amp.GradScaler(device.type, enabled=self._dtype == torch.float16)
        self._overflow: ModelOutputError | None = None  # of the last part whose values were not finite

    @property
    def learning_rate(self) -> float:
        return float(self._optimizer.param_groups[0]["lr"])

    def update(self, rows: np.ndarray, stopping: Callable[[], bool] = lambda: False) -> Update:
        """Performs one update; every rank calls it with the same rows."""
        self._overflow = None
        mine = rows[self._topology.rank :: self._topology.world_size]
        for _ in range(_MOST_SCALES if self._scaler.is_enabled() else 1):
            gradient, loss_sum = self._gradient(mine)
            facts = torch.tensor([loss_sum, len(mine), float(stopping())], dtype=torch.float64)
            *_, loss_sum, examples, stops = (total := all_reduce_sum(torch.cat([gradient, facts])))[-3:].tolist()
            is_applied = self._apply(total[:-3] / examples)
            if is_applied or stops > 0:
                return Update(loss_sum, int(examples), is_applied, stops > 0)
        why = f" ({str(self._overflow).rstrip('.')})" if self._overflow else ""
        raise ModelOutputError(
            f"The gradient contains values that are not finite{why}: try a lower --learning-rate"
            + (", or --precision float32." if self._dtype else ".")
        )

    def _gradient(self, rows: np.ndarray) -> tuple[torch.Tensor, float]:
        """Returns gradients summed over examples, float64 of shape [all tuned values], and the sum of the losses."""
        plan = plan_batches(
            np.asarray(self._data.lengths)[rows], token_budget=self._token_budget, extra_tokens=self.tuned.pre_seq_len
        )
        parts = enumerate(rows[plan.batch(number)] for number in range(len(plan)))
        answers = map_in_flight(self._answer, parts, self._window, retries=lambda: self._classifier.retries)
        total, loss_sum = torch.zeros(self._size, dtype=torch.float64), 0.0
        early, added = dict[int, tuple[torch.Tensor, float]](), 0
        for number, gradient, loss in answers:
            early[number] = gradient, loss
            while added in early:  # in the order of the parts, on which sums depend
                gradient, loss = early.pop(added)
                total, loss_sum, added = total.add_(gradient), loss_sum + loss, added + 1
        return total, loss_sum

    def _answer(self, part: tuple[int, np.ndarray]) -> tuple[int, torch.Tensor, float]:
        """Computes the gradients of a part of a batch: forward and backward."""
        number, rows = part
        input_ids, lengths = map(torch.from_numpy, self._data.padded(rows))
        labels = torch.from_numpy(np.asarray(self._data.labels)[rows]).to(self._device)
        place = f"{self._data.facts.source}, rows {', '.join(map(str, rows[:5]))}" + ", ..." * (len(rows) > 5)
        try:
            with torch.autocast(self._device.type, self._dtype, enabled=self._dtype is not None):
                scores = self._classifier.scores(input_ids, lengths)
            losses = cross_entropy(scores.float(), labels, reduction="sum")
            gradients = torch.autograd.grad(self._scaler.scale(losses), list(self._named.values()))
        except ModelOutputError as error:
            if not self._scaler.is_enabled():
                raise with_place(error, place) from error
            self._overflow = with_place(error, place)
            return number, torch.full((self._size,), torch.inf, dtype=torch.float64), math.nan
        except EvaluationError as error:
            raise with_place(error, place) from error
        flat = torch.cat([gradient.detach().to("cpu", torch.float64).flatten() for gradient in gradients])
        return number, flat, float(losses.detach())

    def _apply(self, gradient: torch.Tensor) -> bool:
        """Makes a step; returns False, with a smaller scale and nothing else changed, if the gradient is not finite."""
        start, is_finite = 0, bool(torch.isfinite(gradient).all())
        if not is_finite and not self._scaler.is_enabled():
            return False
        for tensor in self._named.values():
            tensor.grad = gradient[start : start + tensor.numel()].view(tensor.shape).to(tensor)
            start += tensor.numel()
        self._scaler.unscale_(self._optimizer)
        if self._max_norm:
            torch.nn.utils.clip_grad_norm_(self._named.values(), self._max_norm)
        self._scaler.step(self._optimizer)
        self._scaler.update()
        if is_finite:  # otherwise the scaler has skipped the step
            self._schedule.step()
        self._optimizer.zero_grad()
        return is_finite

    def state(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """Returns everything that later updates depend on: tensors by name, and other values, serializable as JSON."""
        optimizer = self._optimizer.state_dict()
        moments = {
            f"optimizer.{number}.{name}": value
            for number, values in optimizer["state"].items()
            for name, value in values.items()
        }
        rest = {
            "groups": optimizer["param_groups"],
            "schedule": self._schedule.state_dict(),
            "scaler": self._scaler.state_dict(),
        }
        return {**{name: tensor.detach() for name, tensor in self._named.items()}, **moments}, rest

    def restore(self, tensors: dict[str, torch.Tensor], rest: dict[str, Any]) -> None:
        moments: dict[int, dict[str, torch.Tensor]] = {}
        with torch.no_grad():
            for name, value in tensors.items():
                if name in self._named:
                    self._named[name].copy_(value)
                else:
                    _, number, moment = name.split(".")
                    moments.setdefault(int(number), {})[moment] = value
        self._optimizer.load_state_dict({"state": moments, "param_groups": rest["groups"]})
        self._schedule.load_state_dict(rest["schedule"])
        self._scaler.load_state_dict(rest["scaler"])
