"""Calls in threads."""

from __future__ import annotations

import threading
import time

import pytest

from dist_eval.petals.model.blocks import at_once


def test_results_come_in_order_and_errors_are_raised() -> None:
    assert at_once([lambda number=number: number for number in range(40)]) == [*range(40)]
    with pytest.raises(ZeroDivisionError):
        at_once([lambda: 1, lambda: 1 // 0])


def test_no_call_outlives_an_interrupt_while_a_thread_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    start, ended = threading.Thread.start, []

    def interrupted(self: threading.Thread) -> None:
        start(self)
        time.sleep(0.1)  # the thread has taken its call
        raise KeyboardInterrupt

    def call() -> None:
        time.sleep(0.5)
        ended.append(1)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(threading.Thread, "start", interrupted)
        at_once([call, call])
    assert ended == [1], "the call that had begun was not waited for"
