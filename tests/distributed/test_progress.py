"""Progress of two ranks over a real store: both see each other's counts, and a silent rank is named."""

from __future__ import annotations

import io
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch.distributed as dist
from conftest import wait_for

from dist_eval.distributed import display, progress
from dist_eval.distributed.progress import Progress
from dist_eval.distributed.rank_store import RankStore, Topology
from dist_eval.distributed.stop import STOP_FILE, Stop
from dist_eval.distributed.tracked_progress import TrackedProgress
from dist_eval.errors import RunError
from dist_eval.statistics.intervals import wilson
from dist_eval.tracking import Trackers

MakeProgress = Callable[..., Progress]


@pytest.fixture
def two_ranks(monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeProgress]:
    """Makes the progress of one of two ranks."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(store.port))

    def make(rank: int, **options: Any) -> Progress:
        topology = Topology(rank=rank, world_size=2, host=f"host-{rank}")
        return Progress(topology, RankStore(topology), 100, **{"stream": io.StringIO(), **options})

    yield make
    del store


@contextmanager
def shown(*ranks: Progress) -> Iterator[None]:
    with ExitStack() as stack:
        for one in ranks:
            stack.enter_context(one.shown())
        yield


def test_a_request_to_stop_reaches_the_other_rank_with_its_reason(two_ranks: MakeProgress) -> None:
    stops, stream = (Stop(), Stop()), io.StringIO()
    with shown(*(two_ranks(rank, stop=stop, stream=stream) for rank, stop in enumerate(stops))):
        stops[1].request("this rank got SIGTERM")
        assert wait_for(lambda: stops[0].requested)
    assert stops[0].reason == "rank 1 got SIGTERM"
    assert stream.getvalue().count("stopping because rank 1 got SIGTERM: batches in flight are finished first") == 1


def test_a_stop_file_is_noticed(two_ranks: MakeProgress, tmp_path: Path) -> None:
    stop = Stop()
    with shown(two_ranks(0, stop=stop, folder=tmp_path)):
        (tmp_path / STOP_FILE).touch()
        assert wait_for(lambda: stop.requested)


def test_failed_examples_of_all_ranks_are_counted(two_ranks: MakeProgress) -> None:
    ranks = two_ranks(0), two_ranks(1)
    with shown(*ranks):
        ranks[0].add(3, 2, batch=0)
        ranks[1].add(0, 5, batch=1)
        assert wait_for(lambda: [rank.failed for rank in ranks] == [7, 7])


def test_what_a_rank_waits_for_is_shown_by_the_leader(two_ranks: MakeProgress) -> None:
    stream, said = io.StringIO(), iter(["no server for blocks 2:4", "no server for blocks 2:4", "it is back"])
    with shown(two_ranks(0, stream=stream), two_ranks(1, notice=lambda: next(said, ""))):
        assert wait_for(lambda: "it is back" in stream.getvalue())
    assert stream.getvalue().count("blocks 2:4") <= 1


def test_examples_of_an_earlier_start_count_as_done(two_ranks: MakeProgress) -> None:
    stream = io.StringIO()
    ranks = two_ranks(0, stream=stream), two_ranks(1)
    with shown(*ranks):
        ranks[0].begin(60, ranks[0].counted(), tokens_left=4000)
        ranks[0].add(15, tokens=1500)
        ranks[1].add(25, tokens=2500)
        assert wait_for(lambda: "100 of 100 examples" in stream.getvalue())
    speed = re.search(r"100 of 100 examples, (\d+)/s", stream.getvalue())
    assert speed and int(speed[1]) <= 40 / 0.5, "only this start's examples count for the speed"
    assert stream.getvalue().count("resuming: 60 examples are finished already\n") == 1


def test_the_time_left_is_that_of_the_tokens_of_all_ranks(two_ranks: MakeProgress, monkeypatch: Any) -> None:
    monkeypatch.setattr(display, "_LINE_SECONDS", 0.0)
    stream = io.StringIO()
    ranks = two_ranks(0, stream=stream), two_ranks(1)
    with shown(*ranks):
        ranks[0].begin(60, ranks[0].counted(), tokens_left=100_000)
        for _ in range(2):  # a tenth of the examples that are left, but hardly any of the tokens
            time.sleep(0.5)
            for rank in ranks:
                rank.add(1, tokens=100)
        assert wait_for(
            lambda: re.search(r"6\d of 100 examples, \d+/s, about \d+ min( \d+ s)? left", stream.getvalue())
        )


def test_a_tracker_has_what_is_judged_of_the_examples_of_all_ranks(two_ranks: MakeProgress) -> None:
    seen: list[tuple[int, Mapping[str, float | None]]] = []
    trackers = Trackers()
    trackers.log = lambda values, step: seen.append((step, values))  # type: ignore[method-assign]
    scored = iter([{"accuracy": [True, False]}, {"accuracy": np.ones(31, dtype=bool)}, {"accuracy": 7 * [False]}])
    ranks = two_ranks(0, tracked=TrackedProgress(trackers, 100, 0.95, lambda: scored)), two_ranks(1)
    with shown(*ranks):
        ranks[0].begin(60, ranks[0].counted(), tokens_left=4000)
        ranks[0].add(15)
        ranks[1].add(25)
        assert wait_for(lambda: bool(seen) and seen[-1][0] == 100)
    low, high = wilson(32, 40)
    accuracy = {"accuracy": 0.8, "accuracy/low": low, "accuracy/high": high}
    values = seen[-1][1]
    assert {name.partition("/")[2]: value for name, value in values.items() if "provisional" in name} == accuracy
    assert values["progress"] == 1
    speed = values["examples_per_second"]
    assert speed and speed <= 40 / 0.5, "only this start's examples count for the speed"


def test_what_cannot_be_judged_is_said_once_and_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[Mapping[str, float | None]] = []
    trackers = Trackers()
    trackers.log = lambda values, step: seen.append(values)  # type: ignore[method-assign]

    def scorer() -> Iterator[dict[str, list[bool]]]:
        yield {"accuracy": [True]}
        raise RunError("The journal cannot be read.")

    tracked = TrackedProgress(trackers, 10, 0.95, scorer)
    for done in (10, 11):
        tracked.show(done, 0)
    assert len(seen) == 2 and all("progress" in values and len(values) == 2 for values in seen)
    assert capsys.readouterr().err == (
        "dist_eval: --tracker: the running accuracy is no longer available: The journal cannot be read. "
        "The run continues.\n"
    )


def test_a_rank_that_gets_on_is_waited_for(two_ranks: MakeProgress) -> None:
    ranks = two_ranks(0), two_ranks(1)
    with shown(*ranks):
        done = []

        def finish() -> None:
            for _ in range(6):
                time.sleep(0.5)
                ranks[1].add(1, batch=3)
            ranks[1].wait_for_all(10.0)
            done.append(True)

        thread = threading.Thread(target=finish)
        thread.start()
        ranks[0].wait_for_all(1.5)
        thread.join()
        assert done


def test_a_rank_without_progress_is_named_with_its_host_and_its_last_batch(two_ranks: MakeProgress) -> None:
    ranks = two_ranks(0), two_ranks(1)
    with shown(*ranks):
        ranks[1].add(7, batch=5)
        time.sleep(1.2)
        with pytest.raises(RunError) as caught:
            ranks[0].wait_for_all(1.0)
    assert "seen no progress for 1 s from rank 1 on host-1 (7 examples done, the last ones in batch 5)" in str(
        caught.value
    )
    assert "--collective-timeout" in str(caught.value)


def test_once_stopping_a_rank_without_heartbeats_is_not_waited_for(
    two_ranks: MakeProgress, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "_BEATS_MISSED_SECONDS", 1.5)
    stop = Stop()
    dead = two_ranks(1)
    with dead.shown():
        dead.add(4, batch=9)
        time.sleep(1.2)
    leader = two_ranks(0, stop=stop)
    with shown(leader), pytest.raises(RunError, match=r"no heartbeat for 1\.5 s from rank 1 .*in batch 9\)"):
        stop.request("this rank got SIGTERM")
        leader.wait_for_all(600.0)


def test_a_rank_that_falls_silent_in_the_middle_stops_the_others_and_is_named(two_ranks: MakeProgress) -> None:
    stops = Stop(), Stop()
    silent, third = two_ranks(1), two_ranks(0, stop=stops[0], stall_timeout=1.5)
    with silent.shown():
        silent.add(4, batch=9)
        time.sleep(1.2)
    with shown(third):
        assert wait_for(lambda: stops[0].requested)
        with pytest.raises(
            RunError, match=r"no heartbeat .* from rank 1 .*in batch 9\)\. To wait longer.*--collective"
        ):
            third.wait_for_all(1.5)
    assert "received no heartbeat for 1.5 s from rank 1 on host-1 (4 examples done" in stops[0].reason


def test_ranks_that_are_slow_but_alive_do_not_count_as_lost(two_ranks: MakeProgress) -> None:
    stops = Stop(), Stop()
    with shown(*(two_ranks(rank, stop=stop, stall_timeout=1.5) for rank, stop in enumerate(stops))):
        time.sleep(3.5)
    assert not any(stop.requested for stop in stops)


def test_a_rank_that_is_cut_off_names_the_leader(
    two_ranks: MakeProgress, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stop = Stop()
    cut_off = two_ranks(1, stop=stop, stall_timeout=1.5)
    with two_ranks(0).shown(), cut_off.shown():
        assert wait_for(lambda: cut_off._leader)
        real = progress.Progress._pass_on

        def no_answer(self: Progress, store: Any) -> None:
            if self is cut_off:
                raise RunError("The store at MASTER_ADDR=host-0 does not answer any more.")
            real(self, store)

        monkeypatch.setattr(progress.Progress, "_pass_on", no_answer)
        assert wait_for(lambda: stop.requested)
        words = r"Rank 1 on host-1 has been cut off from rank 0 on host-0 for 1\.5 s: The store"
        with pytest.raises(RunError, match=words):
            cut_off.wait_for_all(1.5)
    assert stop.reason == "this rank is cut off from rank 0 on host-0"


def test_when_a_rank_fails_the_others_stop_in_good_order(two_ranks: MakeProgress) -> None:
    stop = Stop()
    with shown(two_ranks(0, stop=stop)):
        RankStore(Topology(rank=1, world_size=2)).claim_failure({"rank": 1, "host": "host-1"})
        assert wait_for(lambda: stop.requested)
    assert stop.reason == "rank 1 on host-1 failed"


def test_each_of_many_ranks_looks_at_the_others_less_often(two_ranks: MakeProgress) -> None:
    few, topology = two_ranks(0), Topology(world_size=1000)
    many = Progress(topology, RankStore(topology), 100)
    assert many._report_seconds > few._report_seconds
    assert many._look_seconds > few._look_seconds


def test_a_rank_opens_no_others_counts(two_ranks: MakeProgress) -> None:
    opened = []

    class Store:
        def check(self, keys: list[str]) -> bool:
            return False

        def add(self, key: str, number: int) -> int:
            opened.append(key)
            return 0

    two_ranks(1)._open_counts(Store())
    assert {key.rpartition("/")[2] for key in opened} == {"1"}
    opened.clear()
    two_ranks(0)._open_counts(Store())
    assert {key.rpartition("/")[2] for key in opened} == {"0", "1"}
