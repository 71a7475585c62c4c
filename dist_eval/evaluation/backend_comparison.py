"""Compares the swarm's answers with those of a local model (`--compare-backends`).

Every rank computes its assigned batches once more, the same rows in the same order, with the base model in its own
process, and compares the answers with those in the journal. So the comparison covers exactly what the results are
computed from, whichever start of the run predicted it. The local answers are not kept: a run that is stopped meanwhile
compares everything again when it is restarted.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dist_eval.data.answers import column_names
from dist_eval.data.dataset import TokenizedDataset
from dist_eval.data.plan import Plan
from dist_eval.data.problem_types import MULTI_LABEL, REGRESSION, Problem, exact_matches, problem_of
from dist_eval.errors import RunError, translating_os_errors
from dist_eval.inference.forward import TextModel, checked_answers
from dist_eval.metrics.predictions import Predictions
from dist_eval.process.files import write_atomically
from dist_eval.results.work import Answer, BackendComparison, ChangedPrediction
from dist_eval.runs.files import CHANGES
from dist_eval.runs.journal import Journal
from dist_eval.swarm.router import Routing

_LISTED = 20


@dataclass
class Comparison:
    """The differences between two backends.

    Attributes:
        compared: number of examples.
        largest_difference: largest absolute difference of two answers to one example, in any column.
        changed: examples with another prediction: position in the dataset, and both answers. None for a regression,
            where any difference would count.
        left: batches that were not compared, because the run was asked to stop.
        failed: examples of all batches that have no answer to compare.
    """

    compared: int = 0
    largest_difference: float = 0.0
    changed: list[ChangedPrediction] | None = field(default_factory=list)
    left: int = 0
    failed: int = 0

    @classmethod
    def merged(cls, parts: Sequence[Comparison]) -> Comparison:
        """Merges the comparisons of all ranks, with the changes in dataset order."""
        changed = [change for part in parts for change in part.changed or ()]
        return cls(
            compared=sum(part.compared for part in parts),
            largest_difference=max(part.largest_difference for part in parts),
            changed=None if parts[0].changed is None else sorted(changed, key=lambda change: change.index),
            left=sum(part.left for part in parts),
            failed=sum(part.failed for part in parts),
        )

    def summary(self, folder: Path) -> BackendComparison:
        """Returns the section `backends` of `results.json`; changes that do not fit there are written to a file.

        Args:
            folder: the run's folder.

        Raises:
            RunError: the file cannot be written.
        """
        changed = self.changed or []
        is_long = len(changed) > _LISTED
        if is_long:
            lines = "".join(json.dumps(change.to_json()) + "\n" for change in changed)
            with translating_os_errors(RunError, f"{folder / CHANGES} cannot be written"):
                write_atomically(folder / CHANGES, lines.encode())
        return BackendComparison(
            compared=self.compared,
            largest_difference=self.largest_difference,
            changed=None if self.changed is None else len(changed),
            examples=changed[:_LISTED],
            file=CHANGES if is_long else None,
        )


def compare_backends(
    local: TextModel,
    data: TokenizedDataset,
    plan: Plan,
    journal: Journal,
    batches: np.ndarray,
    stopping: Callable[[], bool] = lambda: False,
) -> Comparison:
    """Compares this rank's batches.

    Args:
        local: the model in this process.
        data: the tokenized examples.
        plan: all batches.
        journal: holds the swarm's answers.
        batches: numbers of this rank's batches, integers of shape [n].
        stopping: returns whether to stop.

    Returns:
        This rank's part of the comparison.

    Raises:
        ModelOutputError: the local model's outputs are no predictions.
    """
    is_regression = problem_of(data.labels.dtype) is REGRESSION
    found = Comparison(changed=None if is_regression else [], left=len(batches))
    for outcome in journal.outcomes(batches):
        found.failed += len(outcome.failed)
        if stopping():
            continue
        rows = plan.batch(outcome.batch)
        input_ids, lengths = data.padded(rows)
        ours = checked_answers(local, torch.from_numpy(input_ids), torch.from_numpy(lengths), Routing())
        kept = np.setdiff1d(np.arange(len(rows)), list(outcome.failed))
        _compare(found, rows[kept], data.labels_of(rows[kept]), outcome.answers[kept], ours[kept])
        found.left -= 1
    return found


def _compare(found: Comparison, index: np.ndarray, label: np.ndarray, theirs: np.ndarray, ours: np.ndarray) -> None:
    found.compared += len(index)
    for name in column_names(ours.dtype):
        apart = np.abs(theirs[name].astype(np.float64) - ours[name])
        found.largest_difference = max(found.largest_difference, float(apart.max(initial=0.0)))
    if found.changed is None:
        return
    both = [Predictions.from_answers(index, label, answers) for answers in (theirs, ours)]
    for row in np.flatnonzero(~exact_matches(*(one.prediction for one in both))):
        swarm, local = (
            Answer(prediction=_listed(one.problem, one.prediction[row]), logits=one.logits[row].tolist())
            for one in both
        )
        found.changed.append(ChangedPrediction(index=int(index[row]), swarm=swarm, local=local))


def _listed(problem: Problem, prediction: Any) -> int | list[int]:
    """Returns a predicted class, or the numbers of the predicted labels."""
    return np.flatnonzero(prediction).tolist() if problem is MULTI_LABEL else int(prediction)
