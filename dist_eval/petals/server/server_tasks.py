"""Splits requests into tasks of several blocks.

Petals makes a task of each block, and copies the activations from the GPU to the handler's process and back after each.
They are large (16 MiB for 1024 tokens of a 70B model in bfloat16), so here they stay on the GPU for several blocks.

Forwards are computed in the order in which they arrive, because the next server of a chain would idle while several
requests took turns. A task of a forward ends early if a step of a session waits, and after two seconds, so that an
abandoned request does not take longer. Other tasks have as many blocks as take a quarter of a second.
"""

from __future__ import annotations

import math
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from multiprocessing.sharedctypes import RawValue
from typing import Any

import torch

from dist_eval.petals.client.chain import read_request
from dist_eval.petals.client.deep_prompts import KEPT_TOKENS
from dist_eval.petals.client.failures import LACKS_PROMPTS
from dist_eval.petals.client.protocol import ROLLS_BACK
from dist_eval.petals.server.kept_prompts import KeptPrompts, require_digests
from dist_eval.petals.server.request import Request
from dist_eval.petals.server.shared_memory import SharedMemory
from dist_eval.petals.server.task_pool import task_pool_class

TASK_SECONDS = 0.25
"""Longest time of a task with more than one block, and until a forward checks whether a step of a session waits."""

FORWARD_SECONDS = 2.0
"""Time after which a task of a forward ends."""

_LATER = 1e-10  # Added to the priority for each second since the host was started: the oldest request goes first

# Of one token in one block, in the latest task of each kind; shared by the handlers, which are forked later
_seconds_per_work = {kind: RawValue("d", math.inf) for kind in ("forward", "backward", "inference")}


def merge_pools(backends: Mapping[str, Any], memory: SharedMemory) -> None:
    """Gives all blocks of a server the same three pools of tasks.

    Args:
        backends: Petals' `TransformerBackend` for each block's uid.
        memory: shared memory for the tensors of handlers and blocks.
    """
    first, pool_class = next(iter(backends.values())), task_pool_class()
    chain = _Chain(backends, lambda: inference.has_tasks)
    size, device = first.forward_pool.max_batch_size, first.forward_pool.device

    def pool(run: Callable[..., Any]) -> Any:
        return pool_class(memory, run, size, run.__name__, device=device)

    forward, backward, inference = pool(chain.forward), pool(chain.backward), pool(chain.inference)
    for backend in backends.values():
        backend.forward_pool, backend.backward_pool, backend.inference_pool = forward, backward, inference


class _Chain:
    """Consecutive blocks; its methods run in the process of the blocks, and return the seconds as last value."""

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
        if (found := self._with_kept(digests, prompts, hidden)) is None:
            return torch.empty(0), 0
        prompts = found
        for blocks in _tasks("forward", hidden, len(uids)):
            start = time.monotonic()
            for uid, prompt in zip(uids[blocks], prompts[blocks], strict=True):
                (hidden,) = self._backends[uid].forward(_with_prompt(hidden, prompt), adapter)
            _note("forward", _seconds_since(start, hidden), hidden, blocks.stop - blocks.start)
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
        if (found := self._with_kept(digests, prompts, hidden)) is None:
            return torch.empty(0), -1.0
        prompts = found
        for step, prompt in zip(steps, prompts, strict=True):
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


async def run_forward(
    *tensors: torch.Tensor,
    requested_backends: Sequence[Any],
    active_adapter: str = "",
    prioritizer: Any,
    points: int = 0,
    args_structure: Any = None,
    rows: torch.Tensor | None = None,
    digests: Sequence[bytes] = (),
) -> torch.Tensor:
    """Runs blocks forward, with the interface of `petals.server.block_functions.run_rpc_forward`.

    With `rows`, positions in batch x length, only their outputs are returned, of shape [1, rows, hidden]. With digests
    of each block's prompts, these are kept, or replaced by kept ones if they are empty.

    Raises:
        ValueError: the client's tensors are invalid, or the prompts of a digest are missing.
    """
    hidden, prompts, *_ = _unpacked(tensors, args_structure)
    hidden = _as_hidden(hidden, requested_backends)
    await require_digests(prompts, digests)
    deep = _prompt_of_each(prompts, requested_backends)
    priority = prioritizer.prioritize(hidden, points=points, backend=requested_backends[0], type="forward")
    priority += _LATER * time.monotonic()
    return await _forward(hidden, requested_backends, deep, active_adapter, priority, rows, digests)


async def run_backward(
    *tensors: torch.Tensor,
    requested_backends: Sequence[Any],
    active_adapter: str = "",
    prioritizer: Any,
    points: int = 0,
    args_structure: Any = None,
) -> Sequence[torch.Tensor]:
    """Runs blocks backward, with the interface of `petals.server.block_functions.run_rpc_backward`."""
    hidden, gradient, prompts, *_ = _unpacked(tensors, args_structure)
    hidden, gradient = (_as_hidden(tensor, requested_backends) for tensor in (hidden, gradient))
    deep = _prompt_of_each(prompts, requested_backends)
    priority = prioritizer.prioritize(hidden, gradient, points=points, backend=requested_backends[0], type="backward")
    priority += _LATER * time.monotonic()
    inputs: list[tuple[slice, torch.Tensor]] = []
    for blocks in _tasks("backward", hidden, len(requested_backends)):
        inputs.append((blocks, hidden))
        if blocks.stop < len(requested_backends):
            hidden = await _forward(hidden.clone(), requested_backends[blocks], deep[blocks], active_adapter, priority)
    of_prompts: list[torch.Tensor] = []
    for blocks, hidden in reversed(inputs):
        backends = requested_backends[blocks]
        arguments = gradient, active_adapter, [backend.name for backend in backends], *deep[blocks]
        pool = backends[0].backward_pool
        gradient, *found, seconds = await pool.compute(hidden, *arguments, priority=priority)
        _note("backward", seconds, hidden, len(backends))
        of_prompts = [*found, *of_prompts]
    return [gradient, torch.cat(of_prompts)] if of_prompts else [gradient]


async def _forward(
    hidden: torch.Tensor,
    backends: Sequence[Any],
    prompts: Sequence[Any],
    adapter: str,
    priority: float,
    rows: torch.Tensor | None = None,
    digests: Sequence[bytes] = (),
) -> torch.Tensor:
    uids, pool = [backend.name for backend in backends], backends[0].forward_pool
    while uids:
        hidden, done = await pool.compute(hidden, adapter, uids, rows, digests, *prompts, priority=priority)
        if not done:
            raise ValueError(LACKS_PROMPTS)
        uids, prompts, digests = uids[done:], prompts[done:], digests[done:]
    return hidden


def _tasks(kind: str, hidden: torch.Tensor, count: int) -> Iterator[slice]:
    """Yields the blocks of each task of a request, as many as fit into the time, judging by earlier tasks."""
    start = 0
    while start < count:
        seconds = _seconds_per_work[kind].value * _tokens(hidden)
        end = min(count, start + max(1, int(min(count, TASK_SECONDS / seconds))))
        yield slice(start, end)
        start = end


def _note(kind: str, seconds: float, hidden: torch.Tensor, count: int) -> None:
    """Records the time of a task of several blocks."""
    _seconds_per_work[kind].value = max(1e-12, seconds / (_tokens(hidden) * count))


def _tokens(hidden: torch.Tensor) -> int:
    return max(1, hidden.shape[0] * hidden.shape[1])


def _as_hidden(tensor: torch.Tensor, backends: Sequence[Any]) -> torch.Tensor:
    """Returns a client's hidden states in the dtype of the blocks."""
    if tensor.ndim != 3:
        raise ValueError(f"Received hidden states of {tensor.ndim} dimensions instead of 3")
    return _finite(tensor.to(backends[0].dtype), "hidden states")


def _finite(tensor: torch.Tensor, name: str) -> torch.Tensor:
    """Returns a client's tensor, which must be finite."""
    if tensor.numel() and not torch.stack(torch.aminmax(tensor.detach())).isfinite().all():
        raise ValueError(f"Received {name} that are not finite in {str(tensor.dtype).removeprefix('torch.')}")
    return tensor


def _unpacked(tensors: Sequence[torch.Tensor], args_structure: Any) -> Sequence[torch.Tensor]:
    if args_structure is None:
        return tensors
    from petals.utils.packaging import unpack_args_kwargs

    return unpack_args_kwargs(tensors, args_structure)[0]


def _prompt_of_each(prompts: torch.Tensor | None, backends: Sequence[Any]) -> list[torch.Tensor | None]:
    """Splits prompts of shape [blocks, rows or 1, pre_seq_len, hidden] by block; each is None without prompts."""
    if prompts is None or not prompts.numel():
        return [None] * len(backends)
    if len(prompts) != len(backends):
        raise ValueError(f"Received {len(prompts)} prompts for {len(backends)} blocks")
    return list(_finite(prompts.to(backends[0].dtype), "prompts").unbind(0))


async def run_inference(
    requests: AsyncIterator[tuple[Request, dict[str, Any]]],
    cache_handles: Sequence[Sequence[int]],
    *,
    requested_backends: Sequence[Any],
    active_adapter: str | None,
    prioritizer: Any,
    points: int,
    args_structure: Any,
    max_length: int,
) -> AsyncIterator[tuple[torch.Tensor, bool]]:
    """Computes the steps of a session; a step's `start_from_position` drops the tokens from there on.

    `start_from_position` is that of Petals main (2.3.0.dev2); Petals 2.2 does not have it.

    Args:
        requests: the steps, each with its metadata.
        cache_handles: Petals' handles of the attention caches of each block.
        requested_backends: the blocks.
        active_adapter: name of the LoRA adapter, if any.
        prioritizer: see `run_forward`.
        points: see `run_forward`.
        args_structure: the order of the tensors of a step, if it is not that of `petals.client.chain`.
        max_length: most tokens of a text.

    Yields:
        The outputs of a step, in memory of their own, and whether it had no deep prompts.
    """
    from petals.data_structures import InferenceMetadata

    if any(backend.kept is None for backend in requested_backends):
        raise ValueError("recurrent blocks keep no attention cache, so they do not support sessions")
    backend, position, rolls_back, rows = requested_backends[0], 0, True, None
    uids = [one.name for one in requested_backends]
    async for request, step in requests:
        received = [tensor.tensor() for tensor in request.tensors]
        hidden, prompts, order, *_ignored = _unpacked(received, args_structure)
        hidden = _as_hidden(hidden, requested_backends)
        if rows not in (None, len(hidden)):
            raise ValueError(f"Received {len(hidden)} rows in a session of {rows}")
        rows, chained = len(hidden), read_request(step)
        digests = (chained and chained.prompts) or []
        await require_digests(prompts, digests)
        deep = _prompt_of_each(prompts, requested_backends)
        rolls_back = rolls_back and step.get(ROLLS_BACK) is not False
        start = step.get("start_from_position")
        if start is not None:
            if not isinstance(start, int) or not 0 <= start <= position:
                raise ValueError(f"A session of {position} tokens cannot start from position {start!r}")
            if not rolls_back and 0 < start < position:
                raise ValueError(f"A session that does not go back cannot start from position {start} of {position}")
            position = start
        end = position + hidden.shape[1]
        if end > max_length:
            raise ValueError(f"Maximum length exceeded: {end} tokens in a session for {max_length}")
        priority = prioritizer.prioritize(
            hidden, order, points=points / max(max_length, 1), requested_uids=uids, type="inference"
        )
        needed = None if chained is None or chained.rows is None else torch.tensor(chained.rows, dtype=torch.int64)
        if hidden.numel():  # a step without tokens allocates the cache
            steps = [
                InferenceMetadata(uid, position, tuple(handles), active_adapter)
                for uid, handles in zip(uids, cache_handles, strict=True)
            ]
            for blocks in _tasks("inference", hidden, len(steps)):
                picked = needed if blocks.stop == len(steps) else None
                size = torch.empty(*hidden.shape[:2], 0)
                arguments = order, tuple(steps[blocks]), picked, digests[blocks], *deep[blocks]
                hidden, seconds = await backend.inference_pool.compute(hidden, *arguments, priority=priority)
                if seconds < 0:
                    raise ValueError(LACKS_PROMPTS)
                _note("inference", seconds, size, blocks.stop - blocks.start)
        hidden = hidden.clone()  # frees the shared memory while waiting for the next step
        yield hidden, not digests and all(prompt is None for prompt in deep)
        position = end
