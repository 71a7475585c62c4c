"""Records of a swarm: what servers announce, what was sent to them, what audits found. They are parts of JSON files."""

from __future__ import annotations

from typing import Annotated, NamedTuple

from pydantic import Field

from dist_eval.record import Count, Number, Record


class RouteSegment(NamedTuple):
    """A segment of a batch's route through a swarm."""

    peer: str  # the server's peer id
    start: int  # its first block
    end: int  # one past its last block
    # dtype in which the server computed, and its quantization if any; None if that is unknown
    precision: str | None = None


class Announcement(Record):
    """What a server announces about how it computes; null where it does not."""

    dtype: str | None = None
    """Dtype that it computes in."""
    quantization: str | None = None
    """How its weights are quantized, none if they are not."""
    version: str | None = None
    """Version of Petals."""
    adapters: tuple[str, ...] | None = None
    """LoRA adapters that it holds."""

    @property
    def precision(self) -> str:
        """Dtype, and quantization if there is any, in words."""
        return (self.dtype or "?") + ("" if self.quantization in (None, "none") else f" ({self.quantization})")


class ServerTraffic(Record):
    """What one rank sent to one server."""

    peer: str
    """The server's peer ID."""
    announced: Announcement
    """What it announced when it was last used."""
    requests: Count
    """Requests that it answered, also those that other servers passed on to it."""
    failures: Count
    """Requests that it did not answer."""
    wrong_answers: Count
    """Answers that were no valid outputs."""
    token_blocks: Annotated[int | float, Field(ge=0)]
    """Tokens times blocks that it computed."""
    latency_p50: float | None
    """Seconds from request to answer: the median. Of those that servers passed on, without the time of the others."""
    latency_p95: float | None
    """Seconds from request to answer: the 95th percentile."""


class Traffic(Record):
    """What a rank sent to a swarm."""

    compression: str
    """Precision of transferred activations."""
    round_trips: Count
    """Requests that were answered, each by one server or by several that passed it on."""
    retries: Count
    """Requests that were sent again."""
    halved: Count
    """Requests that were cut in two because a server refused their size."""
    bytes_sent: Count
    """Of tensors."""
    bytes_received: Count
    """Of tensors."""
    servers: list[ServerTraffic]
    """Of each server."""


class ServerSpan(Announcement):
    """A server and the consecutive blocks that it holds."""

    peer_id: str
    """The server's identity."""
    start: Count
    """First block."""
    end: Count
    """One past the last block."""
    state: str
    """online, joining or offline; unfit if its version of Petals does not compute the model."""
    throughput: Number
    """Requests per second that the server announces."""
    name: str | None
    """Public name, if any."""
    seconds_per_token: float | None = None
    """For a token of a forward through all its blocks, as it announces; null if it does not."""
    free_cache: Count | None = None
    """Tokens for which its attention cache has room, as it announces; null if it does not."""


class Swarm(Record):
    """The servers of a model's blocks at the start."""

    dht_prefix: str
    """Name under which the blocks are announced."""
    num_blocks: Count
    """Blocks of the model."""
    missing_blocks: list[Count]
    """Blocks without an online server."""
    replicas_per_block: list[Count]
    """Number of online servers of each block."""
    servers: list[ServerSpan]
    """All announced servers, by first block."""
    dropped_records: Count
    """How many records of servers were dropped, because they are implausible."""
    precisions: list[str] | None = None
    """Dtypes, with the quantization if there is any, in which the servers computed that gave the answers, in all starts
    of the run; null for a tuning. If there are several, the metrics depend on which server got which batch."""


class AuditedServer(Record):
    """How often a server's answers were confirmed."""

    peer: str
    """The server's peer ID."""
    agreed: Count
    """Batches in which it agreed with another server."""
    disagreed: Count
    """Batches in which it did not."""
    odd: bool
    """Whether others agree against it."""


class Dispute(Record):
    """A difference between servers that no third server could decide."""

    peers: tuple[str, ...]
    """The servers' peer IDs."""
    blocks: tuple[Count, Count]
    """First block, and one past the last block."""
    difference: float
    """Largest difference between their answers."""
    why: str
    """Why it could not be decided."""


class Audit(Record):
    """What a second opinion about some batches found."""

    fraction: Annotated[int | float, Field(ge=0, le=1)]
    """Share of the batches that were to be audited."""
    batches: Count
    """That got a second opinion."""
    alone: Count
    """For which no other server was there."""
    unanswered: Count
    """For which the other server failed."""
    largest_difference: float
    """Between logits that count as equal."""
    servers: list[AuditedServer]
    """Those that took part, by peer ID."""
    disputes: Count
    """Differences that nobody can settle."""
    first_disputes: list[Dispute]
    """The first of them."""
