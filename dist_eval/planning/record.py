"""The output of `dist-eval plan --json` as typed records, and those computed from a tokenized dataset."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from pydantic import Field

from dist_eval.data.dataset import TokenizedDataset
from dist_eval.petals.base_model.problem_types import REGRESSION, Problem
from dist_eval.record import Count, Record, Share
from dist_eval.results.inputs import DatasetSummary, PlanSummary, PromptsSummary
from dist_eval.results.tasks import PromptedDataset


class TextLengths(Record):
    """Tokens of the texts as sent, without soft prompts; with --generate, of the prompts."""

    shortest: Count
    median: float
    longest: Count


class CutTexts(Record):
    """Texts longer than the limit."""

    texts: Count
    tokens: Count  # lost by all of them together
    share: Share  # of the tokens of all texts
    median: float  # tokens lost by a cut text
    most: Count  # maximum of tokens lost by a text


class LabelCount(Record):
    """A class or label of the head."""

    label: str
    examples: Count
    share: Share  # of all examples


class TargetRange(Record):
    """An output of a regression's head."""

    output: str
    lowest: float
    mean: float
    highest: float


class NetworkValues(Record):
    """Network traffic if servers pass requests on: ids of 8 bytes, and numbers of 2 or 4 bytes, by the dtype."""

    ids: Count  # ids that ranks send
    prompts: Count  # numbers in soft prompts that ranks send with each batch
    deep_prompts: Count  # numbers in deep prompts that ranks send, each rank once
    outputs: Count  # numbers that ranks receive
    activations: Count  # numbers that each server passes on to the next


class TimeEstimate(Record):
    """The expected time of a run's forwards, if the swarm stays as it was during the probe."""

    seconds: float  # of the slowest rank, from the first batch sent to the last answer
    low: float | None  # at the highest and lowest speed of six parts of the probe; null if there were too few answers
    high: float | None
    start_up: float  # seconds from the start of the command to the first batch: imports, data, swarm and model
    probe_batches: Count  # answered in the probe
    probe_seconds: float
    tokens_per_second: float  # in the second half of the probe, with prompts and padding
    first_answer: float  # seconds until the first answer, while servers had no other work


class PlannedRun(Record):
    """A run that has not been started."""

    ranks: Count
    examples: Count
    data: DatasetSummary | PromptedDataset
    prompts: PromptsSummary | None = None  # with --generate, else null
    confidence: Share  # level of the run's intervals
    half_width: float | None
    """Half of the width of the interval for an accuracy of 1/2, the widest one. Null for a regression, and with
    groups."""
    lengths: TextLengths
    cut: CutTexts | None = None  # null with --generate (see `prompts`)
    labels: list[LabelCount] = Field(
        default_factory=list
    )  # of the head, in its order; empty for a regression, and with --generate
    targets: list[TargetRange] = Field(default_factory=list)  # of a regression's head, else empty
    plan: PlanSummary  # with --generate, of prompts with the longest possible texts
    network: NetworkValues | None  # null without a swarm
    time: TimeEstimate | None  # null without a probe


def text_lengths(lengths: np.ndarray) -> TextLengths:
    """Summarizes tokens of texts, integers of shape [n], n at least 1."""
    return TextLengths(shortest=int(lengths.min()), median=float(np.median(lengths)), longest=int(lengths.max()))


def cut_texts(data: TokenizedDataset) -> CutTexts:
    """Summarizes the tokens that too long texts lost."""
    lost, kept = int(data.cut.sum()), int(data.lengths.sum(dtype=np.int64))
    return CutTexts(
        texts=len(data.cut),
        tokens=lost,
        share=lost / (lost + kept),
        median=float(np.median(data.cut)) if len(data.cut) else 0.0,
        most=int(data.cut.max(initial=0)),
    )


def label_counts(labels: np.ndarray, names: Sequence[str], problem: Problem) -> list[LabelCount]:
    """Counts the examples of each class or label, with its name; none for a regression."""
    if problem is REGRESSION:
        return []
    counts = labels.sum(axis=0) if problem.is_wide else np.bincount(labels, minlength=len(names))
    return [
        LabelCount(label=name, examples=int(count), share=float(count / len(labels)))
        for name, count in zip(names, counts, strict=True)
    ]


def target_ranges(labels: np.ndarray, names: Sequence[str], problem: Problem) -> list[TargetRange]:
    """Summarizes the targets of each output of a regression, with its name; none for other problem types."""
    if problem is not REGRESSION:
        return []
    return [
        TargetRange(output=name, lowest=float(values.min()), mean=float(values.mean()), highest=float(values.max()))
        for name, values in zip(names, labels.T, strict=True)
    ]
