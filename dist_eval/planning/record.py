"""What `dist-eval plan --json` prints, as typed records."""

from __future__ import annotations

from dist_eval.results.inputs import DatasetSummary, PlanSummary
from dist_eval.results.record import Count, Record, Share


class TextLengths(Record):
    """Tokens of the texts as they are sent, without prompts."""

    shortest: Count
    """Of the shortest text."""
    median: float
    """Half of the texts have at most so many."""
    longest: Count
    """Of the longest text."""


class CutTexts(Record):
    """Texts longer than the limit."""

    texts: Count
    """How many are cut."""
    tokens: Count
    """Tokens that they lose together."""
    share: Share
    """Of the tokens of all texts."""
    median: float
    """Half of the texts that are cut lose at most so many."""
    most: Count
    """Most tokens that one of them loses."""


class LabelCount(Record):
    """A class or label of the head."""

    label: str
    """Its name."""
    examples: Count
    """Examples that have it."""
    share: Share
    """Of all examples."""


class TargetRange(Record):
    """An output of a regression's head."""

    output: str
    """Its name."""
    lowest: float
    """The lowest target."""
    mean: float
    """Mean of the targets."""
    highest: float
    """The highest target."""


class HopValues(Record):
    """Numbers that are sent to each server on the batches' route, each of 2 or 4 bytes by the server's dtype."""

    activations: Count
    """Of all batches, in one direction: the server returns as many."""
    prompts: Count
    """Deep prompts of one block, once for each batch."""


class RangeTraffic(Record):
    """What goes to and from the servers of a range of blocks."""

    start: Count
    """First block."""
    end: Count
    """One past the last block."""
    servers: Count
    """Servers that computed it in the probe."""
    share: Share
    """Of the tokens that took this range in the probe."""
    requests: Count
    """Requests."""
    bytes_sent: Count
    """To them: activations and deep prompts."""
    bytes_received: Count
    """From them."""


class TimeEstimate(Record):
    """The time that the forwards of a run are expected to take, if the swarm remains as it was in the probe."""

    seconds: float
    """Of the slowest rank, from the first batch sent to the last answer."""
    low: float | None
    """Lower limit of the interval, null if there were too few answers."""
    high: float | None
    """Upper limit of the interval, null if there were too few answers."""
    confidence: float
    """Confidence level of the interval."""
    start_up: float
    """Seconds from the start of the command to the first batch: imports, data, swarm and model."""
    probe_batches: Count
    """Batches that were answered in the probe."""
    probe_seconds: float
    """Duration of the probe."""
    tokens_per_second: float
    """Speed in the second half of the probe, with prompts and padding."""
    first_answer: float
    """Seconds until the first answer, which had the servers to itself."""


class PlannedRun(Record):
    """A run that has not been started."""

    ranks: Count
    """Number of processes."""
    data: DatasetSummary
    """The dataset."""
    confidence: Share
    """Confidence level of the run's intervals."""
    half_width: float | None
    """Half of the width that the interval of an accuracy of 1/2 will have: that of any other is narrower. Null for a
    regression, and with groups."""
    lengths: TextLengths
    """Tokens of its texts."""
    cut: CutTexts
    """What would be cut."""
    labels: list[LabelCount]
    """Of the head, in its order; empty for a regression."""
    targets: list[TargetRange]
    """Of a regression's head, else empty."""
    plan: PlanSummary
    """The batches."""
    hop: HopValues | None
    """What each server on the route gets, null without a swarm."""
    traffic: list[RangeTraffic]
    """By range of blocks, empty without a probe or a swarm."""
    time: TimeEstimate | None
    """Null without a probe."""
