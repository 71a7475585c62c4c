"""Reads a run on tasks of the lm-evaluation-harness: its results, and the documents that the harness has written."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dist_eval.errors import RunError
from dist_eval.results.harness import TaskMetric
from dist_eval.results.run import CompleteHarnessRun
from dist_eval.runs.files import PREDICTIONS
from dist_eval.runs.reading import read_run
from dist_eval.runs.saved_texts import read_as_samples

DocumentKey = tuple[str, int]
"""The hash of a document, and how often it came before in its task."""


@dataclass(frozen=True)
class TaskRun:
    """A complete run on tasks.

    Attributes:
        folder: the run's folder.
        results: content of `results.json`.
    """

    folder: Path
    results: CompleteHarnessRun
    _values: dict[str, dict[tuple[str, str], dict[DocumentKey, Any]]] = field(
        default_factory=dict, repr=False, compare=False
    )

    @classmethod
    def load(cls, folder: Path) -> TaskRun:
        """Reads a run.

        Raises:
            RunError: the folder holds no complete run on tasks.
        """
        results = read_run(folder)
        if not isinstance(results, CompleteHarnessRun):
            raise RunError(f"{folder} holds no run on tasks of the lm-evaluation-harness, but one on a dataset.")
        return cls(folder, results)

    def samples(self, task: str) -> Iterator[tuple[DocumentKey, dict[str, Any]]]:
        """Yields the samples of a task: documents with the model's answers, once for each filter.

        Raises:
            RunError: they cannot be read.
        """
        path = self.folder / self.results.files.samples[task]
        seen: Counter[tuple[str, str]] = Counter()
        try:
            for sample in read_as_samples(path) if path.name == PREDICTIONS else _lines(path):
                key = sample["doc_hash"], sample["filter"]
                yield (key[0], seen[key]), sample
                seen[key] += 1
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise RunError(f"{path} cannot be read: {error!r}.") from error

    def values(self, task: str) -> dict[tuple[str, str], dict[DocumentKey, Any]]:
        """Returns the values of a task's documents, by metric and filter; the file is read once."""
        if task not in self._values:
            self._values[task] = self._read_values(task)
        return self._values[task]

    def _read_values(self, task: str) -> dict[tuple[str, str], dict[DocumentKey, Any]]:
        metrics = self.results.tasks[task].metrics
        found: dict[tuple[str, str], dict[DocumentKey, Any]] = {(one.metric, one.filter): {} for one in metrics}
        for key, sample in self.samples(task):
            for (metric, filter_name), values in found.items():
                if sample["filter"] == filter_name and metric in sample:
                    values[key] = sample[metric]
        return found

    def metrics(self, task: str) -> Mapping[tuple[str, str], TaskMetric]:
        """Returns the metrics of a task, by metric and filter."""
        return {(one.metric, one.filter): one for one in self.results.tasks[task].metrics}


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as file:
        yield from map(json.loads, file)
