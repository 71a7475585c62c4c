"""Reads a run on tasks of the lm-evaluation-harness or on prompts: its results, and its documents with the answers."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dist_eval.errors import RunError
from dist_eval.metrics.texts import USUAL_METRICS
from dist_eval.results.run import CompleteTasksRun
from dist_eval.results.tasks import NO_FILTER, TaskMetric
from dist_eval.runs.files import PREDICTIONS
from dist_eval.runs.saved_samples import read_texts

DocumentKey = tuple[str, int]
"""Identifies a document in all runs, and counts equal ones before it in its task."""

# the harness divides the log-likelihood of a choice by this length, by metric, before it takes the largest
_UNITS = {"acc_norm": "nats per character", "acc_bytes": "nats per byte"}
_LENGTHS: dict[str, Callable[[str], int]] = {
    "acc": lambda choice: 1,
    "acc_norm": lambda choice: max(1, len(choice)),
    "acc_bytes": lambda choice: max(1, len(choice.encode())),
}


@dataclass(frozen=True)
class Sample:
    """A document with the model's answer."""

    number: int  # number of the document in its task
    filter: str  # the harness' filter that the values belong to
    target: str  # the right answer, or the number of the right choice
    context: str  # the text that the model continued
    choices: list[tuple[str, float]]  # continuations of the context, each with its log-likelihood in nats
    text: str | None  # the generated text; None if there is none
    values: Mapping[str, Any]  # value by name of the metric
    found: str = ""  # describes what a pattern found in the text; empty without a pattern
    group: int | None = None  # number of the group of a row; None without groups

    def answer(self, metric: str, *, with_texts: bool) -> tuple[str, str, str]:
        """Returns target, answer and score; with several choices, the answer is the one that the metric selects.

        Without `with_texts`, no texts of the document are shown, only numbers of choices.
        """
        target = self.target if with_texts else "–"
        if self.text is not None:
            return (target, self.text, self.found) if with_texts else (target, "–", "")
        if len(self.choices) < 2:
            return target, "–", f"log-likelihood {self.choices[0][1]:.4g}" if self.choices else ""
        if metric not in _LENGTHS:
            return target, "–", ""
        names = [choice if with_texts else f"choice {number}" for number, (choice, _) in enumerate(self.choices)]
        scores = [likelihood / _LENGTHS[metric](choice) for choice, likelihood in self.choices]
        best = max(range(len(scores)), key=scores.__getitem__)
        if not self.target.isdigit() or int(self.target) >= len(names):
            return target, names[best], f"log-likelihood {scores[best]:.4g}"
        right = int(self.target)
        return names[right], names[best], f"likelier by {scores[best] - scores[right]:.4g} {_UNITS.get(metric, 'nats')}"


@dataclass(frozen=True)
class TaskRun:
    """A complete run on tasks or prompts."""

    folder: Path  # the run's folder
    results: CompleteTasksRun  # content of `results.json`
    _values: dict[str, dict[str, dict[DocumentKey, Any]]] = field(default_factory=dict, repr=False, compare=False)

    def samples(self, task: str) -> Iterator[tuple[DocumentKey, Sample]]:
        """Yields the documents of a task with the model's answers, once for each filter."""
        path = self.folder / self.results.files.samples[task]
        seen: Counter[tuple[str, str]] = Counter()
        try:
            for digest, sample in _read_generated(path) if path.name == PREDICTIONS else _read_harness(path):
                key = digest, sample.filter
                yield (digest, seen[key]), sample
                seen[key] += 1
        except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError) as error:
            raise RunError(f"{path} cannot be read: {error!r}.") from error

    def values(self, task: str) -> dict[str, dict[DocumentKey, Any]]:
        """Returns the values of a task's documents, by name of the metric (see `TaskMetric.key`); reads them once."""
        if task not in self._values:
            metrics = self.results.tasks[task].metrics
            found: dict[str, dict[DocumentKey, Any]] = {metric.key: {} for metric in metrics}
            for key, sample in self.samples(task):
                for metric in metrics:
                    if sample.filter == metric.filter and metric.metric in sample.values:
                        found[metric.key][key] = sample.values[metric.metric]
            self._values[task] = found
        return self._values[task]

    def shares(self, task: str) -> list[TaskMetric]:
        """Returns the metrics of a task that are 0 or 1 for each document."""
        names = USUAL_METRICS if self.results.dataset else ()
        metrics = self.results.tasks[task].metrics
        return [metric for metric in metrics if metric.interval.method == "wilson" or metric.metric in names]

    def groups(self, task: str) -> dict[DocumentKey, int]:
        """Returns the number of the group of each document; empty without groups."""
        return {key: sample.group for key, sample in self.samples(task) if sample.group is not None}


def _read_harness(path: Path) -> Iterator[tuple[str, Sample]]:
    with path.open(encoding="utf-8") as file:
        for line in map(json.loads, file):
            requests, answers = list(line["arguments"].values()), line["filtered_resps"]
            context = requests[0].get("arg_0")
            choices, text = [], None
            if isinstance(requests[0].get("arg_1"), dict):  # how a text was generated
                text = "\n".join(map(str, answers[0])) if isinstance(answers[0], list) else str(answers[0])
            else:
                choices = [
                    (str(request.get("arg_1", "")).strip(), float(answer[0]))
                    for request, answer in zip(requests, answers, strict=False)
                    if request.get("arg_0") == context and isinstance(answer, list)
                ]
            yield (
                line["doc_hash"],
                Sample(line["doc_id"], line["filter"], str(line["target"]), str(context), choices, text, line),
            )


def _read_generated(path: Path) -> Iterator[tuple[str, Sample]]:
    """Yields generated texts, each with a key by which two runs are paired: its position and references."""
    texts = read_texts(path)
    rows = zip(texts.index.tolist(), texts.references, texts.text, strict=True)
    values = {name: texts.numbers(name) for name in texts.values}
    for place, (index, references, text) in enumerate(rows):
        found = ""
        if texts.answer is not None:
            answer = texts.answer[place]
            found = "no match of --answer-pattern" if answer is None else f"answer {answer!r}"
        sample = Sample(
            number=index,
            filter=NO_FILTER,
            target=" | ".join(references),
            context="",
            choices=[],
            text=text,
            values={name: numbers[place] for name, numbers in values.items()},
            found=found,
            group=None if texts.group is None else int(texts.group[place]),
        )
        yield f"{index} {references!r}", sample
