"""What a server does with a request: one task for all blocks that it asks for.

Petals makes a task of each block, after which the activations go from the GPU to the process of the handler and back.
They are large (16 MiB for 1024 tokens of a model of 70B in bfloat16), so here they stay where they are until the last
block is done. A request is therefore not interrupted by others, and the first that came is the first that is answered.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

import torch


def merge_pools(backends: Mapping[str, Any]) -> None:
    """Gives all blocks of a server the same three pools of tasks.

    Args:
        backends: Petals' `TransformerBackend` for each block's uid.
    """
    from petals.server.task_pool import PrioritizedTaskPool

    def pool(name: str, run: Callable[..., Any]) -> Any:
        return PrioritizedTaskPool(run, first.forward_pool.max_batch_size, name, device=first.forward_pool.device)

    first, chain = next(iter(backends.values())), _Chain(backends)
    forward, backward = pool("forward", chain.forward), pool("backward", chain.backward)
    inference = pool("inference", chain.inference)
    for backend in backends.values():
        backend.forward_pool, backend.backward_pool, backend.inference_pool = forward, backward, inference


class _Chain:
    """Blocks one after the other; each method runs in the process and on the device of the blocks."""

    def __init__(self, backends: Mapping[str, Any]) -> None:
        self._backends = backends

    def forward(self, hidden: torch.Tensor, adapter: str, uids: Sequence[str], *prompts: Any) -> tuple[torch.Tensor]:
        """Runs blocks forward; prompts are of shape [1, pre_seq_len, hidden], or None."""
        for uid, prompt in zip(uids, prompts, strict=True):
            (hidden,) = self._backends[uid].forward(_with_prompt(hidden, prompt), adapter)
        return (hidden,)

    def backward(
        self, hidden: torch.Tensor, gradient: torch.Tensor, adapter: str, uids: Sequence[str], *prompts: Any
    ) -> tuple[torch.Tensor, ...]:
        """Returns the gradients of the inputs, and of the prompts if there are any; each forward is run twice."""
        inputs = [_with_prompt(hidden, prompts[0])]
        for uid, prompt in zip(uids[:-1], prompts[1:], strict=True):
            (outputs,) = self._backends[uid].forward(inputs[-1], adapter)
            inputs.append(_with_prompt(outputs, prompt))
        gradients = []
        for uid, block_inputs, prompt in zip(reversed(uids), reversed(inputs), reversed(prompts), strict=True):
            (gradient,) = self._backends[uid].backward(block_inputs, gradient, adapter)
            if prompt is not None:
                gradients.append(gradient[:, : prompt.shape[1]])
        return (gradient, torch.stack(gradients[::-1])) if gradients else (gradient,)

    @torch.inference_mode()
    def inference(
        self, hidden: torch.Tensor, order: torch.Tensor, steps: Sequence[Any], *prompts: Any
    ) -> tuple[torch.Tensor]:
        """Runs a step of a session; `steps` has Petals' `InferenceMetadata` for each block."""
        for step, prompt in zip(steps, prompts, strict=True):
            (hidden,) = self._backends[step.uid].inference_step(_with_prompt(hidden, prompt), order, step)
        return (hidden,)


def _with_prompt(hidden: torch.Tensor, prompt: torch.Tensor | None) -> torch.Tensor:
    if prompt is not None:
        hidden[:, : prompt.shape[1]] += prompt
    return hidden


async def run_forward(*tensors: torch.Tensor, args_structure: Any = None, **request: Any) -> torch.Tensor:
    """Runs blocks forward; takes and returns what `petals.server.block_functions.run_rpc_forward` does."""
    hidden, prompts, *_ = _unpacked(tensors, args_structure)
    (outputs,) = await _submit("forward", [hidden], prompts, **request)
    return outputs


async def run_backward(*tensors: torch.Tensor, args_structure: Any = None, **request: Any) -> Sequence[torch.Tensor]:
    """Runs blocks backward; takes and returns what `petals.server.block_functions.run_rpc_backward` does."""
    hidden, gradient, prompts, *_ = _unpacked(tensors, args_structure)
    return await _submit("backward", [hidden, gradient], prompts, **request)


async def _submit(
    kind: str,
    tensors: Sequence[torch.Tensor],
    prompts: torch.Tensor | None,
    *,
    requested_backends: Sequence[Any],
    active_adapter: str = "",
    prioritizer: Any,
    points: int = 0,
) -> Any:
    """Has the runtime run a method of `_Chain`."""
    backend = requested_backends[0]
    tensors = [tensor.to(backend.dtype) for tensor in tensors]
    if tensors[0].ndim != 3:
        raise ValueError(f"Received hidden states of {tensors[0].ndim} dimensions instead of 3")
    pool = backend.forward_pool if kind == "forward" else backend.backward_pool
    priority = prioritizer.prioritize(*tensors, points=points, backend=backend, type=kind)
    uids, deep = [each.name for each in requested_backends], _prompt_of_each(prompts, requested_backends)
    return await pool.submit_task(*tensors, active_adapter, uids, *deep, priority=priority)


def _unpacked(tensors: Sequence[torch.Tensor], args_structure: Any) -> Sequence[torch.Tensor]:
    from petals.utils.packaging import unpack_args_kwargs

    return tensors if args_structure is None else unpack_args_kwargs(tensors, args_structure)[0]


def _prompt_of_each(prompts: torch.Tensor | None, backends: Sequence[Any]) -> list[torch.Tensor | None]:
    """Returns each block's prompts, or None, from those of all blocks, [blocks, rows or 1, pre_seq_len, hidden]."""
    from petals.utils.misc import is_dummy

    if prompts is None or is_dummy(prompts):
        return [None] * len(backends)
    if len(prompts) != len(backends):
        raise ValueError(f"Received {len(prompts)} prompts for {len(backends)} blocks")
    return list(prompts.to(backends[0].dtype).unbind(0))


async def iterate_inference(
    requested_uids: Sequence[str],
    requested_backends: Sequence[Any],
    active_adapter: str | None,
    input_iterator: AsyncIterator[tuple[Any, dict[str, Any]]],
    cache_handles: Sequence[Sequence[int]],
    *,
    max_length: int,
    prioritizer: Any,
    points: int,
    args_structure: Any = None,
    **_: Any,
) -> AsyncIterator[tuple[Sequence[Any], bool]]:
    """Answers the steps of a session; a step's `start_from_position` forgets the tokens from there on.

    Takes and yields what `petals.server.block_functions.iterate_rpc_inference` does (Petals 2.2.0.post1), which knows
    no `start_from_position`; its meaning is that of Petals main (2.3.0.dev2).
    """
    from hivemind.compression.serialization import deserialize_torch_tensor, serialize_torch_tensor
    from hivemind.utils.nested import nested_flatten
    from petals.data_structures import InferenceMetadata

    if any(backend.cache_shapes is None for backend in requested_backends):
        raise ValueError("recurrent blocks keep no attention cache, so that they have no sessions")
    backend, position = requested_backends[0], 0
    (output,) = nested_flatten(requested_backends[-1].outputs_schema)
    async for request, step in input_iterator:
        received = [deserialize_torch_tensor(tensor) for tensor in request.tensors]
        hidden, prompts, order, *_ignored = _unpacked(received, args_structure)
        hidden = hidden.to(backend.dtype)
        deep = _prompt_of_each(prompts, requested_backends)
        start = step.get("start_from_position")
        if start is not None:
            if not isinstance(start, int) or not 0 <= start <= position:
                raise ValueError(f"A session of {position} tokens cannot start from position {start!r}")
            position = start
        end = position + hidden.shape[1]
        if end > max_length:
            raise ValueError(f"Maximum length exceeded: {end} tokens in a session for {max_length}")
        priority = prioritizer.prioritize(
            hidden, order, points=points / max(max_length, 1), requested_uids=requested_uids, type="inference"
        )
        if hidden.numel():  # a step without tokens allocates the cache
            steps = tuple(
                InferenceMetadata(uid, position, tuple(handles), active_adapter)
                for uid, handles in zip(requested_uids, cache_handles, strict=True)
            )
            (hidden,) = await backend.inference_pool.submit_task(hidden, order, steps, *deep, priority=priority)
        answer = serialize_torch_tensor(hidden.to(output.dtype), output.compression, allow_inplace=True)
        yield [answer], all(prompt is None for prompt in deep)
        position = end
