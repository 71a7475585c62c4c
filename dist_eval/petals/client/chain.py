"""What a request says that servers pass on from one to the next, and its answer: so activations cross the network once.

A request of `rpc_forward` with the key `chain` in its metadata goes to the first server of the chain, which sends its
outputs to the next one, and so on. The answer comes back the same way. A server that cannot pass a request on answers
with its own outputs: `end` says how far it came, and the client goes on from there. Beside hidden states, requests have
what makes them small: token ids, of which the server of the first block makes its inputs, and the positions of which
outputs are needed.

Tensors of a request: hidden states of shape [batch, length, hidden], or token ids (int64, [batch, length]); deep
prompts of all blocks of the chain, of shape [blocks, 1, pre_seq_len, hidden], or an empty tensor if there are none, or
if digests stand for them, as in forwards (see `deep_prompts.py`); in a session the order of its rows; and with ids soft
prompts of shape [pre_seq_len, hidden], or an empty tensor.

Each step of a session is such a request, and each server keeps a session with the next one. All steps name the same
servers. If one of them answers in place of those after it, they have lost the session: its servers are then sent the
texts from their beginning.
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
"""Most servers of a chain."""

CHAIN = "chain"
"""The key in the metadata of a request by which servers know that it is one of these."""

_MOST_SECONDS, _MOST_ROWS, _LONGEST_REASON = 1e6, 1 << 20, 200


def _require_peer_id(text: str) -> str:
    if not is_peer_id(text):
        raise ValueError("is no peer id")
    return text


Block = Annotated[int, Field(ge=0, le=MOST_BLOCKS)]
Digest = Annotated[bytes, Field(min_length=32, max_length=32)]
Seconds = Annotated[float, Field(ge=0, le=_MOST_SECONDS)]


class _Message(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="ignore", allow_inf_nan=False)

    def packed(self) -> dict[str, Any]:
        """Returns what is sent."""
        return self.model_dump(exclude_none=True)


class Hop(_Message):
    """A server that a request is passed on to, and the blocks that it is to run."""

    peer: Annotated[str, AfterValidator(_require_peer_id)]
    start: Block
    end: Block
    patience: Seconds  # how long the server before it waits for its answer

    @model_validator(mode="after")
    def _has_blocks(self) -> Hop:
        if self.start >= self.end:
            raise ValueError("has no blocks")
        return self


class ChainRequest(_Message):
    """Metadata of a request, beside those that all requests have."""

    chain: Annotated[list[Hop], Field(max_length=MOST_HOPS - 1)]  # the servers after the one that it is sent to
    # positions in batch x length whose outputs are needed, if the last server runs the model's last block
    rows: Annotated[list[Annotated[int, Field(ge=0)]], Field(max_length=_MOST_ROWS)] | None = None
    ids: bool = False  # whether it has token ids instead of hidden states
    # digests of the deep prompts of each block, if servers are to keep them, or to use those that they keep
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
        """The peers that it is passed on to, with the first and one-past-last of their blocks."""
        return [(hop.peer, hop.start, hop.end) for hop in self.chain]

    def after_first(self) -> ChainRequest:
        """Returns the request that the next server is sent."""
        further = self.chain[-1].end - self.chain[0].start
        return ChainRequest(chain=self.chain[1:], rows=self.rows, prompts=self.prompts and self.prompts[-further:])


class HopTimes(_Message):
    """How long a server took, in seconds."""

    own: Seconds  # from the request to its own outputs
    call: Seconds = 0.0  # for passing them on, until the answer


class ChainAnswer(_Message):
    """Metadata of an answer."""

    end: Block  # one past the last block whose outputs these are
    hops: Annotated[list[HopTimes], Field(min_length=1, max_length=MOST_HOPS)]  # of each server until there
    why: str = ""  # why it was not passed on to the end; a hint

    @property
    def lacks_prompts(self) -> bool:
        """Whether the next server only lacked deep prompts."""
        return lacks_prompts(self.why)

    def times(self, sent_at: float, now: float) -> list[tuple[float, float]]:
        """Returns when each server got the request and was done with it, were the way from one to another none.

        Args:
            sent_at: when the request was sent.
            now: when the answer came.
        """
        times: list[tuple[float, float]] = []
        for hop in self.hops:
            done_at = min(now, max(sent_at, now - hop.call))  # whatever servers say
            times.append((sent_at, done_at))
            sent_at = done_at
        return times

    def behind(self, own: HopTimes) -> ChainAnswer:
        """Returns the answer of a server that has passed the request on, and got this one."""
        return self.model_copy(update={"hops": [own, *self.hops[: MOST_HOPS - 1]]})


def request_to(
    chain: Sequence[Span],
    patience: Sequence[float],
    rows: torch.Tensor | None,
    *,
    ids: bool,
    prompts: list[bytes] | None = None,
) -> ChainRequest:
    """Returns the request to the first one of a chain of servers.

    Args:
        chain: the servers and their blocks.
        patience: seconds to wait for each server and those after it.
        rows: positions in batch x length whose outputs are needed, int64 of shape [rows]; None for all.
        ids: whether token ids are sent.
        prompts: digests of the deep prompts of each block; None if they do not stand for these.
    """
    hops = [
        Hop(peer=str(span.peer), start=span.start, end=span.end, patience=seconds)
        for span, seconds in zip(chain[1:], patience[1:], strict=True)
    ]
    return ChainRequest(chain=hops, rows=None if rows is None else rows.tolist(), ids=ids, prompts=prompts)


def read_request(metadata: Mapping[str, Any]) -> ChainRequest | None:
    """Reads the metadata of a request; None if it is not one of these.

    Raises:
        ValueError: it is not a valid one.
    """
    return ChainRequest.model_validate(metadata) if CHAIN in metadata else None


def read_chain_answer(packed: bytes, ends: Sequence[int]) -> ChainAnswer:
    """Reads the metadata of an answer.

    Args:
        packed: the metadata.
        ends: one past the last block of each server of the chain.

    Raises:
        WrongAnswer: it is not a valid one, or does not end where one of the servers does.
    """
    try:
        answer = ChainAnswer.model_validate(unpack(packed))
    except ValidationError as error:
        raise WrongAnswer("an answer that does not say how far the request was passed on") from error
    if answer.end not in ends or len(answer.hops) != ends.index(answer.end) + 1:
        raise WrongAnswer(f"outputs of block {answer.end - 1}, where no server of the chain ends")
    return answer.model_copy(update={"why": printable(answer.why, _LONGEST_REASON)})
