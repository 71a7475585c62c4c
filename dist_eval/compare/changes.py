"""The examples for which two evaluations have different predictions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dist_eval.compare.comparison import Change
from dist_eval.metrics.predictions import Predictions
from dist_eval.petals.base_model.problem_types import REGRESSION, SINGLE_LABEL, exact_matches
from dist_eval.tables import csv_text, format_count

# By whether the second model improved and whether it got worse
_KINDS = {(True, False): "gained", (False, True): "lost", (False, False): "still wrong"}
_KINDS_IN_REGRESSIONS = {(True, False): "nearer", (False, True): "farther", (False, False): "as far"}


@dataclass(frozen=True)
class Changes:
    """The changes between the predictions of two models for the same examples; masks are bool of shape [n]."""

    first: Predictions
    second: Predictions
    changed: np.ndarray  # examples with different predictions
    # examples that only the second model gets right; in a regression, changed ones where its loss is smaller
    improved: np.ndarray
    worsened: np.ndarray  # the same for the first model

    @classmethod
    def between(cls, first: Predictions, second: Predictions) -> Changes:
        """Compares the predictions of two models."""
        changed = ~exact_matches(first.prediction, second.prediction)
        if first.problem is REGRESSION:
            is_nearer, is_farther = second.loss < first.loss, first.loss < second.loss
            return cls(first, second, changed, changed & is_nearer, changed & is_farther)
        before, after = (exact_matches(predictions.label, predictions.prediction) for predictions in (first, second))
        return cls(first, second, changed, after & ~before, before & ~after)

    def counts(self) -> dict[str, int]:
        """Returns the number of examples by kind of change."""
        masks = {"changed": self.changed, "improved": self.improved, "worsened": self.worsened}
        return {name: int(mask.sum()) for name, mask in masks.items()}

    def describe(self) -> str:
        """Says how many predictions changed, and in which direction."""
        counts = self.counts()
        if not counts["changed"]:
            return "no prediction changed"
        words = f"{format_count(counts['changed'], 'prediction')} changed, {counts['improved']} of them"
        if self.first.problem is REGRESSION:
            return f"{words} are nearer to their labels, {counts['worsened']} farther away"
        wrong, right = ("wrong", "right") if self.first.problem is SINGLE_LABEL else ("not all right", "all right")
        return f"{words} from {wrong} to {right}, {counts['worsened']} from {right} to {wrong}"

    def rows(self, names: Sequence[str]) -> Iterator[Change]:
        """Yields the examples whose prediction changed; `names` are those of the labels."""
        before, after = self.first, self.second
        kinds = _KINDS_IN_REGRESSIONS if before.problem is REGRESSION else _KINDS
        for row in self.changed.nonzero()[0]:
            yield Change(
                index=str(before.index[row]),
                label=format_label(before.label[row], names),
                before=format_label(before.prediction[row], names),
                after=format_label(after.prediction[row], names),
                kind=kinds[bool(self.improved[row]), bool(self.worsened[row])],
            )


def format_label(label: Any, names: Sequence[str]) -> str:
    """Formats a label or a prediction, an element or a row of its column; several are joined by a semicolon."""
    if label.dtype.kind == "f":
        return ";".join(repr(float(value)) for value in label)
    if label.dtype.kind == "b":
        return ";".join(csv_text(names[number]) for number in label.nonzero()[0])
    return csv_text(names[int(label)])
