"""What ranks did: their work, and how fast it was."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from dist_eval.petals.client.records import Traffic
from dist_eval.record import Count, Record, Share, Time


class RankWork(Record):
    """What a rank did. Counts and times are of this start, unless they say otherwise."""

    rank: Count
    """Its number."""
    host: str
    """Its host."""
    began: Time
    """When it was ready to send batches."""
    batches: Count
    """Batches that it predicted since this start."""
    samples: Count
    """Examples in these batches."""
    resumed: Count
    """Examples finished by earlier starts, which it read from the journal."""
    tokens: Count
    """Tokens in these batches, with prompts, without padding."""
    padded_tokens: Count
    """The same with padding."""
    seconds: Annotated[float, Field(ge=0)]
    """Seconds that its requests took together."""
    in_flight: Count
    """Requests in flight at the end."""
    traffic: Traffic | None
    """What it exchanged with servers, null without a swarm."""


class RankResults(RankWork):
    """What a rank did, and what it contributed. Counts and times are of this start, unless they say otherwise."""

    combined: Count
    """Examples that it contributed to the results."""
    accuracy: Share | None
    """Accuracy over these; null without any, and for a regression."""
    loss: float | None
    """Mean loss over these, null without any."""


class Spread(Record):
    """How far apart the ranks' own values are, and what averaging them would give."""

    figure: Literal["accuracy", "loss"]
    """The metric."""
    lowest: float
    """The lowest value."""
    lowest_rank: Count
    """The rank that has it."""
    highest: float
    """The highest value."""
    highest_rank: Count
    """The rank that has it."""
    mean: float
    """Mean over the ranks, for comparison only: the metric is over all examples."""


class Throughput(Record):
    """Speed of all ranks, by the time of the slowest."""

    seconds: float
    """The slowest rank's time."""
    examples_per_second: float
    """Of all ranks."""
    tokens_per_second: float
    """Of all ranks, without padding."""
