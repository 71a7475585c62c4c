"""The content of `results.json`, by the status of the run."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias, cast

from pydantic import Field, TypeAdapter

from dist_eval.petals.client.records import Audit, Swarm
from dist_eval.record import Count, MetricValues, Record, Time
from dist_eval.results.inputs import (
    Coverage,
    DatasetSummary,
    Environment,
    FailedExample,
    ModelSummary,
    PlanSummary,
    SessionsSummary,
)
from dist_eval.results.scores import Analysis, Scores
from dist_eval.results.tasks import TasksResults
from dist_eval.results.work import RankResults, Spread, Throughput

OptionValue = bool | int | float | str | list[str] | dict[str, Any] | None
RecordedOptions = dict[str, OptionValue]
"""All options by name; `initial_peers` says how many addresses there were, which are not recorded.

No record, because each option is declared once, in `dist_eval.options`, and files of other versions have other options.
The schema is made from these declarations. `dist_eval.arguments.fields.Options.recorded_in` returns a group of them.
"""


class RunFailure(Record):
    """Why a run is incomplete or failed."""

    message: str
    """Message for the user."""
    rank: Count
    """The rank that reported it."""
    host: str
    """Its host."""
    transient: bool
    """Whether the same command may get further if it is started again unchanged."""


class Digests(Record):
    """Hashes (SHA-256) by which damage to the files of a run is found when they are read again."""

    content: str
    """Hash of all other values in this file."""
    files: dict[str, str]
    """Hashes of the tables beside it, by name."""


class Revisions(Record):
    """The commits on a hub of which a run has read all files."""

    model: str | None = None
    """Commit of the model, null without --revision."""
    dataset: str | None = None
    """Commit of the dataset, null without --dataset-revision."""


class RunHeader(Record):
    """What is known of every run."""

    schema_version: Literal[2]
    """Version of the format, incremented by each incompatible change."""
    status: Literal["running", "incomplete", "failed", "complete"]
    """A run that is not complete continues when the same command is started again; incomplete: it was asked to stop."""
    error: RunFailure | None
    """Why it is incomplete or failed."""
    started: Time
    """When it was started."""
    finished: Time | None
    """When it ended, null while running."""
    config: RecordedOptions
    """All options, as in --help."""
    revisions: Revisions | None = None
    """Which commits were read, null if no revision was asked for."""
    chat_time: str | None = None
    """Local time at the first start, which chat templates with a date show; null without --apply-chat-template."""
    environment: Environment
    """Software versions."""
    digests: Digests = Digests(content="", files={})
    """Hashes of this file's content, and of the tables beside it."""

    @property
    def tables(self) -> list[str]:
        """The names of the files beside it without which a run with these results is not complete."""
        return []

    @property
    def confidence(self) -> float:
        """Confidence level of the intervals of an evaluation."""
        return cast(float, self.config["confidence"])


class RunningRun(RunHeader):
    """A run that has not ended, or was killed."""

    status: Literal["running"]
    """It has not ended, or was killed."""
    error: None
    """Always null."""
    finished: None
    """Always null."""


class EndedRun(RunHeader):
    """A run that was stopped, or that failed."""

    status: Literal["incomplete", "failed"]
    """It was asked to stop, or it failed; the same command resumes it."""
    error: RunFailure
    """Why."""
    finished: Time
    """When it ended."""
    coverage: Coverage | None = None
    """How many examples have a prediction, null if that is not known."""


class EvaluationResults(Analysis, Scores):
    """All sections that only a complete run on a dataset has."""

    coverage: Coverage
    """How many examples were expected, counted, and missing."""
    failures: list[FailedExample]
    """Examples that failed; they are excluded from all metrics."""
    data: DatasetSummary
    """The dataset."""
    model: ModelSummary
    """The model."""
    plan: PlanSummary
    """The batches."""
    sessions: SessionsSummary | None = None
    """What was planned for sessions, null without any."""
    ranks: list[RankResults]
    """What each rank did."""
    spread: Spread | None
    """How far apart the ranks' own values are; null with fewer than two ranks that contributed examples."""
    throughput: Throughput
    """The speed of all ranks together."""
    swarm: Swarm | None
    """The servers, null without a swarm."""
    audit: Audit | None
    """The results of auditing, null if nothing was audited."""

    @property
    def tables(self) -> list[str]:
        """The names of the files beside `results.json` without which the run is not complete."""
        return ["predictions.parquet"]


class CompleteRun(EvaluationResults, RunHeader):
    """A complete run."""

    status: Literal["complete"]
    """Every example was evaluated, or is listed among the failures."""
    error: None
    """Always null."""
    finished: Time
    """When it ended."""


class CompleteTasksRun(TasksResults, RunHeader):
    """A complete run on tasks of the lm-evaluation-harness, or on prompts after which texts were generated."""

    status: Literal["complete"]
    """Every request has an answer."""
    error: None
    """Always null."""
    finished: Time
    """When it ended."""


AnyCompleteRun: TypeAlias = CompleteRun | CompleteTasksRun
"""Content of `results.json` of a complete run."""


def metrics_with_limits(results: AnyCompleteRun) -> MetricValues:
    """Returns the metrics by name, and the limits of their intervals as NAME/low and NAME/high."""
    values: MetricValues = dict(results.metrics)
    for name, interval in results.intervals.items():
        values |= {f"{name}/low": interval.low, f"{name}/high": interval.high}
    return values


_Complete = Annotated[AnyCompleteRun, Field(discriminator="problem_type")]
Run = Annotated[RunningRun | EndedRun | _Complete, Field(discriminator="status")]
"""The content of `results.json`."""

RUN: TypeAdapter[RunningRun | EndedRun | AnyCompleteRun] = TypeAdapter(Run)
"""Reads it, and makes its schema."""
