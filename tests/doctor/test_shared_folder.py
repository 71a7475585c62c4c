"""Probes in the output folder: seen by ranks with the same folder, locked while their rank runs, then removed."""

from __future__ import annotations

import fcntl
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dist_eval.doctor import shared_folder
from dist_eval.doctor.facts import RankFacts
from dist_eval.doctor.shared_folder import Probe, can_lock, collect_probes, collect_run, collect_space
from dist_eval.runs.files import JOURNAL
from dist_eval.runs.folder_lock import HOLDER_FILE, LOCK_FILE

HOLD = """
import sys
from pathlib import Path
from dist_eval.doctor.facts import RankFacts
from dist_eval.doctor.shared_folder import Probe
with Probe(Path(sys.argv[1])).written(RankFacts(rank=1, host="elsewhere", world_size=int(sys.argv[2]))):
    print("written", flush=True)
    sys.stdin.read()
"""


@contextmanager
def other_rank(probe: Probe, world_size: int) -> Iterator[subprocess.Popen[str]]:
    """Another process: locks of POSIX do not exclude the one that holds them."""
    command = [sys.executable, "-c", HOLD, str(probe.path), str(world_size)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout and process.stdout.readline() == "written\n"
    yield process
    process.communicate()
    assert process.returncode == 0
    assert not probe.path.exists()


def test_ranks_see_each_others_probes_and_locks_and_nothing_is_left(tmp_path: Path) -> None:
    folder, facts = tmp_path / "new" / "run", RankFacts(rank=0, node=0, host="here", world_size=2)
    mine, theirs = Probe.in_folder(folder), Probe.in_folder(folder)
    names, nodes = {0: mine.path.name, 1: theirs.path.name}, {0: 0, 1: 1}
    with mine.written(facts), other_rank(theirs, 2):
        collect_probes(facts, names, nodes, folder)
        assert (facts.unseen, facts.lock_of, facts.lock_holds, facts.strangers) == ([], 1, True, [])
    assert list(folder.iterdir()) == []


def test_folders_that_differ_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_folder, "PATIENCE_SECONDS", 0.3)
    facts, mine, theirs = RankFacts(), Probe.in_folder(tmp_path / "a"), Probe.in_folder(tmp_path / "b")
    with mine.written(facts), other_rank(theirs, 2):
        collect_probes(facts, {0: mine.path.name, 1: theirs.path.name}, {0: 0, 1: 1}, tmp_path / "a")
    assert (facts.unseen, facts.lock_of, facts.lock_holds) == ([1], None, None)


def test_another_group_is_noticed_while_it_lives_and_not_when_it_was_killed(tmp_path: Path) -> None:
    facts, mine, theirs = RankFacts(), Probe.in_folder(tmp_path), Probe.in_folder(tmp_path)
    with mine.written(facts), other_rank(theirs, 1):
        collect_probes(facts, {0: mine.path.name}, {0: 0}, tmp_path)
    assert facts.strangers == ["rank 1 of 1 on elsewhere"]
    theirs.path.write_text(json.dumps({"rank": 0, "host": "gone", "world_size": 1}))
    with mine.written(facts):
        collect_probes(facts, {0: mine.path.name}, {0: 0}, tmp_path)
    assert facts.strangers == []


def test_what_the_folder_holds_and_who_uses_it(tmp_path: Path) -> None:
    facts = RankFacts()
    collect_run(facts, tmp_path, "results.json")
    assert (facts.run_status, facts.in_use) == (None, None)
    (tmp_path / "results.json").write_text('{"status": "incomplete"}')
    lock = tmp_path / JOURNAL / LOCK_FILE
    lock.parent.mkdir()
    lock.with_name(HOLDER_FILE).write_text("me")
    holder = subprocess.Popen(
        [sys.executable, "-c", "import fcntl,sys;f=open(sys.argv[1],'w');fcntl.lockf(f,fcntl.LOCK_EX);"
         "print(flush=True);sys.stdin.read()", str(lock)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )  # fmt: skip
    assert holder.stdout and holder.stdout.readline() == b"\n"
    collect_run(facts, tmp_path, "results.json")
    assert (facts.run_status, facts.in_use) == ("incomplete", "me")
    holder.communicate()
    assert can_lock(lock)


def test_space_is_that_of_the_place_where_the_folder_would_be(tmp_path: Path) -> None:
    facts = RankFacts()
    collect_space(facts, tmp_path / "not" / "yet")
    assert facts.output == str(tmp_path / "not" / "yet")
    assert facts.output_free and facts.temporary_free
    assert not (tmp_path / "not").exists()


def test_a_folder_without_locks_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "lockf", no_locks)
    probe = Probe.in_folder(tmp_path)
    with pytest.raises(OSError, match="No locks available"), probe.written(RankFacts()):
        pass
    assert not probe.path.exists()
