"""Sends a shard's batches through the model, with a window of them in flight."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from typing import Protocol

import numpy as np
import torch

from dist_eval.data.answers import AnswerColumns, BatchOutcome, column_names, unanswered
from dist_eval.data.plan import BatchPlan
from dist_eval.errors import (
    EvaluationError,
    ModelOutputError,
    NotSentError,
    OutageError,
    RefusedError,
    SwarmError,
    one_line,
    with_place,
)
from dist_eval.inference.in_flight import Window, map_in_flight
from dist_eval.inference.models import ANY_ROUTE, AnsweringModel, SendOptions
from dist_eval.petals.client.routes import RouteRecord
from dist_eval.tables import format_count

_ROWS_NAMED = 5


class TextSource(Protocol):
    """Tokenized texts with stable positions (see `dist_eval.data.dataset.TokenizedDataset`)."""

    @property
    def source(self) -> str:
        """The source of the texts, for messages."""

    def __len__(self) -> int: ...

    def padded(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns a batch for a model: token ids, int64 of shape [batch, longest], and facts of each text.

        The facts are int64 of shape [batch] for a classifier (number of tokens), [batch, 2] for continuations (tokens
        of the context, and of both together), [batch, 3] for prompts (number of tokens, decoding, position).
        """


def predict_batches(
    model: AnsweringModel,
    dataset: TextSource,
    plan: BatchPlan,
    batch_numbers: Iterable[int],
    *,
    window: Window,
    skip_failed: bool = False,
    stopping: Callable[[], bool] = lambda: False,
    drain_timeout: float = 0.0,
    audited: Container[int] = (),
) -> Iterator[BatchOutcome]:
    """Sends batches through the model; yields each outcome when it arrives, in any order.

    The rows of an outcome are in the batch's order. Errors of the swarm, after all retries, and of invalid predictions
    name rows of the batch.

    Args:
        model: the model.
        dataset: the tokenized texts.
        plan: all batches of the run.
        batch_numbers: the batches to send.
        window: limits the batches in flight; it is updated with every batch that completes.
        skip_failed: mark examples without an answer as failed instead of raising an error. An outage of the swarm, in
            which all examples would fail, is still an error.
        stopping: returns whether to stop sending batches.
        drain_timeout: time for batches in flight to complete after that, in seconds; later ones are dropped.
        audited: numbers of the batches to audit.
    """

    def outcome_of(number: int) -> BatchOutcome:
        rows, record = plan.batch(number), RouteRecord()
        options = SendOptions(audited=number in audited, shared=plan.shared_by(number))

        def answers_to(rows: np.ndarray) -> np.ndarray:
            return _answers(model, dataset, number, rows, options, record)

        failed: dict[int, str] = {}
        if skip_failed:
            answers, failed = _bisect_failures(answers_to, rows, model.columns)
        else:
            answers = answers_to(rows)
        audit = record.findings.to_record() if record.findings else None
        return BatchOutcome(int(number), answers, record.route, failed, audit, record.fell_back)

    def is_stopping() -> bool:
        if is_asked_to := stopping():
            model.stop_sending()
        return is_asked_to

    return map_in_flight(
        outcome_of,
        batch_numbers,
        window,
        retries=lambda: model.retries,
        stopping=is_stopping,
        drain_timeout=drain_timeout,
    )


def checked_answers(
    model: AnsweringModel,
    input_ids: torch.Tensor,
    lengths: torch.Tensor,
    options: SendOptions = ANY_ROUTE,
    record: RouteRecord | None = None,
) -> np.ndarray:
    """Returns the model's answers to one batch, of shape [batch] and the dtype `model.columns`.

    `input_ids` are int64 of shape [batch, length], padded on the right with any id. `lengths` are the numbers of real
    tokens of each text, at least 1, int64 of shape [batch]. `options` constrain the route through a swarm, and `record`
    records it. Raises ModelOutputError if the number, shape or dtype of the answers is not as declared, or they are not
    finite; another EvaluationError if there is no answer.
    """
    return checked(model.columns, model.answer(input_ids, lengths, options, record or RouteRecord()), len(lengths))


def checked(columns: AnswerColumns, found: Mapping[str, torch.Tensor], texts: int) -> np.ndarray:
    """Returns the answers to `texts` texts, from one tensor per column (see `checked_answers`)."""
    answers, finite = np.empty(texts, dtype=columns), np.ones(texts, dtype=bool)
    for name in column_names(columns):
        column, declared = found[name].numpy(), answers[name]
        if len(column) != texts:
            raise ModelOutputError(f"{format_count(len(column), 'answer')} for {format_count(texts, 'text')}.")
        for what, one, other in (
            ("shape", list(column.shape), list(declared.shape)),
            ("dtype", column.dtype, declared.dtype),
        ):
            if one != other:
                raise ModelOutputError(f"The model answered with {what} {one} instead of {other}.")
        declared[:] = column
        finite &= np.isfinite(column).all(axis=tuple(range(1, column.ndim)))
    if not finite.all():
        raise ModelOutputError(
            f"The model answered with values that are not finite for {(~finite).sum()} of "
            f"{format_count(texts, 'text')}."
        )
    return answers


def _bisect_failures(
    answers_to: Callable[[np.ndarray], np.ndarray], rows: np.ndarray, columns: AnswerColumns
) -> tuple[np.ndarray, dict[int, str]]:
    """Sends a batch; after a failure, bisects it to find the examples that cause it.

    Returns the answers, and the reasons for missing answers, by row in the batch.
    """
    answers = unanswered(len(rows), columns)
    failed: dict[int, str] = {}
    parts = [range(len(rows))]
    while parts:
        part = parts.pop()
        try:
            answers[part.start : part.stop] = answers_to(rows[part.start : part.stop])
        except OutageError:
            raise
        except (ModelOutputError, RefusedError) as error:  # these depend on the input
            if len(part) == 1:
                failed[part.start] = str(error)
            else:
                middle = part.start + len(part) // 2
                parts += [range(middle, part.stop), range(part.start, middle)]
        except EvaluationError as error:
            failed.update(dict.fromkeys(part, str(error)))
    return answers, failed


def _answers(
    model: AnsweringModel, dataset: TextSource, number: int, rows: np.ndarray, options: SendOptions, record: RouteRecord
) -> np.ndarray:
    named = ", ".join(map(str, rows[:_ROWS_NAMED])) + (", ..." if len(rows) > _ROWS_NAMED else "")
    name = f"Batch {number} ({dataset.source}, rows {named})"
    input_ids, lengths = dataset.padded(rows)
    try:
        return checked_answers(model, torch.from_numpy(input_ids), torch.from_numpy(lengths), options, record)
    except NotSentError:
        raise
    except EvaluationError as error:
        raise with_place(error, name) from error
    except Exception as error:  # any error of Petals and hivemind
        raise SwarmError(f"{name} got no answer: {one_line(error)}") from error
