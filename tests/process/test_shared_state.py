"""Structures that processes share: all see the same values, one at a time changes them, and a killed one lets go."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from pathlib import Path

from dist_eval.process.shared_state import SharedStates

_COUNTING = """
import ctypes, sys
from pathlib import Path
from dist_eval.process.shared_state import SharedStates

class Counter(ctypes.Structure):
    _fields_ = (("count", ctypes.c_uint64),)

states = SharedStates(Path(sys.argv[1]))
counter = states.open("counter", Counter)
"""
COUNT_UP = _COUNTING + "for _ in range(5000):\n    with states.locked():\n        counter.count += 1\n"
HOLD = _COUNTING + "with states.locked():\n    print('held', flush=True)\n    sys.stdin.read()\n"


class Counter(ctypes.Structure):
    _fields_ = (("count", ctypes.c_uint64),)


def test_several_processes_count_together(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "states"
    processes = [subprocess.Popen([sys.executable, "-c", COUNT_UP, str(folder)]) for _ in range(3)]
    assert [process.wait(60) for process in processes] == [0, 0, 0]
    states = SharedStates(folder)
    assert states.open("counter", Counter).count == 15000
    assert states.open("another one", Counter).count == 0


def test_a_process_that_is_killed_lets_go_of_the_lock(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
        os.kill(holder.pid, signal.SIGKILL)
        holder.communicate()
    states = SharedStates(tmp_path)
    with states.locked():
        states.open("counter", Counter).count += 1
    assert states.open("counter", Counter).count == 1
