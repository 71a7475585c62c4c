"""Stopping: the first signal is a request, a second one interrupts; a file asks as well."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from dist_eval.distributed import stop as stop_module
from dist_eval.distributed.stop import SIGNALS, STOP_FILE, Stop, asked_by_a_person, common_reason, leave_stop_file


@pytest.fixture
def stop() -> Stop:
    stop = Stop()
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run under `nohup`
    stop.handle_signals()
    return stop


def test_before_the_work_begins_a_signal_interrupts(stop: Stop) -> None:
    with pytest.raises(KeyboardInterrupt, match="SIGTERM"):
        os.kill(os.getpid(), signal.SIGTERM)
    assert not stop.requested


@pytest.mark.parametrize("number", SIGNALS)
def test_then_it_is_a_request_with_a_reason(stop: Stop, number: signal.Signals) -> None:
    stop.defer_signals()
    os.kill(os.getpid(), number)
    assert stop.requested
    assert stop.reason == f"this rank got {number.name}"


def test_a_closed_terminal_does_not_stop_what_nohup_started(stop: Stop) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    stop.handle_signals()
    os.kill(os.getpid(), signal.SIGHUP)
    assert not stop.requested


def test_the_same_request_may_come_twice_and_a_further_one_interrupts(
    stop: Stop, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop.defer_signals()
    os.kill(os.getpid(), signal.SIGINT)
    os.kill(os.getpid(), signal.SIGINT)  # from torchrun
    monkeypatch.setattr(stop_module, "_SAME_REQUEST_SECONDS", 0.0)
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)
    os.kill(os.getpid(), signal.SIGINT)  # ignored: the end is under way


def test_asking_by_a_file_follows_no_link(stop: Stop, tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        leave_stop_file(tmp_path)
    finally:
        os.umask(before)
    assert (tmp_path / STOP_FILE).stat().st_mode & 0o777 == 0o600
    (tmp_path / STOP_FILE).unlink()
    (tmp_path / STOP_FILE).symlink_to(tmp_path / "elsewhere")
    leave_stop_file(tmp_path)
    assert not (tmp_path / "elsewhere").exists()
    stop.look_for_file(tmp_path)
    assert stop.requested


def test_a_file_asks_too_and_the_first_reason_counts(stop: Stop, tmp_path: Path) -> None:
    stop.look_for_file(tmp_path)
    assert not stop.requested
    (tmp_path / STOP_FILE).touch()
    stop.look_for_file(tmp_path)
    assert str(tmp_path / STOP_FILE) in stop.reason
    stop.request("another reason")
    assert str(tmp_path / STOP_FILE) in stop.reason


def test_the_ranks_agree_on_one_reason_and_a_persons_comes_first(tmp_path: Path) -> None:
    (tmp_path / STOP_FILE).touch()
    by_file = Stop()
    by_file.look_for_file(tmp_path)
    signalled = "this rank got SIGTERM"
    assert common_reason(["", ""]) == ""
    assert common_reason(["", signalled, signalled]) == "rank 1 got SIGTERM"
    assert common_reason([signalled, by_file.reason, ""]) == by_file.reason
    assert asked_by_a_person(f"Stopped because {by_file.reason}: 3 of 5 examples are in the journal.")
    assert not asked_by_a_person(signalled)
