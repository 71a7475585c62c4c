"""Requests that servers pass on to each other, and their answers: activations cross the network only once.

A request of `rpc_forward` with the key `chain` in its metadata goes to the first server of the chain, which sends its
outputs to the next one, and so on. The answer returns the same way. A server that cannot pass a request on answers with
its own outputs: `end` says how far the request got, and the client continues from there. To keep requests small, they
may contain token ids instead of hidden states, from which the server of the first block computes its inputs, and the
positions whose outputs are needed.

Tensors of a request: hidden states of shape [batch, length, hidden], or token ids (int64, [batch, length]); deep
prompts of all blocks of the chain, of shape [blocks, 1, pre_seq_len, hidden], or an empty tensor if there are none or
if digests replace them, as in forwards (see `deep_prompts.py`); in a session the order of its rows; and with ids soft
prompts of shape [pre_seq_len, hidden], or an empty tensor.

Each step of a session is such a request, and each server keeps a session with the next one. All steps name the same
servers. If one of them answers in place of those after it, they have lost the session, and the texts are sent again
from their beginning.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import torch
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from dist_eval.petals.client.announcements import MOST_BLOCKS, unpack
from dist_eval.petals.client.dht_records import is_peer_id
from dist_eval.petals.client.failures import WrongAnswer, lacks_prompts
from dist_eval.petals.client.routes import Span
from dist_eval.printable import printable

MOST_HOPS = 32
"""Most servers in a chain."""

CHAIN = "chain"
"""The metadata key that marks such a request."""

_MOST_SECONDS, _MOST_ROWS, _LONGEST_REASON = 1e6, 1 << 20, 200


def _require_peer_id(text: str) -> str:
    if not is_peer_id(text):
        raise ValueError("is not a peer id")
    return text


Block = Annotated[int, Field(ge=0, le=MOST_BLOCKS)]
Digest = Annotated[bytes, Field(min_length=32, max_length=32)]
Seconds = Annotated[float, Field(ge=0, le=_MOST_SECONDS)]


class _Message(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="ignore", allow_inf_nan=False)

    def packed(self) -> dict[str, Any]:
        """Returns the fields to send."""
        return self.model_dump(exclude_none=True)


class Hop(_Message):
    """A server that a request is passed on to, and the blocks that it should run."""

    peer: Annotated[str, AfterValidator(_require_peer_id)]
    start: Block
    end: Block
    patience: Seconds  # how long the previous server waits for its answer

    @model_validator(mode="after")
    def _has_blocks(self) -> Hop:
        if self.start >= self.end:
            raise ValueError("has no blocks")
        return self


class ChainRequest(_Message):
    """Metadata of such a request, in addition to those of all requests."""

    chain: Annotated[list[Hop], Field(max_length=MOST_HOPS - 1)]  # the servers after the first
    # positions in batch x length whose outputs are needed, if the last server runs the model's last block
    rows: Annotated[list[Annotated[int, Field(ge=0)]], Field(max_length=_MOST_ROWS)] | None = None
    ids: bool = False  # whether it has token ids instead of hidden states
    # digests of each block's deep prompts, if servers should keep these or use the ones that they have kept
    prompts: Annotated[list[Digest], Field(min_length=1, max_length=MOST_BLOCKS)] | None = None

    @model_validator(mode="after")
    def _ascends(self) -> ChainRequest:
        if any(one.end != other.start for one, other in zip(self.chain, self.chain[1:], strict=False)):
            raise ValueError("has gaps between its blocks")
        if len({hop.peer for hop in self.chain}) < len(self.chain):
            raise ValueError("has a server twice")
        return self

    @property
    def servers(self) -> list[tuple[str, int, int]]:
        """The peers that it is passed on to, with their first and one-past-last blocks."""
        return [(hop.peer, hop.start, hop.end) for hop in self.chain]

    def after_first(self) -> ChainRequest:
        """Returns the request to the next server."""
        further = self.chain[-1].end - self.chain[0].start
        return ChainRequest(chain=self.chain[1:], rows=self.rows, prompts=self.prompts and self.prompts[-further:])


class HopTimes(_Message):
    """A server's times in seconds."""

    own: Seconds  # from the request to its own outputs
    call: Seconds = 0.0  # from passing them on to the answer


class ChainAnswer(_Message):
    """Metadata of an answer."""

    end: Block  # one past the last block that was computed
    hops: Annotated[list[HopTimes], Field(min_length=1, max_length=MOST_HOPS)]  # one for each server until there
    why: str = ""  # why the request was not passed on to the end, for information

    @property
    def lacks_prompts(self) -> bool:
        """Whether the next server only lacked deep prompts."""
        return lacks_prompts(self.why)

    def times(self, sent_at: float, now: float) -> list[tuple[float, float]]:
        """Returns when each server got and finished a request answered `now`, ignoring delays between servers."""
        times: list[tuple[float, float]] = []
        for hop in self.hops:
            done_at = min(now, max(sent_at, now - hop.call))  # bounded, because servers may report anything
            times.append((sent_at, done_at))
            sent_at = done_at
        return times

    def preceded_by(self, own: HopTimes) -> ChainAnswer:
        """Returns the answer of a server that passed the request on and got this one."""
        return self.model_copy(update={"hops": [own, *self.hops[: MOST_HOPS - 1]]})


def request_to(
    chain: Sequence[Span],
    patience: Sequence[float],
    rows: torch.Tensor | None,
    *,
    ids: bool,
    prompts: list[bytes] | None = None,
) -> ChainRequest:
    """Returns the request to the first server of a chain.

    `patience` has the seconds to wait for each server and those after it. `rows` is int64 of shape [rows]; for its
    meaning and that of `prompts`, see `ChainRequest`.
    """
    hops = [
        Hop(peer=str(span.peer), start=span.start, end=span.end, patience=seconds)
        for span, seconds in zip(chain[1:], patience[1:], strict=True)
    ]
    return ChainRequest(chain=hops, rows=None if rows is None else rows.tolist(), ids=ids, prompts=prompts)


def read_request(metadata: Mapping[str, Any]) -> ChainRequest | None:
    """Reads the metadata of a request; None if it has no chain. Raises `ValueError` if they are invalid."""
    return ChainRequest.model_validate(metadata) if CHAIN in metadata else None


def read_chain_answer(packed: bytes, ends: Sequence[int]) -> ChainAnswer:
    """Reads the metadata of an answer; `ends` has one past the last block of each server of the chain.

    Raises `WrongAnswer` if it is invalid, or does not end at the last block of one of the servers.
    """
    try:
        answer = ChainAnswer.model_validate(unpack(packed))
    except ValidationError as error:
        raise WrongAnswer("an answer that does not say how far the request was passed on") from error
    if answer.end not in ends or len(answer.hops) != ends.index(answer.end) + 1:
        raise WrongAnswer(f"outputs of block {answer.end - 1}, where no server of the chain ends")
    return answer.model_copy(update={"why": printable(answer.why, _LONGEST_REASON)})
