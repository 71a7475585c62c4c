"""Runs several blocks in one task, in the process that holds them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from dist_eval.petals.client.deep_prompts import KEPT_TOKENS
from dist_eval.petals.server.kept_prompts import KeptPrompts
from dist_eval.petals.server.shared_memory import SharedMemory
from dist_eval.petals.server.task_pool import task_pool_class
from dist_eval.petals.server.task_sizes import FORWARD_SECONDS, blocks_of_tasks, record_speed


class BlockRunner:
    """Runs consecutive blocks in the process that holds them."""

    def __init__(self, backends: Mapping[str, Any], is_urgent: Callable[[], bool]) -> None:
        self._backends, self._is_urgent = backends, is_urgent
        self._kept = KeptPrompts(KEPT_TOKENS * len(backends))

    def forward(
        self,
        hidden: torch.Tensor,
        adapter: str,
        uids: Sequence[str],
        rows: torch.Tensor | None,
        digests: Sequence[bytes],
        *prompts: Any,
    ) -> tuple[Any, ...]:
        """Runs blocks forward, as many as it may; prompts have shape [batch or 1, pre_seq_len, hidden], or are None.

        With digests, prompts are kept, or replaced by kept ones if None. The outputs have the shape of `hidden`, or [1,
        rows, hidden] at positions in batch x length if these are all blocks. They are empty if the prompts of a digest
        are missing. The last value is the number of blocks.
        """
        began, done = time.monotonic(), 0
        if (deep := self._with_kept(digests, prompts, hidden)) is None:
            return torch.empty(0), 0
        for blocks in blocks_of_tasks("forward", hidden, len(uids)):
            start = time.monotonic()
            for uid, prompt in zip(uids[blocks], deep[blocks], strict=True):
                (hidden,) = self._backends[uid].forward(_with_prompt(hidden, prompt), adapter)
            record_speed("forward", _seconds_since(start, hidden), hidden, blocks.stop - blocks.start)
            done = blocks.stop
            if self._is_urgent() or time.monotonic() - began >= FORWARD_SECONDS:
                break
        if rows is not None and done == len(uids):
            hidden = hidden.flatten(0, 1)[rows].unsqueeze(0)
        return hidden, done

    def _with_kept(self, digests: Sequence[bytes], prompts: Any, hidden: torch.Tensor) -> Any:
        """Returns the prompts, or with digests the kept ones; None if any is missing."""
        if not digests:
            return prompts
        found = self._kept.exchange(digests, prompts)
        if found and max(prompt.shape[1] for prompt in found) > hidden.shape[1]:
            raise ValueError("Received digests of deep prompts that are longer than the texts")
        return found

    def backward(
        self, hidden: torch.Tensor, gradient: torch.Tensor, adapter: str, uids: Sequence[str], *prompts: Any
    ) -> tuple[Any, ...]:
        """Returns the gradients of the inputs, and of the prompts if any; each forward is run twice."""
        start = time.monotonic()
        inputs = [_with_prompt(hidden, prompts[0])]
        for uid, prompt in zip(uids[:-1], prompts[1:], strict=True):
            (outputs,) = self._backends[uid].forward(inputs[-1], adapter)
            inputs.append(_with_prompt(outputs, prompt))
        gradients: list[torch.Tensor] = []
        for uid, prompt in zip(reversed(uids), reversed(prompts), strict=True):
            (gradient,) = self._backends[uid].backward(inputs.pop(), gradient, adapter)
            if prompt is not None:
                gradients.insert(0, gradient[:, : prompt.shape[1]].clone())
        stacked = [torch.stack(gradients)] if gradients else []
        return gradient, *stacked, _seconds_since(start, gradient)

    @torch.inference_mode()
    def inference(
        self,
        hidden: torch.Tensor,
        order: torch.Tensor,
        steps: Any,
        rows: torch.Tensor | None,
        digests: Sequence[bytes],
        *prompts: Any,
    ) -> tuple[Any, ...]:
        """Runs a step of a session; `steps` are Petals' `InferenceMetadata` of each block. See `forward` for the rest.

        The last value is the time in seconds; negative if prompts are missing.
        """
        start = time.monotonic()
        if (deep := self._with_kept(digests, prompts, hidden)) is None:
            return torch.empty(0), -1.0
        for step, prompt in zip(steps, deep, strict=True):
            (hidden,) = self._backends[step.uid].inference_step(_with_prompt(hidden, prompt), order, step)
        if rows is not None:
            hidden = hidden.flatten(0, 1)[rows].unsqueeze(0)
        return hidden, _seconds_since(start, hidden)


def _with_prompt(hidden: torch.Tensor, prompt: torch.Tensor | None) -> torch.Tensor:
    if prompt is not None:
        hidden[:, : prompt.shape[1]] += prompt
    return hidden


def _seconds_since(start: float, computed: torch.Tensor) -> float:
    if computed.is_cuda:
        torch.cuda.synchronize(computed.device)
    return time.monotonic() - start


def merge_pools(backends: Mapping[str, Any], memory: SharedMemory) -> None:
    """Gives all blocks of a server, Petals' `TransformerBackend`s by uid, the same three pools of tasks."""
    first, pool_class = next(iter(backends.values())), task_pool_class()
    runner = BlockRunner(backends, lambda: inference.has_tasks)
    size, device = first.forward_pool.max_batch_size, first.forward_pool.device

    def pool(run: Callable[..., Any]) -> Any:
        return pool_class(memory, run, size, run.__name__, device=device)

    forward, backward, inference = pool(runner.forward), pool(runner.backward), pool(runner.inference)
    for backend in backends.values():
        backend.forward_pool, backend.backward_pool, backend.inference_pool = forward, backward, inference
