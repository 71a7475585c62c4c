"""The journal: intact records are found again, whatever happened to the files, and nothing else is."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dist_eval.data.answers import BatchOutcome, logits_columns, unanswered
from dist_eval.errors import RunError
from dist_eval.petals.client.records import RouteSegment
from dist_eval.runs.files import JOURNAL, RECORDED_PLAN
from dist_eval.runs.fingerprint import Fingerprint
from dist_eval.runs.journal import (
    Journal,
    forget_journal,
    has_batches,
    record_plan,
    recorded_cache_tokens,
    require_recorded_plan,
)

BATCHES, LABELS = 12, 3
SIZES = np.arange(1, BATCHES + 1)
COLUMNS = logits_columns(LABELS)
quickly = settings(max_examples=60)

floats = st.floats(width=32, allow_nan=False)
reasons = st.text(max_size=30)


@st.composite
def outcomes(draw: st.DrawFn) -> BatchOutcome:
    batch = draw(st.integers(0, BATCHES - 1))
    size = int(SIZES[batch])
    logits = np.array(draw(st.lists(floats, min_size=size * LABELS, max_size=size * LABELS)), dtype=np.float32)
    segments = st.builds(
        RouteSegment, st.text(max_size=8), st.integers(0, 80), st.integers(0, 80), st.sampled_from([None, "float16"])
    )
    route = draw(st.lists(segments, max_size=3))
    failed = draw(st.dictionaries(st.integers(0, size - 1), reasons, max_size=2))
    audit = draw(st.none() | st.dictionaries(reasons, st.integers(), max_size=2))
    return BatchOutcome(batch, answers_of(logits.reshape(size, LABELS)), route, failed, audit, draw(st.booleans()))


def answers_of(logits: np.ndarray) -> np.ndarray:
    answers = np.empty(len(logits), dtype=COLUMNS)
    answers["logits"] = logits
    return answers


def whole(batch: int, value: float = 0.0) -> BatchOutcome:
    return BatchOutcome(batch, answers_of(np.full((int(SIZES[batch]), LABELS), value)))


@contextmanager
def fresh_folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp())
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def write(folder: Path, *written: BatchOutcome, rank: int = 0) -> Path:
    journal = Journal(folder, SIZES, COLUMNS, rank=rank)
    for outcome in written:
        journal.append(outcome)
    journal.close()
    return max((folder / JOURNAL).glob("*.batches"), key=lambda path: path.stat().st_mtime_ns)


def found_in(folder: Path) -> tuple[list[int], Journal]:
    journal = Journal(folder, SIZES, COLUMNS)
    return np.flatnonzero(journal.read()).tolist(), journal


def same(one: BatchOutcome, other: BatchOutcome) -> bool:
    return (
        (one.batch, dict(one.failed), one.audit) == (other.batch, dict(other.failed), other.audit)
        and one.fell_back == other.fell_back
        and list(one.route) == list(other.route)
        and one.answers.tobytes() == other.answers.tobytes()
    )


@quickly
@given(st.lists(st.lists(outcomes(), max_size=6), max_size=4))
def test_of_each_batch_a_whole_record_is_found_to_the_last_bit(files: list[list[BatchOutcome]]) -> None:
    with fresh_folder() as folder:
        for rank, written in enumerate(files):
            if written:
                write(folder, *written, rank=rank)
        best: dict[int, bool] = {}
        for outcome in (one for written in files for one in written):
            best[outcome.batch] = best.get(outcome.batch, False) or outcome.is_whole
        finished, journal = found_in(folder)
        assert finished == sorted(batch for batch, is_whole in best.items() if is_whole)
        everything = [one for written in files for one in written]
        for outcome in journal.outcomes(sorted(best)):
            assert outcome.is_whole == best[outcome.batch]
            assert any(same(outcome, one) for one in everything)


@quickly
@given(st.lists(outcomes(), min_size=1, max_size=5), st.data())
def test_a_torn_end_costs_the_torn_record_only(written: list[BatchOutcome], data: st.DataObject) -> None:
    with fresh_folder() as folder:
        ends = []
        journal = Journal(folder, SIZES, COLUMNS)
        for outcome in written:
            journal.append(outcome)
            [path] = (folder / JOURNAL).glob("*.batches")
            ends.append(path.stat().st_size)
        journal.close()
        cut = data.draw(st.integers(0, ends[-1]))
        os.truncate(path, cut)
        kept = [outcome for outcome, end in zip(written, ends, strict=True) if end <= cut]
        finished, _ = found_in(folder)
        assert finished == sorted({outcome.batch for outcome in kept if outcome.is_whole})


@quickly
@given(st.lists(outcomes(), min_size=1, max_size=5), st.data())
def test_no_changed_byte_makes_a_wrong_record(written: list[BatchOutcome], data: st.DataObject) -> None:
    with fresh_folder() as folder:
        path = write(folder, *written)
        content = bytearray(path.read_bytes())
        at, flip = data.draw(st.integers(0, len(content) - 1)), data.draw(st.integers(1, 255))
        content[at] ^= flip
        path.write_bytes(bytes(content))
        _, journal = found_in(folder)
        survivors = list(journal.outcomes(np.flatnonzero(journal._index.worth)))
        assert all(any(same(one, other) for other in written) for one in survivors)
        assert len({one.batch for one in written}) - len(survivors) <= 1


@quickly
@given(st.binary(max_size=200), outcomes())
def test_rubbish_in_front_of_a_record_does_not_hide_it(rubbish: bytes, outcome: BatchOutcome) -> None:
    with fresh_folder() as folder:
        path = write(folder, outcome)
        path.write_bytes(rubbish + path.read_bytes())
        _, journal = found_in(folder)
        [found] = journal.outcomes([outcome.batch])
        assert same(found, outcome)


def test_records_of_another_plan_are_passed_over(tmp_path: Path) -> None:
    write(tmp_path, whole(3), whole(11))
    other = Journal(tmp_path, SIZES[:5][::-1].copy(), COLUMNS)  # batch 3 has another size there, 11 does not exist
    assert not other.read().any()


def test_a_batch_with_failed_examples_is_not_finished_until_it_is_whole(tmp_path: Path) -> None:
    half = BatchOutcome(2, unanswered(3, COLUMNS), failed={1: "refused"})
    write(tmp_path, half)
    finished, journal = found_in(tmp_path)
    assert finished == []
    assert next(journal.outcomes([2])).failed == {1: "refused"}
    write(tmp_path, whole(2, 0.5), rank=1)
    assert found_in(tmp_path)[0] == [2]


def test_batches_answered_by_a_faulty_server_do_not_count(tmp_path: Path) -> None:
    router = {1: [("a", 0, 4)], 2: [("a", 0, 2), ("b", 2, 4)], 3: [("b", 0, 4)], 4: []}
    for batch, route in router.items():
        write(tmp_path, BatchOutcome(batch, whole(batch).answers, [RouteSegment(*segment) for segment in route]))
    _, journal = found_in(tmp_path)
    assert journal.faulty_servers() == frozenset()
    journal.exclude("b")
    journal.exclude("b")
    finished, later = found_in(tmp_path)
    assert finished == [1, 4]
    assert later.faulty_servers() == {"b"}
    again = BatchOutcome(3, whole(3, 7.0).answers, [RouteSegment("a", 0, 4)])
    journal.append(again)  # by a rank that knew the old one
    assert [float(outcome.answers["logits"][0, 0]) for outcome in journal.outcomes([3])] == [7.0]
    journal.close()
    assert found_in(tmp_path)[0] == [1, 3, 4]
    forget_journal(tmp_path)
    assert found_in(tmp_path)[1].faulty_servers() == frozenset()


def test_batches_of_another_run_do_not_count(tmp_path: Path) -> None:
    older = Journal(tmp_path, SIZES, COLUMNS, run="older")
    older.append(whole(3))
    older.exclude("a")
    older.close()
    assert not Journal(tmp_path, SIZES, COLUMNS, run="newer").read().any()
    assert Journal(tmp_path, SIZES, COLUMNS, run="newer").faulty_servers() == frozenset()
    assert Journal(tmp_path, SIZES, COLUMNS, run="older").read()[3]


def test_a_batch_to_be_audited_is_finished_once_it_was(tmp_path: Path) -> None:
    write(tmp_path, whole(3), whole(4))
    assert np.flatnonzero(Journal(tmp_path, SIZES, COLUMNS).read(audited={4})).tolist() == [3]
    write(tmp_path, BatchOutcome(4, whole(4).answers, audit={"batches": 1}), rank=1)
    journal = Journal(tmp_path, SIZES, COLUMNS)
    assert np.flatnonzero(journal.read(audited={4})).tolist() == [3, 4]
    assert [outcome.audit for outcome in journal.outcomes([3, 4])] == [None, {"batches": 1}]


def test_what_this_rank_appends_can_be_read_at_once(tmp_path: Path) -> None:
    journal = Journal(tmp_path, SIZES, COLUMNS)
    for batch in (4, 1):
        journal.append(whole(batch, batch))
    found = {outcome.batch: float(outcome.answers["logits"][0, 0]) for outcome in journal.outcomes([1, 4])}
    assert found == {1: 1.0, 4: 4.0}
    journal.close()


def test_news_is_each_batch_of_all_ranks_once_and_a_torn_one_once_it_is_whole(tmp_path: Path) -> None:
    journal = Journal(tmp_path, SIZES, COLUMNS)
    assert not list(journal.news()), "there is no folder yet"
    write(tmp_path, whole(7, 1.0), rank=1)  # by an earlier start
    journal.append(whole(3))
    assert sorted(outcome.batch for outcome in journal.news()) == [3, 7]
    path = write(tmp_path, whole(5), whole(7, 2.0), whole(4), rank=1)
    content = path.read_bytes()
    path.write_bytes(content[:-9])
    journal.append(whole(1))
    news = journal.news()
    first = next(news).batch
    news.close()  # the rest is for the next time
    assert sorted([first, *(outcome.batch for outcome in journal.news())]) == [1, 5]
    path.write_bytes(content)
    assert [outcome.batch for outcome in journal.news()] == [4]
    assert not list(journal.news())
    journal.close()


def test_who_hears_one_piece_of_news_at_a_time_hears_of_all_ranks_in_turn(tmp_path: Path) -> None:
    journal = Journal(tmp_path, SIZES, COLUMNS)
    write(tmp_path, whole(1), whole(3), rank=1)
    write(tmp_path, whole(2), whole(4), rank=2)
    heard = []
    for _ in range(4):
        news = journal.news()
        heard.append(next(news).batch)
        news.close()
    assert heard in ([1, 2, 3, 4], [2, 1, 4, 3])
    journal.close()


def test_ranks_and_starts_never_write_into_the_same_file(tmp_path: Path) -> None:
    for rank in (0, 0, 1):
        write(tmp_path, whole(rank), rank=rank)
    assert len(list((tmp_path / JOURNAL).glob("*.batches"))) == 3


def test_every_batch_is_forced_to_the_disk(tmp_path: Path) -> None:
    journal = Journal(tmp_path, SIZES, COLUMNS)
    with mock.patch("os.fdatasync", wraps=os.fdatasync) as sync:
        journal.append(whole(0))
        journal.append(whole(1))
    assert sync.call_count == 2
    journal.close()


def test_a_full_disk_is_one_clear_message_and_what_was_written_is_kept(tmp_path: Path) -> None:
    journal = Journal(tmp_path, SIZES, COLUMNS)
    journal.append(whole(0))
    with (
        mock.patch("os.write", side_effect=OSError(errno.ENOSPC, "No space left on device")),
        pytest.raises(RunError, match=r"rank-00000.*No space left on device.*start the same command again"),
    ):
        journal.append(whole(1))
    journal.close()
    assert found_in(tmp_path)[0] == [0]


def test_only_the_owner_may_read_the_files(tmp_path: Path) -> None:
    assert write(tmp_path, whole(0)).stat().st_mode & 0o077 == 0


def test_a_classifiers_file_is_that_of_earlier_versions(tmp_path: Path) -> None:
    logits = np.array([[0.5, -1.25, 3.0], [np.nan] * 3])
    first = BatchOutcome(
        2, answers_of(np.arange(9).reshape(3, 3) / 4), [RouteSegment("peer", 0, 4)], audit={"batches": 1}
    )
    second = BatchOutcome(1, answers_of(logits), failed={1: "refused"})
    content = bytes.fromhex(
        "64654231940e114c02000000030000000300000034000000000000000000803e0000003f0000403f0000803f0000a03f0000c03f0000e03f"
        "000000407b22726f757465223a205b5b2270656572222c20302c20345d5d2c20226175646974223a207b2262617463686573223a20317d7d"
        "64654231a7ea75970100000002000000030000001c0000000000003f0000a0bf000040400000c07f0000c07f0000c07f7b226661696c6564"
        "223a207b2231223a202272656675736564227d7d"
    )
    path = write(tmp_path, first, second)
    assert path.read_bytes() == content
    _, journal = found_in(tmp_path)
    assert all(same(*pair) for pair in zip(journal.outcomes([2, 1]), (first, second), strict=True))


def test_answers_of_any_columns_are_kept_to_the_last_bit(tmp_path: Path) -> None:
    columns = np.dtype([("loglikelihood", np.float64), ("is_greedy", np.bool_), ("options", np.float32, (2, 2))])
    answers = np.zeros(3, dtype=columns)
    answers["loglikelihood"] = [-1.5, -1e300, 0.1]
    answers["is_greedy"] = [True, False, True]
    answers["options"][1] = [[1, 2], [3, 4]]
    journal = Journal(tmp_path, SIZES, columns)
    journal.append(BatchOutcome(2, answers))
    journal.append(BatchOutcome(0, unanswered(1, columns), failed={0: "refused"}))
    journal.close()
    later = Journal(tmp_path, SIZES, columns)
    assert np.flatnonzero(later.read()).tolist() == [2]
    kept, failed = later.outcomes([2, 0])
    assert kept.answers.dtype == columns
    np.testing.assert_array_equal(kept.answers, answers)
    assert np.isnan(failed.answers["loglikelihood"]).all()
    assert np.isnan(failed.answers["options"]).all()
    assert found_in(tmp_path)[0] == [], "a head of other columns reads no answers of this one"


def test_an_empty_folder_has_nothing(tmp_path: Path) -> None:
    assert found_in(tmp_path)[0] == []
    assert not has_batches(tmp_path)
    assert Fingerprint.load(tmp_path) is None


def test_a_forgotten_journal_is_gone(tmp_path: Path) -> None:
    write(tmp_path, whole(0))
    Fingerprint({"dataset": "a"}).save(tmp_path)
    assert has_batches(tmp_path)
    forget_journal(tmp_path)
    assert not has_batches(tmp_path)
    assert Fingerprint.load(tmp_path) is None


def test_whether_a_run_has_sessions_is_decided_once(tmp_path: Path) -> None:
    assert recorded_cache_tokens(tmp_path) is None
    Fingerprint({"dataset": "a"}).save(tmp_path)
    assert recorded_cache_tokens(tmp_path) is None
    record_plan(tmp_path, 1024, "a digest")
    assert recorded_cache_tokens(tmp_path) == 1024
    require_recorded_plan(tmp_path, "a digest")
    with pytest.raises(RunError, match="another version of dist_eval planned"):
        require_recorded_plan(tmp_path, "another one")
    forget_journal(tmp_path)
    require_recorded_plan(tmp_path, "another one")
    write(tmp_path, whole(0))
    assert recorded_cache_tokens(tmp_path) == 0, "its batches were planned without"


@pytest.mark.parametrize("content", ["", "{", "[]", '{"plan": "a digest"}'])
def test_how_batches_were_planned_is_not_guessed(tmp_path: Path, content: str) -> None:
    Fingerprint({"dataset": "a"}).save(tmp_path)
    (tmp_path / JOURNAL / RECORDED_PLAN).write_text(content)
    assert recorded_cache_tokens(tmp_path) is None
    write(tmp_path, whole(0))
    with pytest.raises(RunError, match=r"sessions\.json, the plan of the finished batches, is damaged .*--overwrite"):
        recorded_cache_tokens(tmp_path)
    assert has_batches(tmp_path)
