"""A model's answers to a batch: one row per example, with the columns that the model's head declares.

The columns are the fields of a structured dtype. A classification head has one, `logits`. A language model has the
log-likelihood of a continuation and whether greedy decoding would choose it, or the tokens of a generated text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dist_eval.petals.client.records import RouteSegment

AnswerColumns = np.dtype[np.void]
"""A structured dtype: name, dtype and shape of each column of one example."""


@dataclass(frozen=True)
class BatchOutcome:
    """The result of a batch."""

    batch: int  # number of the batch in the plan
    answers: np.ndarray  # of shape [rows], of the dtype that the model declares; see `unanswered` for failed examples
    route: Sequence[RouteSegment] = ()  # the servers that computed it; empty without a swarm
    # the reasons of examples without an answer, by row in the batch
    failed: Mapping[int, str] = field(default_factory=dict)
    # findings of an audit (see `dist_eval.petals.client.findings.Findings.to_record`), None without one
    audit: Mapping[str, Any] | None = None
    # whether plain forwards replaced a shared prefix because no server had cache space
    fell_back: bool = False

    @property
    def is_whole(self) -> bool:
        """Whether all examples have an answer."""
        return not self.failed

    @property
    def answered_rows(self) -> np.ndarray:
        """The rows of the batch that have an answer, int64 of shape [n]."""
        return np.setdiff1d(np.arange(len(self.answers)), list(self.failed))


def logits_columns(num_labels: int) -> AnswerColumns:
    """Returns the columns of a classification head: `logits`, float32 of shape [num_labels]."""
    return np.dtype([("logits", np.float32, (num_labels,))])


def log_likelihood_columns() -> AnswerColumns:
    """Returns the columns of a language model: `log_likelihood`, float64, and `is_greedy`, uint8 (0 or 1)."""
    return np.dtype([("log_likelihood", np.float64), ("is_greedy", np.uint8)])


def generation_columns(max_new_tokens: int) -> AnswerColumns:
    """Returns the columns of a generated text: `tokens`, int32 of shape [max_new_tokens], and their count, `length`."""
    return np.dtype([("tokens", np.int32, (max_new_tokens,)), ("length", np.int32)])


def column_names(columns: AnswerColumns) -> tuple[str, ...]:
    """Returns the names of columns."""
    return columns.names or ()


def unanswered(rows: int, columns: AnswerColumns) -> np.ndarray:
    """Returns placeholder answers: NaN, or 0 in columns that cannot hold NaN."""
    answers = np.zeros(rows, dtype=columns)
    for name in column_names(columns):
        if answers[name].dtype.kind == "f":
            answers[name] = np.nan
    return answers
