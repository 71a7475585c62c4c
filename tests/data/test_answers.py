"""The columns of answers, and what stands for an answer that is missing."""

from __future__ import annotations

import numpy as np

from dist_eval.data.answers import BatchOutcome, column_names, logits_columns, unanswered


def test_a_classification_head_declares_its_logits() -> None:
    for labels in (1, 3):
        columns = logits_columns(labels)
        assert column_names(columns) == ("logits",)
        answers = np.zeros(5, dtype=columns)["logits"]
        assert (answers.dtype, answers.shape) == (np.float32, (5, labels))


def test_a_missing_answer_is_no_number_in_any_column_that_has_such_a_value() -> None:
    missing = unanswered(2, np.dtype([("score", np.float64), ("options", np.float32, (3,)), ("tokens", np.int32)]))
    assert np.isnan(missing["score"]).all() and np.isnan(missing["options"]).all()
    assert missing["tokens"].tolist() == [0, 0]


def test_a_batch_is_whole_unless_an_example_failed() -> None:
    answers = unanswered(2, logits_columns(3))
    assert BatchOutcome(0, answers).is_whole
    assert not BatchOutcome(0, answers, failed={1: "refused"}).is_whole
