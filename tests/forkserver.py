"""Python interpreters that have everything imported: forked from one that did so once.

The imports of a rank or a server take longer than most of what tests have it do, and most of its memory.
`ForkServer.command` is to be used like `sys.executable`, also by torchrun (as PYTHON_EXEC) and for servers. Behind it
is a stand-in for the forked process, which passes on arguments, streams, signals and the exit status, and is found in
its place. Tests of what processes leave behind start real interpreters. Where the whole suite runs, its workers and
their own servers are forked from a first server.

    forkserver.py serve SOCKET                              the server
    forkserver.py stand-in SOCKET [arguments as of python]  a stand-in
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import multiprocessing
import os
import runpy
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

FIRST = "DIST_EVAL_TEST_FORKED_BY"
"""A variable: the command of the first server."""

NAME = "DIST_EVAL_TEST_NAME"
"""A variable: the name that the kernel is to show for a forked process and those that it forks."""

SERVER = "forked-"
"""What the names of servers begin with (`conftest.ForkedSwarm`)."""

MODULES = (
    "dist_eval.doctor.examination",
    "dist_eval.evaluation.classification",
    "dist_eval.api.evaluate",
    "dist_eval.model.classifier",
    "dist_eval.api.pipeline",
    "dist_eval.tuning.tuner",
    "torch.distributed.run",
    "transformers.models.auto.tokenization_auto",
    "transformers.models.llama.modeling_llama",
    # what is imported at the end of a run, or first for a swarm
    "dist_eval.report.evaluation",
    "dist_eval.report.text",
    "dist_eval.petals.client.inference_session",
    "matplotlib.backends.backend_agg",
    "matplotlib.backends.backend_svg",
    "sklearn.metrics",
)
_REAP_SECONDS = 0.02
_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15


class ForkServer:
    """A server of this process.

    Args:
        folder: for its socket.
    """

    def __init__(self, folder: Path) -> None:
        address = folder / "forkserver"
        self.command = str(folder / "python")
        bare = f'[ "$1" = -I ] && exec {sys.executable} "$@"'  # a janitor, which needs its pipe and no imports
        stand_in = f'exec {sys.executable} -I -S {__file__} stand-in {address} "$@"'
        Path(self.command).write_text(f"#!/bin/sh\n{bare}\n{stand_in}\n")
        os.chmod(self.command, 0o700)
        self._process = subprocess.Popen(
            [os.environ.get(FIRST, sys.executable), __file__, "serve", str(address)],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            start_new_session=True,  # so that it ends with us
        )
        assert self._process.stdout
        self._pid = int(self._process.stdout.readline())

    @property
    def environment(self) -> dict[str, str]:
        """Variables with which processes that are forked have theirs forked, too."""
        return {"PYTHON_EXEC": self.command}

    def children(self) -> dict[int, str]:
        """Returns the living processes that it forked, or inherited from those, but for servers."""
        found = {}
        for number, name, parent, _ in _processes():
            with contextlib.suppress(OSError):
                if parent == self._pid and not name.startswith(SERVER):
                    found[number] = Path(f"/proc/{number}/cmdline").read_bytes().replace(b"\0", b" ").decode()
        return found

    def group(self, name: str) -> set[int]:
        """Returns the process groups of the server with this name: one while it lives."""
        return {group for _, found, _, group in _processes() if found == name}

    def end(self) -> None:
        self._process.kill()
        self._process.wait()


@functools.cache
def fork_server() -> ForkServer:
    """The fork server of this worker, started when it is first needed.

    It is cached here because pytest and the tests import a conftest each.
    """
    folder = Path(tempfile.mkdtemp(prefix="f-"))
    server = ForkServer(folder)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    atexit.register(server.end)
    return server


def _processes() -> Iterator[tuple[int, str, int, int]]:
    """Yields id, name, parent and group of the living processes."""
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            start, fields = (folder / "stat").read_text().rsplit(") ", 1)
            state, parent, group = fields.split()[:3]
            if state != "Z":
                yield int(folder.name), start.partition("(")[2], int(parent), int(group)


def stand_in(address: str, *arguments: str) -> None:
    """Has a process forked, and ends as that does."""
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(address)
    leads = os.getsid(0) == os.getpid()
    if leads:  # a server, which is to end with its owner
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    request = json.dumps(
        {"arguments": arguments, "environment": dict(os.environ), "cwd": os.getcwd(), "leads_session": leads}
    ).encode()
    socket.send_fds(connection, [struct.pack("!q", len(request))], [0, 1, 2])
    connection.sendall(request)
    process = _number(connection)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, lambda number, _: os.kill(process, number))
    status = _number(connection)
    if status < 0:
        with contextlib.suppress(OSError):  # SIGKILL has no handler
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)


def serve(address: str) -> list[str]:
    """Forks a process for each request.

    Returns:
        In the forked process, the arguments of its interpreter.
    """
    from dist_eval.process.lifetime import adopt_orphans, die_with_parent
    from dist_eval.process.logging_setup import silence_libraries
    from dist_eval.process.patching import gc_paused

    die_with_parent()
    adopt_orphans()
    silence_libraries()
    with gc_paused():
        from dist_eval.petals.client.hivemind_compat import prepare_hivemind

        prepare_hivemind(sockets=Path(address).parent)
        from dist_eval.petals.server.petals_server import import_server

        import_server()
        for name in MODULES:
            __import__(name)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen(64)
    print(os.getpid(), flush=True)
    running: dict[int, socket.socket] = {}
    while True:
        ready, _, _ = select.select([listener, *running.values()], [], [], _REAP_SECONDS if running else None)
        for process, connection in list(running.items()):
            if connection in ready:  # nothing is ever sent: the stand-in was killed
                with contextlib.suppress(ProcessLookupError):
                    os.kill(-process if os.getpgid(process) == process else process, signal.SIGKILL)
        while running:
            process, status = os.waitpid(-1, os.WNOHANG)
            if not process:
                break
            if process in running:
                with running.pop(process) as connection, contextlib.suppress(OSError):
                    connection.sendall(struct.pack("!q", os.waitstatus_to_exitcode(status)))
        if listener in ready:
            connection, _ = listener.accept()
            try:
                request, streams = _request(connection)
            except (OSError, EOFError):  # the stand-in was killed as soon as it was started
                connection.close()
                continue
            process = os.fork()
            if not process:
                for one in (listener, connection, *running.values()):
                    one.close()
                return _become(request, streams)
            running[process] = connection
            for stream in streams:
                os.close(stream)
            with contextlib.suppress(OSError):  # killed since: seen in the next round
                connection.sendall(struct.pack("!q", process))


def _request(connection: socket.socket) -> tuple[dict, list[int]]:
    """Receives what a stand-in was started with, and its streams.

    Raises:
        OSError, EOFError: it is gone.
    """
    size, streams, _, _ = socket.recv_fds(connection, 8, 3)
    try:
        if not size:
            raise EOFError("the other end is gone")
        return json.loads(_receive(connection, struct.unpack("!q", size)[0])), streams
    except (OSError, EOFError):
        for stream in streams:
            os.close(stream)
        raise


def _become(request: dict, streams: list[int]) -> list[str]:
    """Takes over what the stand-in was started with."""
    import numpy as np
    from hivemind.compression import base as compression
    from hivemind.utils.asyncio import _AsyncContextWrapper
    from hivemind.utils.mpfuture import MPFuture

    from dist_eval.petals.server import private

    if request["leads_session"]:
        os.setsid()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environment"])
    # what imports have read from the server's own environment
    tempfile.tempdir = None
    private.PYTHON = [os.environ.get("PYTHON_EXEC", sys.executable)]
    compression.USE_LEGACY_BFLOAT16 = os.environ.get("USE_LEGACY_BFLOAT16", "1") != "0"
    sys.path[1:1] = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    if NAME in os.environ:
        _prctl(_PR_SET_NAME, os.environ[NAME].encode())
    np.random.seed()
    # locks that all forked processes would share: one that is killed while it holds them would block the others
    MPFuture.reset_backend()
    _AsyncContextWrapper.EXECUTOR_LOCK = multiprocessing.Lock()
    return request["arguments"]


def _prctl(option: int, value: int | bytes) -> None:
    import ctypes

    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _receive(connection: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        part = connection.recv(size - len(found))
        if not part:
            raise EOFError("the other end is gone")
        found += part
    return found


def _number(connection: socket.socket) -> int:
    return struct.unpack("!q", _receive(connection, 8))[0]


def run(arguments: list[str]) -> None:
    """Does what `python ARGUMENTS` does."""
    if arguments[0] == "-u":
        for stream in (sys.stdout, sys.stderr):
            stream.reconfigure(write_through=True)
        arguments = arguments[1:]
    if arguments[0] == "-m":
        module = arguments[1]
        sys.path[0], sys.argv = os.getcwd(), arguments[1:]
        if not hasattr(sys.modules.get(module), "__path__"):
            sys.modules.pop(module, None)
        sys.modules.pop(f"{module}.__main__", None)
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    elif arguments[0] == "-c":
        sys.path[0], sys.argv = "", ["-c", *arguments[2:]]
        exec(compile(arguments[1], "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.path[0], sys.argv = str(Path(arguments[0]).parent), arguments
        runpy.run_path(arguments[0], run_name="__main__")


def run_to_the_end(arguments: list[str]) -> None:
    """Runs, and exits as an interpreter does, but for clearing all modules.

    That would copy what is shared, and destructors of native libraries crash in it now and then.
    """
    status = 0
    try:
        run(arguments)
    except SystemExit as error:
        if isinstance(error.code, int | None):
            status = error.code or 0
        else:
            print(error.code, file=sys.stderr)
            status = 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
        status = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(status & 0xFF)


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        run_to_the_end(serve(sys.argv[2]))
    else:
        stand_in(*sys.argv[2:])
