"""The sections of `results.json` that a complete run on tasks of the lm-evaluation-harness, or on prompts, has.

A run on prompts is like one on a single task, named after the dataset, whose documents are the rows.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from dist_eval.petals.client.records import Audit, Swarm
from dist_eval.record import Count, MetricValues, Reasons, Record
from dist_eval.results.inputs import (
    ContinuationsSummary,
    Coverage,
    FailedExample,
    PlanSummary,
    PromptsSummary,
    SelectionSummary,
    SessionsSummary,
    have_same_columns,
)
from dist_eval.results.scores import Groups, Interval, Slice
from dist_eval.results.work import RankWork, Throughput

LANGUAGE_MODELING: Literal["language_modeling"] = "language_modeling"
"""In the place of a classifier's problem type."""

NO_FILTER = "none"
"""The harness' name of the filter that takes the model's answers as they are."""


class GroupMetric(Record):
    """A metric that the harness aggregates over the tasks of a group."""

    metric: str
    """Its name."""
    filter: str
    """What the harness takes from the model's answers, none for the answers themselves."""
    value: float | None
    """Its value, null where undefined."""

    @property
    def key(self) -> str:
        """Its name, with that of its filter unless that is none: METRIC or METRIC/FILTER."""
        return self.metric if self.filter == NO_FILTER else f"{self.metric}/{self.filter}"


class TaskMetric(GroupMetric):
    """A metric of a task, as the harness computes it."""

    documents: Count
    """Documents with a value."""
    aggregation: str | None
    """The harness' function that aggregates the documents' values, null for a function of the task's own."""
    interval: Interval
    """Interval of the value, if that is a mean over documents or a function of such means."""
    higher_is_better: bool | None
    """Which direction is better, null if the task does not say."""


class TaskResults(Record):
    """A task of the harness."""

    version: str
    """Version of the task's definition."""
    num_fewshot: Count
    """Examples in front of each question."""
    documents: Count
    """Number of documents."""
    documents_digest: str | None = None
    """Hash of the documents; null for a run on prompts, or if an earlier version wrote it."""
    metrics: list[TaskMetric]
    """Its metrics."""

    def has_documents_of(self, other: TaskResults) -> bool:
        """Returns whether both have the same definition and documents, as far as is known."""
        digests = {self.documents_digest, other.documents_digest} - {None}
        return (self.version, self.documents) == (other.version, other.documents) and len(digests) < 2


class GroupResults(Record):
    """A group of tasks."""

    tasks: list[str]
    """Its tasks and groups."""
    metrics: list[GroupMetric]
    """Aggregated metrics."""


ResultsName = Annotated[str, Field(pattern=r"^results_[^/\x00]*\.json$")]
SamplesName = Annotated[str, Field(pattern=r"^(samples_[^/\x00]*\.jsonl|predictions\.parquet)$")]
"""Other names are refused, because these files are removed when the run is replaced."""


class TasksFiles(Record):
    """The files of a run on tasks, or on prompts, in its folder."""

    results: ResultsName | None
    """The harness' own results; null for a run on prompts."""
    samples: dict[str, SamplesName]
    """Documents with the model's answers, by task."""

    @property
    def names(self) -> list[str]:
        """Their names."""
        return [*([self.results] if self.results else []), *self.samples.values()]


class PromptedDataset(Record):
    """A dataset whose rows, as prompts, a language model continued."""

    source: str
    """Name of the dataset."""
    is_path: bool
    """Whether the name is a file or folder, not a hub name, or data in memory."""
    template: str
    """Text of the prompt, with names of columns in braces, within the system instruction or chat template."""
    reference_column: str
    """The column with the references that texts were compared with."""
    references_digest: str
    """Hash of the references."""
    column_digests: dict[str, str] = Field(default_factory=dict)
    """Hash of each column that the prompt names."""
    selection: SelectionSummary | None = None
    """Which rows were evaluated, null if all of them; the digests are of these rows."""
    few_shot_rows: list[Count] = Field(default_factory=list)
    """Positions of the examples before each prompt, in the file that they were drawn from."""
    few_shot_digest: str | None = None
    """Hash of the examples' text, null without examples."""
    unmatched: Count | None = None
    """Texts in which --answer-pattern finds no answer, null without a pattern."""
    groups: Groups | None = None
    """With --group-column: the clusters that resampling draws as a whole. The column group of predictions.parquet has
    the group of each row, by number."""

    def has_texts_of(self, other: PromptedDataset) -> bool:
        """Returns whether the columns that both prompts name, if any, have the same texts."""
        return have_same_columns(self, other) is not False


class LanguageModelSummary(Record):
    """The evaluated language model."""

    base: str
    """Its name."""
    base_is_path: bool
    """Whether that was a folder, not a hub name."""
    digest: str
    """Hash of its config and of samples of its weights."""
    tokenizer_digest: str
    """Hash of the tokenizer."""


class TasksResults(Record):
    """All sections that only a complete run on tasks or prompts has."""

    problem_type: Literal["language_modeling"]
    """What is evaluated: how a model continues texts."""
    tasks: dict[str, TaskResults]
    """The tasks by name."""
    groups: dict[str, GroupResults]
    """The groups by name, if the harness aggregates over them."""
    harness_version: str | None
    """Version of the lm-evaluation-harness; null for a run on prompts."""
    dataset: PromptedDataset | None = None
    """What prompts were made of; null for a run on tasks."""
    files: TasksFiles
    """Its files."""
    notices: list[str] = Field(default_factory=list)
    """Warnings of the harness, and what it ignores or what was replaced where that changes a metric."""
    slices: list[Slice] = Field(default_factory=list)
    """With --slice-by: parts of the dataset, column by column; empty for a run on tasks."""
    coverage: Coverage
    """The proof that each request was answered exactly once: continuations by a log-likelihood, prompts by a text."""
    failures: list[FailedExample] = Field(default_factory=list)
    """Rows of the dataset that failed; they are excluded from all metrics."""
    requests: ContinuationsSummary
    """The log-likelihoods that were requested: of choices, and of windows of texts."""
    prompts: PromptsSummary | None = None
    """The texts that were requested, null if none."""
    model: LanguageModelSummary
    """The model."""
    plan: PlanSummary
    """The batches; their tokens are those of distinct forwards, and of prompts with the longest texts that may follow
    them."""
    sessions: SessionsSummary | None = None
    """What was planned for sessions, null without any."""
    ranks: list[RankWork]
    """What each rank did; its examples are continuations and prompts."""
    throughput: Throughput
    """The speed of all ranks together."""
    swarm: Swarm | None
    """The servers, null without a swarm."""
    audit: Audit | None = None
    """The results of auditing, null if nothing was audited."""

    @property
    def tables(self) -> list[str]:
        """The names of the files beside `results.json` without which the run is not complete."""
        return self.files.names

    @property
    def metrics(self) -> MetricValues:
        """The metrics of all tasks, and then of all groups, as TASK/METRIC, with a filter as TASK/METRIC/FILTER."""
        metrics = [*self.task_metrics, *self.group_metrics]
        return {f"{name}/{metric.key}": metric.value for name, metric in metrics}

    @property
    def intervals(self) -> dict[str, Interval]:
        """The interval of each metric of a task."""
        return {f"{task}/{metric.key}": metric.interval for task, metric in self.task_metrics}

    @property
    def undefined(self) -> Reasons:
        """For each metric of a task that is undefined, why."""
        return {
            f"{task}/{metric.key}": metric.interval.reason or ""
            for task, metric in self.task_metrics
            if metric.value is None
        }

    @property
    def main_metrics(self) -> list[str]:
        """Names of the metrics of groups and tasks that belong to no group."""
        inside = {name for group in self.groups.values() if group.metrics for name in group.tasks}
        groups = [f"{group}/{metric.key}" for group, metric in self.group_metrics if group not in inside]
        return groups + [f"{task}/{metric.key}" for task, metric in self.task_metrics if task not in inside]

    @property
    def task_metrics(self) -> list[tuple[str, TaskMetric]]:
        """The metrics of all tasks, each with the name of its task."""
        return [(name, metric) for name, task in self.tasks.items() for metric in task.metrics]

    @property
    def group_metrics(self) -> list[tuple[str, GroupMetric]]:
        """The metrics of all groups, each with the name of its group."""
        return [(name, metric) for name, group in self.groups.items() for metric in group.metrics]
