"""A process leaves nothing behind, however it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from conftest import Launcher, wait_for

from dist_eval.process.lifetime import adopt_orphans, end_session, workspace

OWNER = str(Path(__file__).parents[1] / "workers" / "owner.py")


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_killed_owner_leaves_nothing(launcher: Launcher, end: signal.Signals) -> None:
    owner = launcher.start(OWNER, "wait")
    assert owner.stdout
    left = json.loads(owner.stdout.readline())
    assert Path(left["folder"], "left.sock").exists()
    assert wait_for(lambda: set(left["processes"]) < set(launcher.processes()))  # one may still be starting
    assert all(Path(path).exists() for path in left["shared"])
    time.sleep(2.0)  # until the janitor has seen the forked process, which the kernel ends with its parent
    os.kill(owner.pid, end)
    owner.wait()
    assert not launcher.leftovers()
    assert not any(Path(path).exists() for path in left["shared"])


def test_shared_memory_of_an_owner_that_still_runs_is_kept() -> None:
    path = Path(f"/dev/shm/torch_{os.getpid()}_workspace_0")
    path.touch()
    try:
        with workspace():
            pass
        assert path.exists()
    finally:
        path.unlink(missing_ok=True)


@pytest.mark.parametrize(("how", "status"), [("return", 0), ("fail", 1)])
def test_an_owner_that_ends_by_itself_leaves_nothing(launcher: Launcher, how: str, status: int) -> None:
    assert launcher.run(OWNER, how).returncode == status
    assert not launcher.leftovers()


def test_the_janitor_survives_an_interrupt_of_the_whole_process_group(launcher: Launcher) -> None:
    owner = launcher.start(OWNER, "wait", start_new_session=True)
    assert owner.stdout
    owner.stdout.readline()
    os.killpg(owner.pid, signal.SIGTERM)
    owner.wait()
    assert not launcher.leftovers()


@pytest.mark.parametrize("apart", [False, True])
def test_a_helper_in_a_group_of_its_own_survives_what_ends_its_owners_group(launcher: Launcher, apart: bool) -> None:
    program = (
        "import os, signal, time\n"
        "from dist_eval.process.lifetime import helpers_die_with_us\n"
        "signal.signal(signal.SIGTERM, lambda *_: None)\n"
        f"with helpers_die_with_us(apart={apart}):\n"
        "    helper = os.fork()\n"
        "if not helper:\n"
        "    time.sleep(600)\n"
        "time.sleep(0.5)\n"
        "os.killpg(os.getpgid(0), signal.SIGTERM)\n"
        "time.sleep(0.5)\n"
        "print(os.waitpid(helper, os.WNOHANG)[0] == 0)\n"
    )
    owner = launcher.start("-c", program, start_new_session=True)
    assert owner.communicate()[0].strip() == str(apart)
    assert not launcher.leftovers()


def test_a_workspace_is_private_and_gone_afterwards() -> None:
    with workspace() as folder:
        assert folder.stat().st_mode & 0o777 == 0o700
        (folder / "file").write_text("content")
    assert not folder.exists()


def test_a_socket_fits_into_a_workspace_even_if_the_temporary_folder_has_a_long_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("x" * 90)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    with workspace() as folder:
        assert len(str(folder / "p2pclient-0123456789a.sock")) <= 107


def test_a_workspace_of_a_process_that_ends_with_another_one_is_gone_too() -> None:
    with workspace() as outer:
        (long := outer / ("x" * 60)).mkdir()  # so the other one is not within it
        environment = {**os.environ, "TMPDIR": str(long)}
        owner = subprocess.Popen([sys.executable, OWNER, "wait"], env=environment, stdout=subprocess.PIPE)
        assert owner.stdout
        folder = Path(json.loads(owner.stdout.readline())["folder"])
        assert folder.exists()
    owner.communicate()
    assert wait_for(lambda: not folder.exists())


def test_a_workspace_survives_the_end_of_an_earlier_one_and_of_forked_helpers() -> None:
    with workspace():
        pass
    with workspace() as folder:
        if (child := os.fork()) == 0:
            os._exit(0)
        os.waitpid(child, 0)
        time.sleep(0.2)
        assert folder.exists()


def test_ending_a_session_ends_and_reaps_orphans_in_it() -> None:
    adopt_orphans()
    script = (
        "import os, time; print(os.fork() or os.getpid(), flush=True); os._exit(0) if os.fork() else time.sleep(600)"
    )
    leader = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert leader.stdout
    leader.stdout.readline()
    members = lambda: [p for p in _processes() if p[1] == leader.pid]  # noqa: E731
    assert wait_for(lambda: any(state != "Z" and pid != leader.pid for pid, _, state in members()))
    end_session(leader.pid)
    assert members() == []
    leader.wait()


def _processes() -> list[tuple[int, int, str]]:
    """Id, process group and state of all processes."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                state, _, group = (folder / "stat").read_text().rsplit(") ", 1)[1].split()[:3]
                found.append((int(folder.name), int(group), state))
            except OSError:
                continue
    return found
