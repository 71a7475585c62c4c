"""The content of `tuning.json`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, TypeAdapter

from dist_eval.petals.client.records import Swarm, Traffic
from dist_eval.record import Count, MetricValues, Record
from dist_eval.results.inputs import Coverage, DatasetSummary, ModelSummary
from dist_eval.results.run import RunHeader


class EpochResults(Record):
    """A finished epoch of a tuning."""

    epoch: Annotated[int, Field(ge=1)]
    """Its number, from 1."""
    loss: float | None
    """Mean loss in nats of the training examples, each before its update; null if all updates were skipped."""
    updates: Count
    """Number of updates."""
    seconds: Annotated[float, Field(ge=0)]
    """Seconds that it took; if it was resumed, only those of the last start."""
    metrics: MetricValues | None
    """Metrics of the evaluation data after the epoch, null without such data."""


class BestEpoch(Record):
    """The epoch whose checkpoint is in `best/`."""

    epoch: Annotated[int, Field(ge=1)]
    """Its number, from 1."""
    metric: str
    """The metric by which it is the best."""
    value: float | None
    """Its value, null where undefined."""


class TuningRank(Record):
    """What a rank of a tuning did."""

    rank: Count
    """Its number."""
    host: str
    """Its host."""
    traffic: Traffic | None
    """Null without a swarm."""


class TuningProgress(Record):
    """The sections of `tuning.json` after an epoch."""

    epochs: list[EpochResults]
    """The finished epochs."""
    best: BestEpoch | None
    """The best of them, null without evaluation data."""
    data: DatasetSummary
    """The training data."""
    evaluation_data: DatasetSummary | None
    """The evaluation data, if any."""
    model: ModelSummary
    """The model."""
    swarm: Swarm | None
    """The servers, null without a swarm."""


class StartedTuning(RunHeader):
    """The content of `tuning.json` before the first epoch is finished."""

    coverage: Coverage | None = None
    """Coverage of the evaluation data, if it made the tuning fail."""


class TuningRun(TuningProgress, RunHeader):
    """The content of `tuning.json` after the first epoch."""

    ranks: list[TuningRank] | None = None
    """What each rank did, once the tuning is complete."""
    coverage: Coverage | None = None
    """Coverage of the evaluation data, if it made the tuning fail."""


TUNING: TypeAdapter[StartedTuning | TuningRun] = TypeAdapter(StartedTuning | TuningRun)
"""Reads `tuning.json`."""
