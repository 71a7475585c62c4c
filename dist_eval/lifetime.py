"""Nothing left behind: every process, socket and temporary file of a run ends with the process that owns it.

Two independent means, because either alone has a hole (neither needs the dying process to do anything, so
both also work for SIGKILL):

1. The kernel's parent-death signal ends forked helpers such as hivemind's DHT process (`helpers_die_with_us`).
2. A *janitor*, one tiny process in a session of its own for each workspace, waits for the owner's end of a
   pipe to close, then ends every process whose command line names the workspace and removes the folder.

All sockets, identities and logs of a run lie in its workspace, so that the second means finds them all.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_JANITOR_END_SECONDS = 20
_JANITOR = Path(__file__).with_name("janitor.py")

_bind_forks = False
_hook_installed = False
_janitor_pipes: set[int] = set()


def die_with_parent() -> None:
    """Asks the kernel to SIGKILL this process when the process (thread) that started it ends. Linux only."""
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _install_fork_hook() -> None:
    global _hook_installed
    if not _hook_installed:
        os.register_at_fork(after_in_child=_after_fork_in_child)
        _hook_installed = True


def _after_fork_in_child() -> None:
    # A forked helper must not keep a pipe open after we are gone: the janitor waits for *our* end of it.
    for descriptor in _janitor_pipes:
        os.close(descriptor)
    _janitor_pipes.clear()
    if _bind_forks:
        die_with_parent()


@contextmanager
def helpers_die_with_us() -> Iterator[None]:
    """Within this context, processes forked by this one are killed when it ends, however it ends."""
    global _bind_forks
    _install_fork_hook()
    before, _bind_forks = _bind_forks, True
    try:
        yield
    finally:
        _bind_forks = before


@contextmanager
def workspace(prefix: str = "dist_eval-") -> Iterator[Path]:
    """Opens a private temporary folder that disappears with this process, even if it is killed.

    The path is short, because Unix sockets with at most 107 bytes of path are made in it.

    Args:
        prefix: start of the folder's name.

    Yields:
        The folder (mode 0700).
    """
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    read_end, write_end = os.pipe()
    try:
        janitor = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_JANITOR), str(read_end), str(folder)],
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
        if write_end in _janitor_pipes:  # not so in a forked helper that unwinds our stack
            _janitor_pipes.discard(write_end)
            os.close(write_end)
        try:
            janitor.wait(_JANITOR_END_SECONDS)
        except subprocess.TimeoutExpired:
            janitor.kill()
            janitor.wait()
