"""The forward of a batch through all blocks of a model, from one server or chain of servers to the next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from dist_eval.petals.client import event_loop
from dist_eval.petals.client.attempts import Choice, RoutePart, TooLarge
from dist_eval.petals.client.deep_prompts import DeepPrompts
from dist_eval.petals.client.inputs import Inputs, TokenIds
from dist_eval.petals.client.outputs import picked
from dist_eval.petals.client.records import RouteSegment
from dist_eval.petals.client.requests import SwarmRequests, within
from dist_eval.petals.client.routes import RouteRecord
from dist_eval.petals.client.transport import ChainOutputs
from dist_eval.petals.client.turns import Request


def forward(
    requests: SwarmRequests,
    given: torch.Tensor | TokenIds,
    prompts: torch.Tensor | None,
    avoided: Sequence[RouteSegment] = (),
    record: RouteRecord | None = None,
    *,
    rows: torch.Tensor | None = None,
) -> torch.Tensor:
    """Sends a batch through all blocks. Thread-safe.

    Args:
        requests: sends to the swarm.
        given: hidden states, float tensor of shape [batch, length, hidden], or the token ids to compute them from.
        prompts: deep prompts of shape [blocks, pre_seq_len, hidden], or None. Equal ones are serialized once.
        avoided: segments to avoid if there is another route.
        record: records the route.
        rows: positions in batch x length whose outputs are needed, int64 of shape [rows]; by default all. Servers then
            need not send the others.

    Returns:
        The last block's outputs: in the shape and dtype of the hidden states, or of shape [rows, hidden]; for token ids
        float32 on the CPU.

    Raises:
        RefusedError: servers refused the request.
        ModelOutputError: servers answered with values that are not finite.
        OutageError: no server of a block could be reached for too long.
        SwarmError: no attempt for a segment was answered.
    """
    inputs, record = Inputs.of(given), record or RouteRecord()
    is_partial = rows is not None and len(rows) < inputs.size  # whether servers may leave outputs out
    sent = _Forward(requests, requests.transport.prompts.of(prompts), avoided, record)
    found = event_loop.run(sent.outputs(inputs, rows if is_partial else None))
    found = found.to(given) if isinstance(given, torch.Tensor) else found.to(torch.float32)
    return found if is_partial else picked(found, rows)


@dataclass(frozen=True)
class _Forward:
    requests: SwarmRequests
    deep: DeepPrompts
    avoided: Sequence[RouteSegment]
    record: RouteRecord

    async def outputs(self, inputs: Inputs, rows: torch.Tensor | None) -> torch.Tensor:
        await self.requests.rate_limiter.wait(inputs.size, is_new=not self.record.route and not self.avoided)
        return await self.from_block(0, inputs, rows)

    async def from_block(self, block: int, inputs: Inputs, rows: torch.Tensor | None) -> torch.Tensor:
        last = self.requests.num_blocks
        while True:
            part = RoutePart(
                *(block, last, inputs.size, self.avoided),
                rows=inputs.batch,
                chained=self.requests.chains,
                has_ids=inputs.tokens is not None,
            )
            try:
                choice, answer = await self.requests.send_with_retries(
                    lambda choice, inputs=inputs: self._request(choice, inputs, rows),  # type: ignore[misc]
                    part,
                )
            except TooLarge as error:
                return await self.from_block_in_halves(block, self.requests.halves(inputs, error), rows)
            block, outputs = choice.segment.end, answer
            if isinstance(answer, ChainOutputs):
                block, outputs = answer.answer.end, answer.outputs
            self.record.route += [
                RouteSegment(str(span.peer), span.start, span.end, span.announced.precision)
                for span in choice.servers
                if span.end <= block
            ]
            if block == last:
                return outputs if outputs.ndim < 3 else picked(outputs, rows)
            inputs = Inputs.of(outputs)

    async def from_block_in_halves(
        self, block: int, halves: Sequence[Inputs], rows: torch.Tensor | None
    ) -> torch.Tensor:
        if rows is None:
            return torch.cat([await self.from_block(block, half, None) for half in halves])
        cut, found = halves[0].size, list[torch.Tensor]()
        places = [(rows < cut).nonzero().flatten(), (rows >= cut).nonzero().flatten()]
        for half, place, start in zip(halves, places, (0, cut), strict=True):
            if len(place):
                found.append(await self.from_block(block, half, rows[place] - start))
        return torch.cat(found)[torch.cat(places).argsort()]

    def _request(self, choice: Choice, inputs: Inputs, rows: torch.Tensor | None) -> Request:
        chain = choice.chain
        if not chain:
            return self.requests.segment_request(choice.segment, inputs, self.deep)
        wanted = rows if chain[-1].end == self.requests.num_blocks else None
        send = within(lambda: self.requests.transport.send_chain(chain, choice.patience, inputs, self.deep, wanted))
        return Request(send, inputs.size * (chain[-1].end - chain[0].start))
