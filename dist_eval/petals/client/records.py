"""Records of a swarm in JSON files: announcements of servers, traffic, and results of audits."""

from __future__ import annotations

from typing import Annotated, NamedTuple

from pydantic import Field

from dist_eval.record import Count, Number, Record


class RouteSegment(NamedTuple):
    """A segment of a batch's route through a swarm."""

    peer: str  # the server's peer id
    start: int  # its first block
    end: int  # one past its last block
    # dtype in which the server computed, and its quantization if any; None if unknown
    precision: str | None = None


class Announcement(Record):
    """How a server computes, as it announces; null if not announced."""

    dtype: str | None = None
    """Dtype that it computes in."""
    quantization: str | None = None
    """Quantization of its weights, or none."""
    version: str | None = None
    """Version of Petals."""
    adapters: tuple[str, ...] | None = None
    """Its LoRA adapters."""

    @property
    def precision(self) -> str:
        """Dtype and quantization, if any, in words."""
        return (self.dtype or "?") + ("" if self.quantization in (None, "none") else f" ({self.quantization})")


class ServerTraffic(Record):
    """Traffic between one rank and one server."""

    peer: str
    """The server's peer ID."""
    announced: Announcement
    """Its announcement when it was last used."""
    requests: Count
    """Requests that it answered, including those that other servers passed on to it."""
    failures: Count
    """Requests that it did not answer."""
    wrong_answers: Count
    """Answers that were not valid outputs."""
    token_blocks: Annotated[int | float, Field(ge=0)]
    """Tokens times blocks that it computed."""
    latency_p50: float | None
    """Median seconds from request to answer. For passed requests, without the time of the other servers."""
    latency_p95: float | None
    """Seconds from request to answer: the 95th percentile."""


class Traffic(Record):
    """Traffic between a rank and a swarm."""

    compression: str
    """Compression of transferred activations."""
    round_trips: Count
    """Requests that were answered, each by one server or by several that passed it on."""
    retries: Count
    """Requests that were sent again."""
    halved: Count
    """Requests that were halved because servers refused their size."""
    bytes_sent: Count
    """Bytes of tensors sent."""
    bytes_received: Count
    """Bytes of tensors received."""
    servers: list[ServerTraffic]
    """Traffic with each server."""


class ServerSpan(Announcement):
    """A server and the consecutive blocks that it holds."""

    peer_id: str
    """The server's peer ID."""
    start: Count
    """First block."""
    end: Count
    """One past the last block."""
    state: str
    """online, joining or offline; unfit if its version of Petals does not compute the model."""
    throughput: Number
    """Announced requests per second."""
    name: str | None
    """Public name, if any."""
    seconds_per_token: float | None = None
    """Announced seconds for a token of a forward through all its blocks; null if not announced."""
    free_cache: Count | None = None
    """Announced tokens for which its attention cache has room; null if not announced."""


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
    """Number of implausible records of servers that were dropped."""
    precisions: list[str] | None = None
    """Dtypes, with the quantization if any, of all servers that answered, in all starts of the run; null for a tuning.
    If there are several, the metrics depend on which server got which batch."""


class AuditedServer(Record):
    """How often a server's answers were confirmed."""

    peer: str
    """The server's peer ID."""
    agreed: Count
    """Batches in which it agreed with another server."""
    disagreed: Count
    """Batches in which it did not."""
    odd: bool
    """Whether a majority of other servers disagrees with it."""


class Dispute(Record):
    """A difference between servers that other servers could not decide."""

    peers: tuple[str, ...]
    """The servers' peer IDs."""
    blocks: tuple[Count, Count]
    """First block, and one past the last block."""
    difference: float
    """Largest difference between their answers."""
    why: str
    """Why it could not be decided."""


class Audit(Record):
    """Results of recomputing some batches on other servers."""

    fraction: Annotated[int | float, Field(ge=0, le=1)]
    """Share of the batches to be audited."""
    batches: Count
    """Batches that got a second opinion."""
    alone: Count
    """Batches for which there was no other server."""
    unanswered: Count
    """Batches for which the other server failed."""
    largest_difference: float
    """Largest difference between logits that count as equal."""
    servers: list[AuditedServer]
    """Servers that took part, by peer ID."""
    disputes: Count
    """Number of undecided differences."""
    first_disputes: list[Dispute]
    """The first undecided differences."""
