"""Checks what clients send, and has it computed in tasks of several blocks. Runs in the handlers' processes."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

import torch

from dist_eval.petals.client.chain import read_request
from dist_eval.petals.client.failures import LACKS_PROMPTS
from dist_eval.petals.client.protocol import ROLLS_BACK
from dist_eval.petals.server.kept_prompts import require_digests
from dist_eval.petals.server.request import Request
from dist_eval.petals.server.task_sizes import blocks_of_tasks, record_speed

_LATER = 1e-10  # Added to the priority for each second since the host was started: the oldest request goes first


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
    of each block's prompts, these are kept, or replaced by kept ones if they are empty. Raises a `ValueError` if the
    client's tensors are invalid, or the prompts of a digest are missing.
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
    for blocks in blocks_of_tasks("backward", hidden, len(requested_backends)):
        inputs.append((blocks, hidden))
        if blocks.stop < len(requested_backends):
            hidden = await _forward(hidden.clone(), requested_backends[blocks], deep[blocks], active_adapter, priority)
    of_prompts: list[torch.Tensor] = []
    for blocks, hidden in reversed(inputs):
        backends = requested_backends[blocks]
        arguments = gradient, active_adapter, [backend.name for backend in backends], *deep[blocks]
        pool = backends[0].backward_pool
        gradient, *found, seconds = await pool.compute(hidden, *arguments, priority=priority)
        record_speed("backward", seconds, hidden, len(backends))
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

    `start_from_position` is that of Petals main (2.3.0.dev2); Petals 2.2 does not have it. `cache_handles` are Petals'
    handles of the attention caches of each block. `args_structure` is the order of a step's tensors, if it is not that
    of `petals.client.chain`. A text has at most `max_length` tokens. Yields the outputs of each step, in memory of
    their own, and whether it had no deep prompts.
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
            for blocks in blocks_of_tasks("inference", hidden, len(steps)):
                picked = needed if blocks.stop == len(steps) else None
                size = torch.empty(*hidden.shape[:2], 0)
                arguments = order, tuple(steps[blocks]), picked, digests[blocks], *deep[blocks]
                hidden, seconds = await backend.inference_pool.compute(hidden, *arguments, priority=priority)
                if seconds < 0:
                    raise ValueError(LACKS_PROMPTS)
                record_speed("inference", seconds, size, blocks.stop - blocks.start)
        hidden = hidden.clone()  # frees the shared memory while waiting for the next step
        yield hidden, not digests and all(prompt is None for prompt in deep)
        position = end
