"""Cleanup: every process, socket and temporary file of a run disappears with the process that owns it.

Two independent mechanisms cover each other's gaps. Neither needs the dying process, so both also work for SIGKILL:

1. The kernel's parent-death signal kills forked helpers such as hivemind's DHT process (`helpers_die_with_us`).
2. A *janitor*, one tiny process in a separate session for each workspace, waits for the owner's end of a pipe to close,
   then kills every process whose command line or TMPDIR names the workspace, and removes the folder.

All sockets, identities and logs of a run are in its workspace, where the second mechanism finds them.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dist_eval.process.patching import environment_with, patched

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_JANITOR_END_SECONDS = 20
_SESSION_END_SECONDS = 10.0
_SHARER_END_SECONDS = 5.0
_PREFIX = "dist_eval-"
# Paths of Unix sockets have at most 107 bytes; the longest name within is that of multiprocessing
_LONGEST_BASE = 107 - len(f"/{_PREFIX}12345678/pymp-12345678/listener-12345678")
_JANITOR = Path(__file__).with_name("janitor.py")

# Loaded now, because loading in a fork of a process with threads could deadlock
_LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform.startswith("linux") else None

_bind_forks = _forks_apart = False
_forking_pid = 0
_hook_installed = False
_janitor_pipes: set[int] = set()


def die_with_parent(number: int = signal.SIGKILL) -> None:
    """Asks the kernel to send this process a signal when the thread that started it ends. Linux only."""
    _prctl(_PR_SET_PDEATHSIG, number)


def adopt_orphans() -> None:
    """Makes this process adopt and reap descendants whose parent ends. Linux only.

    Otherwise process 1 adopts them, which in many containers never reaps anything.
    """
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def end_session(leader: int) -> None:
    """Kills all processes of a session that a child of this process leads, and reaps them.

    The leader, a child that was started with `start_new_session=True`, may have ended before its helpers; its id
    remains their group's until the last one ends.
    """
    deadline = time.monotonic() + _SESSION_END_SECONDS
    while time.monotonic() < deadline:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(leader, signal.SIGKILL)
        try:
            ended, _ = os.waitpid(-leader, os.WNOHANG)
        except ChildProcessError:  # the session has no more processes
            return
        if not ended:
            time.sleep(0.01)


def _prctl(option: int, value: int) -> None:
    if _LIBC is not None:
        _LIBC.prctl(option, value, 0, 0, 0)


def _install_fork_hook() -> None:
    global _hook_installed
    if not _hook_installed:
        os.register_at_fork(before=_before_fork, after_in_child=_after_fork_in_child)
        _hook_installed = True


def _before_fork() -> None:
    global _forking_pid
    _forking_pid = os.getpid()


def _after_fork_in_child() -> None:
    # a forked helper must not keep the owner's end of the pipe open, because the janitor waits for it to close
    for descriptor in _janitor_pipes:
        os.close(descriptor)
    _janitor_pipes.clear()
    if not _bind_forks:
        return
    die_with_parent()
    if os.getppid() != _forking_pid:  # the parent ended before the signal was set
        os._exit(1)
    if _forks_apart:
        os.setpgid(0, 0)
    # the handlers are for the run; the owner ends a helper with SIGTERM
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


@contextmanager
def helpers_die_with_us(*, apart: bool = False) -> Iterator[None]:
    """Kills processes that this one forks within this context when this one ends, for any reason.

    `apart` gives them process groups of their own: torchrun sends SIGTERM to a rank's whole group, but a rank that
    shuts down gracefully still needs its helpers.
    """
    global _bind_forks, _forks_apart
    _install_fork_hook()
    before = _bind_forks, _forks_apart
    _bind_forks, _forks_apart = True, apart
    try:
        yield
    finally:
        _bind_forks, _forks_apart = before


@contextmanager
def temporary_files_in(folder: Path) -> Iterator[None]:
    """Within this context, this process and its children create temporary files in an existing folder.

    torch, multiprocessing and hivemind create sockets and folders that a killed process does not remove. Only for
    processes that end with `os._exit`: otherwise multiprocessing fails at exit because the folder is gone.
    """
    with environment_with("TMPDIR", str(folder)), patched(tempfile, "tempdir", str(folder)):
        yield


class MultiprocessingFiles:
    """The folder and socket of multiprocessing, which hivemind and torch use, for programs that exit normally.

    multiprocessing keeps them until the interpreter exits, and its finalizers require them. This class creates them in
    an existing folder, and can remove them earlier.
    """

    def __init__(self, folder: Path) -> None:
        from multiprocessing import resource_sharer, util

        self._folder, self._known = folder, {*util._finalizer_registry}  # type: ignore[attr-defined]
        self._shares = resource_sharer._resource_sharer._address is not None  # type: ignore[attr-defined]

    @contextmanager
    def begun(self) -> Iterator[None]:
        """Within this context, multiprocessing creates its files in the folder; includes `temporary_files_in`."""
        import multiprocessing

        settings = multiprocessing.current_process()._config  # type: ignore[attr-defined]
        before = settings.pop("tempdir", None)
        try:
            with temporary_files_in(self._folder):
                yield
        finally:
            settings.pop("tempdir", None)
            if before is not None:
                settings["tempdir"] = before

    def remove(self) -> None:
        """Removes the files."""
        from multiprocessing import resource_sharer, util

        if not self._shares:
            resource_sharer.stop(_SHARER_END_SECONDS)
        for key, finalizer in list(util._finalizer_registry.items()):  # type: ignore[attr-defined]
            is_folder = finalizer._callback is util._remove_temp_dir  # type: ignore[attr-defined]
            if key not in self._known and is_folder and str(finalizer._args[-1]).startswith(f"{self._folder}/"):
                finalizer()


@contextmanager
def workspace(*also_removed: Path) -> Iterator[Path]:
    """Yields a private temporary folder (mode 0700) that disappears with this process, even if it is killed.

    Its path is short even if TMPDIR is long, because Unix sockets are opened in it. The files `also_removed`, which are
    outside the folder, disappear with it.
    """
    base = tempfile.gettempdir()
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=base if len(base) <= _LONGEST_BASE else "/tmp"))
    read_end, write_end = os.pipe()
    command = [sys.executable, "-I", "-S", str(_JANITOR), str(read_end), str(os.getpid()), str(folder)]
    try:
        janitor = subprocess.Popen(
            [*command, *map(os.path.abspath, also_removed)],
            pass_fds=[read_end],
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    except OSError:
        os.close(write_end)
        shutil.rmtree(folder, ignore_errors=True)
        raise
    finally:
        os.close(read_end)
    _install_fork_hook()
    _janitor_pipes.add(write_end)
    try:
        yield folder
    finally:
        if write_end in _janitor_pipes:  # not in a forked helper, which unwinds the same stack
            _janitor_pipes.discard(write_end)
            os.close(write_end)
        try:
            janitor.wait(_JANITOR_END_SECONDS)
        except subprocess.TimeoutExpired:
            janitor.kill()
            janitor.wait()
