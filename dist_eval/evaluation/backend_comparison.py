"""Compares the swarm's logits with those of a local model (`--compare-backends`).

Every rank computes its assigned batches once more, the same rows in the same order, with the base model in its own
process, and compares the logits with those in the journal. So the comparison covers exactly what the results are
computed from, whichever start of the run predicted it. The local logits are not kept: a run that is stopped meanwhile
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

from dist_eval.data.dataset import TokenizedDataset
from dist_eval.data.plan import Plan
from dist_eval.data.problems import MULTI_LABEL, REGRESSION, Problem, problem_of
from dist_eval.inference.forward import TextClassifier
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
        largest_difference: largest absolute difference of two logits of one example.
        changed: examples with another prediction: position in the dataset, and both answers. None for a regression,
            where any difference would count.
        left: batches that were not compared, because the run was asked to stop.
    """

    compared: int = 0
    largest_difference: float = 0.0
    changed: list[ChangedPrediction] | None = field(default_factory=list)
    left: int = 0

    @classmethod
    def merged(cls, parts: Sequence[Comparison]) -> Comparison:
        """Merges the comparisons of all ranks, with the changes in dataset order."""
        changed = [change for part in parts for change in part.changed or ()]
        return cls(
            compared=sum(part.compared for part in parts),
            largest_difference=max(part.largest_difference for part in parts),
            changed=None if parts[0].changed is None else sorted(changed, key=lambda change: change.index),
            left=sum(part.left for part in parts),
        )

    def summary(self, folder: Path) -> BackendComparison:
        """Returns the section `backends` of `results.json`; changes that do not fit there are written to a file.

        Args:
            folder: the run's folder.
        """
        changed = self.changed or []
        is_long = len(changed) > _LISTED
        if is_long:
            write_atomically(
                folder / CHANGES, "".join(json.dumps(change.to_json()) + "\n" for change in changed).encode()
            )
        return BackendComparison(
            compared=self.compared,
            largest_difference=self.largest_difference,
            changed=None if self.changed is None else len(changed),
            examples=changed[:_LISTED],
            file=CHANGES if is_long else None,
        )


def compare_backends(
    local: TextClassifier,
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
        journal: holds the swarm's logits.
        batches: numbers of this rank's batches, integers of shape [n].
        stopping: returns whether to stop.

    Returns:
        This rank's part of the comparison.

    Raises:
        ModelOutputError: the local model's outputs are no predictions.
    """
    problem = problem_of(data.labels.dtype)
    found = Comparison(changed=None if problem is REGRESSION else [], left=len(batches))
    for outcome in journal.outcomes(batches):
        if stopping():
            break
        rows = plan.batch(outcome.batch)
        input_ids, lengths = data.padded(rows)
        ours = local.logits(torch.from_numpy(input_ids), torch.from_numpy(lengths), Routing()).numpy()
        kept = np.setdiff1d(np.arange(len(rows)), list(outcome.failed))
        _compare(found, problem, rows[kept], outcome.logits[kept], ours[kept])
        found.left -= 1
    return found


def _compare(found: Comparison, problem: Problem, index: np.ndarray, theirs: np.ndarray, ours: np.ndarray) -> None:
    found.compared += len(index)
    apart = np.abs(theirs.astype(np.float64) - ours)
    found.largest_difference = max(found.largest_difference, float(apart.max(initial=0.0)))
    if found.changed is None:
        return
    predictions = problem.predict(theirs), problem.predict(ours)
    differs = predictions[0] != predictions[1]
    for row in np.flatnonzero(differs.any(axis=1) if problem.is_wide else differs):
        swarm, local = (
            Answer(prediction=_listed(problem, prediction[row]), logits=logits[row].tolist())
            for prediction, logits in zip(predictions, (theirs, ours), strict=True)
        )
        found.changed.append(ChangedPrediction(index=int(index[row]), swarm=swarm, local=local))


def _listed(problem: Problem, prediction: Any) -> int | list[int]:
    """Returns a predicted class, or the numbers of the predicted labels."""
    return np.flatnonzero(prediction).tolist() if problem is MULTI_LABEL else int(prediction)
