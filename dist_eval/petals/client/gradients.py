"""Gradients through a swarm, whose blocks form a single `torch.autograd.Function`.

The forward is that of evaluation (`forward.py`) and keeps the inputs of each segment. The backward asks servers for
gradients, from the last segment to the first. Any server with the blocks can answer, because it recomputes their
forward; if no server holds all blocks of a segment any more, the segment is split. So a server may leave at any time,
and the number of retries is bounded.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from dist_eval.errors import ModelOutputError
from dist_eval.petals.client import event_loop
from dist_eval.petals.client.attempts import Choice, RoutePart, TooLarge
from dist_eval.petals.client.deep_prompts import DeepPrompts
from dist_eval.petals.client.outputs import DTYPES
from dist_eval.petals.client.requests import SwarmRequests, for_all, tokens_in, within
from dist_eval.petals.client.turns import Request

_BACKWARD_WORK = 3  # Cost of a backward in forwards: it recomputes one, and takes as long as two itself

Part = tuple[int, int, torch.Tensor]
"""A segment of the route: its first block, one past its last block, and its inputs."""

Forwarded = tuple[torch.Tensor, list[Part]]
"""Outputs of the last block for a batch or a part of it, and the route that it took."""


def through_swarm(
    requests: SwarmRequests, batches: Sequence[torch.Tensor], prompts: torch.Tensor | None
) -> Sequence[torch.Tensor]:
    """Sends batches of hidden states through all blocks, concurrently; differentiable and thread-safe.

    Batches are float tensors of shape [batch, length, hidden], and prompts are deep prompts of shape
    [blocks, pre_seq_len, hidden], or None. Returns the last block's outputs for each batch, of its shape, dtype and
    device. The backward raises the same errors as the forward (see `forward.forward`).
    """
    device = torch.device("cpu")  # on a GPU, one thread of autograd would wait for one backward after another
    outputs = _ThroughSwarm.apply(requests, _on(device, prompts), *(_on(device, batch) for batch in batches))
    return [_on(batch.device, output) for output, batch in zip(outputs, batches, strict=True)]


def _on(device: torch.device, tensor: Any) -> Any:
    return None if tensor is None else tensor.to(device)


class _ThroughSwarm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, requests: SwarmRequests, prompts: torch.Tensor | None, *batches: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        deep = requests.transport.prompts.of(prompts)
        found = event_loop.run(
            for_all([batch.detach() for batch in batches], lambda batch: _forward_all(requests, deep, batch))
        )
        ctx.requests, ctx.prompts, ctx.deep = requests, prompts, deep
        ctx.routes = [[parts for _, parts in forwarded] for forwarded in found]  # of each batch
        outputs = [torch.cat([outputs for outputs, _ in forwarded]) for forwarded in found]
        return tuple(output.to(batch) for output, batch in zip(outputs, batches, strict=True))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        of_prompts = None
        pairs = [*zip(ctx.routes, gradients, strict=True)]
        backward = for_all(pairs, lambda pair: _backward_all(ctx.requests, ctx.deep, *pair))
        answers = event_loop.run(backward)
        if ctx.prompts is not None:
            of_prompts = torch.zeros_like(ctx.prompts, dtype=torch.float32)
            for _, pieces in itertools.chain(*answers):
                for start, piece in pieces:
                    of_prompts[start : start + len(piece)] += piece
            of_prompts = of_prompts.to(ctx.prompts)
        by_inputs = [torch.cat([part for part, _ in of_batch]) for of_batch in answers]
        return None, of_prompts, *(found.to(g) for found, g in zip(by_inputs, gradients, strict=True))


Pieces = list[tuple[int, torch.Tensor]]
"""Gradients of deep prompts: first block, and a float32 tensor of shape [blocks, pre_seq_len, hidden]."""


async def _forward_all(requests: SwarmRequests, deep: DeepPrompts, hidden: torch.Tensor) -> list[Forwarded]:
    """Sends a batch, which is halved if it is too large for all servers."""
    try:
        return [await _forward(requests, deep, hidden)]
    except TooLarge as error:
        halves = await for_all(requests.halves(hidden, error), lambda half: _forward_all(requests, deep, half))
        return [forwarded for half in halves for forwarded in half]


async def _forward(requests: SwarmRequests, deep: DeepPrompts, hidden: torch.Tensor) -> Forwarded:
    block, parts = 0, list[Part]()
    await requests.rate_limiter.wait(tokens_in(hidden))
    while block < requests.num_blocks:
        segment, outputs = await requests.send(hidden, block, deep)
        parts.append((segment.start, segment.end, hidden))
        hidden, block = outputs, segment.end
    return hidden, parts


async def _backward_all(
    requests: SwarmRequests, deep: DeepPrompts, routes: list[list[Part]], gradient: torch.Tensor
) -> list[tuple[torch.Tensor, Pieces]]:
    sizes = [len(parts[0][2]) for parts in routes]
    pairs = [*zip(routes, gradient.split(sizes), strict=True)]
    return await for_all(pairs, lambda pair: _backward(requests, deep, *pair))


async def _backward(
    requests: SwarmRequests, deep: DeepPrompts, parts: list[Part], gradient: torch.Tensor
) -> tuple[torch.Tensor, Pieces]:
    pieces: Pieces = []
    for part in reversed(parts):
        gradient, of_part = await _through_part(requests, deep, part, gradient)
        pieces += of_part
    return gradient, pieces


async def _through_part(
    requests: SwarmRequests, deep: DeepPrompts, part: Part, gradient: torch.Tensor
) -> tuple[torch.Tensor, Pieces]:
    """Backpropagates a gradient from the outputs of a segment to its inputs."""
    start, end, inputs = part
    tokens = tokens_in(inputs)
    largest = float(await asyncio.to_thread(torch.linalg.vector_norm, gradient.detach(), torch.inf))

    def make_request(choice: Choice) -> Request:
        segment = choice.segment
        work = tokens * (segment.end - segment.start)
        if segment.end == end:
            if not largest <= torch.finfo(DTYPES.get(segment.dtype or "", gradient.dtype)).max:
                raise ModelOutputError(
                    f"The gradient is not finite in {segment.dtype or 'float32'}, in which a server computes."
                )
            send_back = within(lambda: requests.transport.send_back(segment, inputs, gradient, deep))
            return Request(send_back, _BACKWARD_WORK * work)
        return Request(within(lambda: requests.transport.send(segment, inputs, deep)), work)

    try:
        whole = RoutePart(start, end, tokens, prefer_whole=True, rows=len(inputs))
        choice, answer = await requests.send_with_retries(make_request, whole)
    except TooLarge as error:
        halves = zip(requests.halves(inputs, error), gradient.tensor_split(2), strict=True)
        answers = [await _through_part(requests, deep, (start, end, half), theirs) for half, theirs in halves]
        return torch.cat([by_inputs for by_inputs, _ in answers]), [piece for _, found in answers for piece in found]
    segment = choice.segment
    if segment.end == end:
        by_inputs, by_prompts = answer
        if by_prompts is None:
            return by_inputs, []
        return by_inputs, [(start, by_prompts.float().sum(dim=1))]  # the prompts were broadcast to the batch
    # no server holds the whole segment any more; the answer has the inputs of its rest
    return await _backward(requests, deep, [(start, segment.end, inputs), (segment.end, end, answer)], gradient)
