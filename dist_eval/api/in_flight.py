"""Sends a program's batches through its model, several requests at a time if the model is on a swarm.

For a classifier on a swarm, texts of many batches are planned together, as in a run. So requests have little padding,
and soft prompts are computed once, in sessions.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeGuard, TypeVar

import numpy as np
import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils._pytree import tree_leaves

from dist_eval.data.plan import BatchPlan
from dist_eval.data.shared_prefixes import plan_with_shared_prefixes
from dist_eval.distributed.rank_store import Topology
from dist_eval.errors import EvaluationError, with_place
from dist_eval.inference.forward import checked_answers
from dist_eval.inference.in_flight import map_in_flight, window_in_memory
from dist_eval.inference.models import SendOptions
from dist_eval.model.classifier import Classifier
from dist_eval.model.swarm_backbone import SwarmBackbone
from dist_eval.petals.base_model.config import session_tokens
from dist_eval.petals.model.base import MAX_REQUEST_TOKENS, SwarmBase
from dist_eval.petals.model.classes import SequenceClassifier
from dist_eval.petals.model.layers import is_overridden
from dist_eval.petals.model.tuned import tuned_tensors_of

Key = TypeVar("Key")
Outputs = Any

_PLANNED_TOKENS = 1 << 18  # tokens of texts that are planned together
_SESSION_SHARE = 0.5  # fraction of the servers' free attention cache


@dataclass(eq=False)
class _Batch(Generic[Key]):
    """A batch in flight."""

    key: Key
    outputs: Outputs  # outputs of the model, complete once nothing is left
    left: int = 0  # rows without an answer


_Ask = Callable[[], list[_Batch[Key]]]
"""Calls the model; returns the batches that are now complete."""


def outputs_in_flight(
    model: nn.Module,
    call: Callable[[Key, Any], Outputs],
    batches: Iterable[tuple[Key, Any]],
    topology: Topology,
    *,
    named: Callable[[Key], str],
    in_flight: int | None = None,
) -> Generator[tuple[Key, Outputs], None, None]:
    """Calls a model with each batch, without gradients.

    Args:
        model: the model.
        call: calls the model with a batch and returns its outputs: logits for a classifier.
        batches: keys, and the model's inputs: arguments by name, or tensors.
        topology: this process's place among the ranks.
        named: returns the name of a batch for messages, given its key.
        in_flight: maximum number of requests in flight; adaptive if not set.

    Yields:
        Key and outputs of each batch, in any order on a swarm.

    Raises:
        EvaluationError: a batch got no answer; the message names it.
    """

    @torch.no_grad()  # the grad mode is per thread
    def answer(key: Key, inputs: Any) -> list[_Batch[Key]]:
        with _naming(named, key):
            return [_Batch(key, call(key, inputs))]

    base = next((module for module in model.modules() if isinstance(module, SwarmBase)), None)
    left = iter(batches)
    first = next(left, None)
    if first is None:
        return
    everything = itertools.chain([first], left)
    if base is None:
        for key, inputs in everything:
            yield key, answer(key, inputs)[0].outputs
        return
    packed = _Packed(model, topology, named) if is_plain_classifier(model) else None
    requests = base.swarm_blocks.requests
    window = window_in_memory(
        topology,
        in_flight=in_flight,
        tokens=MAX_REQUEST_TOKENS if packed else _tokens_in(first[1]),
        hidden_size=base.config.hidden_size,
        timeout=requests.timeout,
    )
    calls = packed.calls(everything, answer) if packed else (partial(answer, *batch) for batch in everything)
    try:
        with closing(
            map_in_flight(lambda ask: ask(), calls, window, retries=lambda: requests.router.retries)
        ) as answers:
            for batch in itertools.chain.from_iterable(answers):
                yield batch.key, batch.outputs
    finally:
        if packed:
            packed.close()


def is_plain_classifier(model: nn.Module) -> TypeGuard[SequenceClassifier]:
    """Whether a model is a classifier on a swarm without parts that the program replaced or hooked."""
    if not isinstance(model, SequenceClassifier) or any(map(is_overridden, model.modules())):
        return False
    head = model.score
    return type(head) is nn.Linear and head.bias is None and head.out_features == model.config.num_labels


class _Packed(Generic[Key]):
    """Classifies the texts of many batches in requests with texts of similar length."""

    def __init__(self, model: Any, topology: Topology, named: Callable[[Key], str]) -> None:
        self._model, self._topology, self._named = model, topology, named
        base = model.swarm_base
        self._backbone = SwarmBackbone(base)
        self._classifier = Classifier(self._backbone, tuned_tensors_of(model))
        self._prompts, self._changes_frequencies = base.prompt_length, base.changes_frequencies
        self._sessions: int | None = None  # maximum for this rank; None before the first plan
        self._lock = threading.Lock()

    def close(self) -> None:
        """Releases the servers' memory."""
        self._backbone.close()

    def calls(
        self, batches: Iterable[tuple[Key, Any]], otherwise: Callable[[Key, Any], list[_Batch[Key]]]
    ) -> Iterator[_Ask[Key]]:
        """Yields calls of the model for all batches; `otherwise` handles batches with further inputs."""
        rows, texts, tokens = list[tuple[_Batch[Key], int]](), list[np.ndarray](), 0
        for key, inputs in batches:
            with _naming(self._named, key):
                found = self._model.texts(**inputs) if isinstance(inputs, Mapping) else None
            if not found:
                yield partial(otherwise, key, inputs)
                continue
            batch = _Batch(key, torch.empty(len(found), self._classifier.num_labels), len(found))
            rows += [(batch, row) for row in range(len(found))]
            texts += [text.cpu().numpy() for text in found]
            tokens += sum(map(len, found))
            if tokens > _PLANNED_TOKENS:
                yield from self._planned(rows, texts)
                rows, texts, tokens = [], [], 0
        yield from self._planned(rows, texts)

    def _planned(self, rows: Sequence[tuple[_Batch[Key], int]], texts: Sequence[np.ndarray]) -> Iterator[_Ask[Key]]:
        plan = self._plan(np.array([*map(len, texts)], dtype=np.int64))
        for number in range(len(plan)):
            members = plan.batch(number).tolist()
            options = SendOptions(shared=plan.shared_by(number))
            yield partial(self._ask, [rows[row] for row in members], [texts[row] for row in members], options)

    def _plan(self, lengths: np.ndarray) -> BatchPlan:
        """Plans texts as a run does; prompts are computed once if that pays and servers have space for sessions."""

        def plan(cache_tokens: int) -> BatchPlan:
            return plan_with_shared_prefixes(
                lengths,
                token_budget=MAX_REQUEST_TOKENS,
                cache_tokens=cache_tokens,
                extra_tokens=self._prompts,
                prompt_tokens=self._prompts,
            )

        if self._sessions == 0 or self._changes_frequencies(int(lengths.max(initial=0))):
            return plan(0)
        shared = plan(session_tokens(self._backbone.config))
        if shared.shared is not None and self._sessions is None:
            room = self._backbone.room_for_sessions(_SESSION_SHARE, shared.shared.largest_cache)
            self._sessions = self._topology.share_of(room.sessions) if room.pays(shared.gain) else 0
            if self._sessions:
                self._backbone.open_sessions(self._sessions)
        return shared if self._sessions else plan(0)

    def _ask(
        self, rows: Sequence[tuple[_Batch[Key], int]], texts: Sequence[np.ndarray], options: SendOptions
    ) -> list[_Batch[Key]]:
        input_ids = pad_sequence([*map(torch.from_numpy, texts)], batch_first=True)
        lengths = torch.tensor([*map(len, texts)])
        with _naming(lambda key: f"{self._named(key)}, in a request of {len(rows)} texts", rows[0][0].key):
            answers = checked_answers(self._classifier, input_ids, lengths, options)
        complete = []
        with self._lock:
            for (batch, row), logits in zip(rows, torch.from_numpy(answers["logits"]), strict=True):
                batch.outputs[row] = logits
                batch.left -= 1
                if not batch.left:
                    complete.append(batch)
        return complete


@contextmanager
def _naming(named: Callable[[Key], str], key: Key) -> Iterator[None]:
    """Puts the name of a batch before the message of an error."""
    try:
        yield
    except EvaluationError as error:
        raise with_place(error, named(key)) from error


def _tokens_in(inputs: Any) -> int:
    tensors = [leaf for leaf in tree_leaves(inputs) if isinstance(leaf, torch.Tensor) and leaf.ndim > 1]
    return max((tensor.shape[0] * tensor.shape[1] for tensor in tensors), default=1)
