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
    """That it predicted in this start."""
    samples: Count
    """Their examples."""
    resumed: Count
    """Examples of earlier starts that it brings."""
    tokens: Count
    """With prompts, without padding."""
    padded_tokens: Count
    """With prompts and padding."""
    seconds: Annotated[float, Field(ge=0)]
    """Time of its forwards."""
    in_flight: Count
    """Last size of its window."""
    traffic: Traffic | None
    """Null without a swarm."""


class RankResults(RankWork):
    """What a rank did, and what it contributed. Counts and times are of this start, unless they say otherwise."""

    combined: Count
    """Examples that it contributed to the results."""
    accuracy: Share | None
    """Of these, null without any and for a regression."""
    loss: float | None
    """Of these, null without any."""


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
    """Mean over the ranks, which is not the metric."""


class Throughput(Record):
    """Of the forwards, in the slowest rank's time."""

    seconds: float
    """The slowest rank's time."""
    examples_per_second: float
    """Of all ranks."""
    tokens_per_second: float
    """Of all ranks, without padding."""
