"""Batches through a classifier: a window of them in flight, each answer with its rows."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from samples import tokenized_digits

from dist_eval.data.answers import BatchOutcome, logits_columns
from dist_eval.data.dataset import TokenizedDataset
from dist_eval.data.plan import BatchPlan
from dist_eval.errors import ModelOutputError, NotSentError, OutageError, RefusedError, SwarmError
from dist_eval.inference.forward import predict_batches
from dist_eval.inference.in_flight import FIRST_SIZE, Window
from dist_eval.inference.models import SendOptions
from dist_eval.petals.client.records import RouteSegment
from dist_eval.petals.client.routes import RouteRecord

ROWS, CLASSES, PATIENCE = 24, 3, 60.0
LONG = 7


class Classifier:
    """Scores texts by their own tokens alone, and keeps a record of its calls.

    Args:
        during: called within each call with the number of calls before it; what it returns replaces the answer.
    """

    columns = logits_columns(CLASSES)
    retries = 0

    def __init__(self, during: Callable[[int], torch.Tensor | None] = lambda call: None) -> None:
        self.during = during
        self.lengths: list[list[int]] = []
        self.events: list[str] = []
        self.active = self.most_active = 0
        self._lock = threading.Lock()

    def answer(
        self, input_ids: torch.Tensor, lengths: torch.Tensor, options: SendOptions, record: RouteRecord
    ) -> dict[str, torch.Tensor]:
        record.route.append(RouteSegment("server", 0, len(lengths)))
        with self._lock:
            call = len(self.lengths)
            self.lengths.append(lengths.tolist())
            self.events.append(f"begin {call}")
            self.active += 1
            self.most_active = max(self.most_active, self.active)
        try:
            answer = self.during(call)
            return {"logits": scores(input_ids, lengths) if answer is None else answer}
        finally:
            with self._lock:
                self.active -= 1
                self.events.append(f"end {call}")

    def stop_sending(self) -> None:
        pass

    def exclude(self, servers: Iterable[str]) -> None:
        raise AssertionError("nobody was found faulty")


def scores(input_ids: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    real = torch.arange(input_ids.shape[1]) < lengths[:, None]
    weights = torch.arange(1, input_ids.shape[1] + 1)
    return torch.stack([(input_ids * real).sum(1), (input_ids * real * weights).sum(1), lengths], dim=1).float() / 100


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> TokenizedDataset:
    return tokenized_digits(tmp_path_factory.mktemp("data"), ROWS, CLASSES)


def equal_batches(dataset: TokenizedDataset, size: int) -> BatchPlan:
    starts = np.arange(0, ROWS + 1, size)
    tokens = np.full(len(starts) - 1, size * int(dataset.lengths.max()))
    order = np.random.default_rng(0).permutation(ROWS)
    real_tokens = dataset.lengths[order].reshape(-1, size).sum(axis=1)
    return BatchPlan(order=order, starts=starts, tokens=tokens, extra_tokens=0, real_tokens=real_tokens)


@pytest.fixture(scope="module")
def plan(dataset: TokenizedDataset) -> BatchPlan:
    """Twelve batches of two rows."""
    return equal_batches(dataset, 2)


@pytest.fixture(scope="module")
def large_batches(dataset: TokenizedDataset) -> BatchPlan:
    """Two batches of twelve rows."""
    return equal_batches(dataset, 12)


def named(plan: BatchPlan, number: int) -> str:
    rows = plan.batch(number).tolist()
    return ", ".join(map(str, rows[:5])) + (", ..." if len(rows) > 5 else "")


def run(
    classifier: Classifier, dataset: TokenizedDataset, plan: BatchPlan, in_flight: int, **how: Any
) -> dict[int, BatchOutcome]:
    outcomes = predict_batches(classifier, dataset, plan, range(len(plan)), window=Window(in_flight), **how)
    return {outcome.batch: outcome for outcome in outcomes}


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.005)


@pytest.mark.parametrize("in_flight", [1, 2, 5, 50])
def test_each_answer_comes_with_its_own_rows(dataset: TokenizedDataset, plan: BatchPlan, in_flight: int) -> None:
    found = run(Classifier(lambda call: time.sleep(0.002 * (call % 3))), dataset, plan, in_flight)

    assert sorted(found) == list(range(len(plan)))
    for number, outcome in found.items():
        assert outcome.is_whole
        assert outcome.route == [RouteSegment("server", 0, len(plan.batch(number)))]
        for position, row in enumerate(plan.batch(number)):
            ids = torch.from_numpy(dataset.input_ids(row).astype(np.int64))[None]
            expected = scores(ids, torch.tensor([ids.shape[1]]))[0]
            assert outcome.answers["logits"][position].tolist() == expected.tolist()


def test_batches_are_sent_in_the_order_given(dataset: TokenizedDataset, plan: BatchPlan) -> None:
    classifier, numbers = Classifier(), [7, 2, 11, 0, 5]
    found = [one.batch for one in predict_batches(classifier, dataset, plan, numbers, window=Window(1))]
    assert found == numbers
    assert classifier.lengths == [dataset.lengths[plan.batch(number)].tolist() for number in numbers]


def test_only_the_batches_given_are_sent(dataset: TokenizedDataset, plan: BatchPlan) -> None:
    classifier = Classifier()
    assert list(predict_batches(classifier, dataset, plan, [], window=Window(3))) == []
    assert classifier.lengths == []


@pytest.mark.parametrize("in_flight", [1, 2, 4])
def test_batches_fill_the_window_and_never_more(dataset: TokenizedDataset, plan: BatchPlan, in_flight: int) -> None:
    together = threading.Barrier(in_flight)

    def during(call: int) -> None:
        if call < in_flight:
            together.wait(PATIENCE)
        time.sleep(0.005)

    classifier = Classifier(during)
    found = run(classifier, dataset, plan, in_flight)
    assert len(found) == len(plan)
    assert classifier.most_active == in_flight


def test_no_more_batches_are_drawn_than_fit_into_the_window(dataset: TokenizedDataset, plan: BatchPlan) -> None:
    drawn: list[int] = []

    def numbers() -> Iterator[int]:
        for number in range(len(plan)):
            drawn.append(number)
            yield number

    for done, _ in enumerate(predict_batches(Classifier(), dataset, plan, numbers(), window=Window(3))):
        assert len(drawn) <= done + 1 + 3


def test_the_window_grows_while_answers_do_not_slow_down(dataset: TokenizedDataset, plan: BatchPlan) -> None:
    window, classifier = Window(), Classifier(lambda call: time.sleep(0.05))
    window.size = 2
    assert len(list(predict_batches(classifier, dataset, plan, range(len(plan)), window=window))) == len(plan)
    assert window.size > 2
    assert classifier.most_active > 2


def test_retries_make_the_window_smaller(dataset: TokenizedDataset, plan: BatchPlan) -> None:
    class Retrying(Classifier):
        @property
        def retries(self) -> int:
            return len(self.lengths) // 3

    window = Window()
    list(predict_batches(Retrying(), dataset, plan, range(len(plan)), window=window))
    assert window.size < FIRST_SIZE


def test_a_batch_is_yielded_as_soon_as_it_completes(dataset: TokenizedDataset, plan: BatchPlan) -> None:
    others_are_done = threading.Event()
    in_time: list[bool] = []

    def during(call: int) -> None:
        if call == 1:
            in_time.append(others_are_done.wait(PATIENCE))

    order = []
    for outcome in predict_batches(Classifier(during), dataset, plan, range(len(plan)), window=Window(2)):
        order.append(outcome.batch)
        if len(order) == len(plan) - 1:
            others_are_done.set()
    assert in_time == [True]
    assert sorted(order) == list(range(len(plan)))


def raising(error: Exception, at: int = 0) -> Callable[[int], None]:
    def during(call: int) -> None:
        if call == at:
            raise error

    return during


def test_a_failed_request_names_batch_file_and_rows(dataset: TokenizedDataset, plan: BatchPlan) -> None:
    error = ConnectionError("block 3 is not reachable\nand many more lines")
    with pytest.raises(SwarmError) as caught:
        run(Classifier(raising(error, at=4)), dataset, plan, 1)
    batch = f"Batch 4 ({dataset.facts.source}, rows {named(plan, 4)})"
    assert str(caught.value) == f"{batch} got no answer: block 3 is not reachable and many more lines"
    assert caught.value.__cause__ is error


def test_of_many_rows_only_the_first_are_named(dataset: TokenizedDataset, large_batches: BatchPlan) -> None:
    with pytest.raises(SwarmError) as caught:
        run(Classifier(raising(TimeoutError("late"), at=1)), dataset, large_batches, 1)
    assert f"rows {named(large_batches, 1)}) got no answer" in str(caught.value)


@pytest.mark.parametrize("text", ["", "  \n "])
def test_an_error_without_a_message_is_reported_by_its_type(
    dataset: TokenizedDataset, plan: BatchPlan, text: str
) -> None:
    with pytest.raises(SwarmError, match=r"got no answer: TimeoutError$"):
        run(Classifier(raising(TimeoutError(text))), dataset, plan, 2)


def test_a_long_error_is_shortened(dataset: TokenizedDataset, plan: BatchPlan) -> None:
    with pytest.raises(SwarmError) as caught:
        run(Classifier(raising(RuntimeError("x" * 100_000))), dataset, plan, 2)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("kind", [ModelOutputError, SwarmError])
def test_an_error_of_dist_eval_keeps_its_type_and_names_the_rows(
    dataset: TokenizedDataset, large_batches: BatchPlan, kind: type[Exception]
) -> None:
    with pytest.raises(kind) as caught:
        run(Classifier(raising(kind("Values are not finite."))), dataset, large_batches, 1)
    rows = named(large_batches, 0)
    assert str(caught.value) == f"Batch 0 ({dataset.facts.source}, rows {rows}): Values are not finite."


@pytest.mark.parametrize("answers", [0, 1, 3])
def test_a_wrong_number_of_answers_is_an_error(dataset: TokenizedDataset, plan: BatchPlan, answers: int) -> None:
    with pytest.raises(ModelOutputError, match=rf"Batch 0 \(.*rows {named(plan, 0)}\): {answers} answers? for 2 texts"):
        run(Classifier(lambda call: torch.zeros(answers, CLASSES)), dataset, plan, 1)


def test_an_answer_that_the_head_did_not_declare_is_an_error(dataset: TokenizedDataset, plan: BatchPlan) -> None:
    for answer, message in (
        (torch.zeros(2, CLASSES + 1), r"with shape \[2, 4\] instead of \[2, 3\]"),
        (torch.zeros(2), r"with shape \[2\] instead of \[2, 3\]"),
        (torch.zeros(2, CLASSES, dtype=torch.float64), "with dtype float64 instead of float32"),
        (torch.tensor([[0.0, torch.inf, 0.0], [1.0, 2.0, 3.0]]), "with values that are not finite for 1 of 2 texts"),
    ):
        with pytest.raises(ModelOutputError, match=rf"rows {named(plan, 0)}\): The model answered {message}"):
            run(Classifier(lambda call, answer=answer: answer), dataset, plan, 1)


class Scorer(Classifier):
    """Declares other columns than a classifier: a score of each text, and whether it is long."""

    columns = np.dtype([("loglikelihood", np.float64), ("is_long", np.bool_)])

    def answer(
        self, input_ids: torch.Tensor, lengths: torch.Tensor, options: SendOptions, record: RouteRecord
    ) -> dict[str, torch.Tensor]:
        scores = super().answer(input_ids, lengths, options, record)["logits"][:, 0].double()
        return {"loglikelihood": -scores, "is_long": lengths > LONG}


def test_a_head_may_have_any_columns(dataset: TokenizedDataset, large_batches: BatchPlan) -> None:
    found = run(Scorer(), dataset, large_batches, 2)
    by_classifier = run(Classifier(), dataset, large_batches, 2)
    for number, outcome in found.items():
        assert outcome.answers.dtype == Scorer.columns
        scores = by_classifier[number].answers["logits"][:, 0]
        assert outcome.answers["loglikelihood"].tolist() == (-scores.astype(np.float64)).tolist()
        assert outcome.answers["is_long"].tolist() == (dataset.lengths[large_batches.batch(number)] > LONG).tolist()
    refusing = Scorer(raising(RefusedError("not this one")))
    salvaged = run(refusing, dataset, large_batches, 1, skip_failed=True)
    for number, outcome in salvaged.items():
        np.testing.assert_array_equal(outcome.answers, found[number].answers, err_msg="a part was sent again")


def test_after_an_error_nothing_more_is_sent(dataset: TokenizedDataset, plan: BatchPlan) -> None:
    under_way, failed = threading.Barrier(3), threading.Event()

    def during(call: int) -> None:
        under_way.wait(PATIENCE)
        if call == 1:
            raise ConnectionError("gone")
        failed.wait(PATIENCE)

    classifier = Classifier(during)
    with pytest.raises(SwarmError, match="gone"):
        run(classifier, dataset, plan, 3)
    failed.set()
    wait_until(lambda: classifier.active == 0)
    assert len(classifier.lengths) == 3


def test_an_error_does_not_wait_for_batches_in_flight(dataset: TokenizedDataset, plan: BatchPlan) -> None:
    release = threading.Event()

    def during(call: int) -> None:
        if call == 1:
            raise ConnectionError("gone")
        if call > 1:
            release.wait(PATIENCE)

    start = time.monotonic()
    with pytest.raises(SwarmError):
        run(Classifier(during), dataset, plan, 3)
    assert time.monotonic() - start < PATIENCE / 2
    release.set()


def test_closing_the_generator_stops_sending(dataset: TokenizedDataset, plan: BatchPlan) -> None:
    classifier = Classifier()
    answers = predict_batches(classifier, dataset, plan, range(len(plan)), window=Window(2))
    next(answers)
    next(answers)
    answers.close()  # type: ignore[attr-defined]
    wait_until(lambda: classifier.active == 0)
    assert len(classifier.lengths) <= 4
    assert list(answers) == []


def test_padding_is_on_the_right_and_lengths_are_true(dataset: TokenizedDataset, large_batches: BatchPlan) -> None:
    seen: list[tuple[torch.Tensor, torch.Tensor]] = []

    class Recorder(Classifier):
        def answer(
            self, input_ids: torch.Tensor, lengths: torch.Tensor, options: SendOptions, record: RouteRecord
        ) -> dict[str, torch.Tensor]:
            seen.append((input_ids, lengths))
            return super().answer(input_ids, lengths, options, record)

    run(Recorder(), dataset, large_batches, 1)

    for number, (ids, lengths) in enumerate(seen):
        rows = large_batches.batch(number)
        assert (ids.dtype, lengths.dtype) == (torch.int64, torch.int64)
        assert lengths.tolist() == dataset.lengths[rows].tolist()
        assert ids.shape == (len(rows), max(lengths))
        for position, row in enumerate(rows):
            assert ids[position, : lengths[position]].tolist() == dataset.input_ids(row).tolist()
    assert len(seen) == 2


class Picky(Classifier):
    """Has no answer for texts of some lengths.

    Args:
        lengths: of those texts.
        error: what it raises.
    """

    def __init__(self, lengths: set[int], error: Exception) -> None:
        super().__init__()
        self._refused, self._error = lengths, error

    def answer(
        self, input_ids: torch.Tensor, lengths: torch.Tensor, options: SendOptions, record: RouteRecord
    ) -> dict[str, torch.Tensor]:
        answer = super().answer(input_ids, lengths, options, record)
        if self._refused & set(lengths.tolist()):
            raise self._error
        return answer


@pytest.mark.parametrize("kind", [ModelOutputError, RefusedError])
def test_failed_examples_are_found_and_the_others_of_their_batch_are_kept(
    dataset: TokenizedDataset, large_batches: BatchPlan, kind: type[Exception]
) -> None:
    refused = int(dataset.lengths[3])
    clean = run(Classifier(), dataset, large_batches, 1)
    found = run(Picky({refused}, kind("not this one")), dataset, large_batches, 2, skip_failed=True)
    for number, outcome in found.items():
        rows = large_batches.batch(number)
        failed = [position for position, row in enumerate(rows) if dataset.lengths[row] == refused]
        assert sorted(outcome.failed) == failed
        for position, row in enumerate(rows):
            if position in failed:
                expected = f"Batch {number} ({dataset.facts.source}, rows {row}): not this one"
                assert outcome.failed[position] == expected
                assert not np.isfinite(outcome.answers["logits"][position]).any()
            else:
                assert outcome.answers[position] == clean[number].answers[position]
    assert sum(len(outcome.failed) for outcome in found.values()) >= 1


def test_a_batch_without_an_answer_is_not_sent_piece_by_piece(
    dataset: TokenizedDataset, large_batches: BatchPlan
) -> None:
    classifier = Classifier(raising(TimeoutError("late"), at=0))
    found = run(classifier, dataset, large_batches, 1, skip_failed=True)
    assert len(classifier.lengths) == 2
    assert [len(found[number].failed) for number in (0, 1)] == [12, 0]
    assert "late" in found[0].failed[11]


def test_an_outage_is_never_skipped(dataset: TokenizedDataset, plan: BatchPlan) -> None:
    with pytest.raises(OutageError):
        run(Classifier(raising(OutageError("blocks 2:4 are gone"), at=1)), dataset, plan, 1, skip_failed=True)


def test_once_stopping_no_batch_is_sent_and_those_in_flight_complete(
    dataset: TokenizedDataset, plan: BatchPlan
) -> None:
    stop, under_way = threading.Event(), threading.Barrier(3)

    def during(call: int) -> None:
        if call < 3:
            under_way.wait(PATIENCE)
            stop.set()
            time.sleep(0.3)

    classifier = Classifier(during)
    found = run(classifier, dataset, plan, 3, stopping=stop.is_set, drain_timeout=PATIENCE)
    assert len(classifier.lengths) == len(found) == 3


def test_once_stopping_batches_that_still_wait_to_be_sent_are_dropped(
    dataset: TokenizedDataset, plan: BatchPlan
) -> None:
    stop = threading.Event()

    class Limited(Classifier):
        closed = threading.Event()

        def stop_sending(self) -> None:
            self.closed.set()

    def during(call: int) -> None:
        if call == 0:
            stop.set()
        else:  # it waits for its turn
            assert Limited.closed.wait(PATIENCE)
            raise NotSentError

    assert len(run(Limited(during), dataset, plan, 3, stopping=stop.is_set, drain_timeout=PATIENCE)) == 1


def test_after_the_drain_timeout_batches_in_flight_are_dropped(dataset: TokenizedDataset, plan: BatchPlan) -> None:
    stop, release = threading.Event(), threading.Event()

    def during(call: int) -> None:
        if call == 2:
            stop.set()
            release.wait(PATIENCE)

    start = time.monotonic()
    found = run(Classifier(during), dataset, plan, 1, stopping=stop.is_set, drain_timeout=0.1)
    assert sorted(found) == [0, 1]
    assert time.monotonic() - start < PATIENCE / 2
    release.set()
