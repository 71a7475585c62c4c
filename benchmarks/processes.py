"""The processes of a benchmark: Python programs, also as ranks, functions in processes of their own, and dist_eval."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.harness import BenchmarkError
from dist_eval.process.lifetime import end_session

LOG = "log.txt"
_ROOT = Path(__file__).parents[1]
_PETALS = "benchmarks/petals-2.2"
_TIMEOUT, _LINES_SHOWN = 1800.0, 50  # torchrun itself takes some 20


@contextmanager
def running(
    folder: Path, *arguments: str, ranks: int | None = None, threads: int = 1, petals: bool = False
) -> Iterator[subprocess.Popen[bytes]]:
    """Runs `python ARGUMENTS`, and finally ends it and its children.

    Args:
        folder: for its temporary files and its output, `log.txt`.
        *arguments: of Python.
        ranks: how many processes torchrun starts; None for one without torchrun.
        threads: of each process.
        petals: in the environment of Petals' release, which has no dist_eval (see `alternatives/petals_models.py`).
    """
    torchrun = [] if ranks is None else ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={ranks}"]
    with (folder / LOG).open("ab") as log:
        process = subprocess.Popen(
            [petals_python() if petals else sys.executable, *torchrun, *arguments],
            cwd=_ROOT,
            env={**os.environ, "OMP_NUM_THREADS": str(threads), "TMPDIR": str(folder)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        end_session(process.pid)


def run(folder: Path, *arguments: Any, **settings: Any) -> str:
    """Runs `python ARGUMENTS` to its end.

    Args:
        folder: for temporary files.
        *arguments: of Python.
        **settings: of `running`.

    Returns:
        Its output.

    Raises:
        BenchmarkError: it failed; the message has its last lines.
    """
    words = [str(argument) for argument in arguments]
    own = Path(tempfile.mkdtemp(dir=folder))
    with running(own, *words, **settings) as process:
        try:
            status = process.wait(_TIMEOUT)
        except subprocess.TimeoutExpired:
            status = None
    printed = (own / LOG).read_text(encoding="utf-8", errors="replace")
    if status != 0:
        how = f"did not end within {_TIMEOUT:g} s" if status is None else f"ended with status {status}"
        last = "\n".join(printed.splitlines()[-_LINES_SHOWN:])
        raise BenchmarkError(f"python {' '.join(words)} {how}. Its last lines:\n{last}")
    return printed


def call(
    function: str, folder: Path, *, ranks: int | None = None, threads: int = 1, petals: bool = False, **task: Any
) -> list[Any]:
    """Calls a function in processes of their own (see `worker.py`).

    Args:
        function: such as "benchmarks.alternatives.loop:classify".
        folder: for temporary files.
        ranks: see `running`.
        threads: see `running`.
        petals: see `running`.
        **task: arguments of the function, as JSON has them.

    Returns:
        Its return value in each process.

    Raises:
        BenchmarkError: it failed.
    """
    own = Path(tempfile.mkdtemp(dir=folder))
    (own / "task.json").write_text(json.dumps(task), encoding="utf-8")
    run(own, "-m", "benchmarks.worker", function, own, ranks=ranks, threads=threads, petals=petals)
    results = [own / f"result-{rank}.json" for rank in range(ranks or 1)]
    return [json.loads(path.read_text(encoding="utf-8")) for path in results]


def run_dist_eval(
    folder: Path, *arguments: Any, ranks: int = 1, module: str = "dist_eval"
) -> tuple[dict[str, Any], Path]:
    """Runs dist_eval under torchrun.

    Args:
        folder: for temporary files.
        *arguments: its options, without `--output`.
        ranks: number of processes.
        module: `dist_eval`, or one of its other programs.

    Returns:
        The content of its `results.json`, and the folder of the run.

    Raises:
        BenchmarkError: it failed.
    """
    output = Path(tempfile.mkdtemp(dir=folder)) / "output"
    run(folder, "-m", module, *arguments, "--output", output, ranks=ranks)
    return json.loads((output / "results.json").read_text(encoding="utf-8")), output


@functools.cache
def petals_python() -> str:
    """Returns the interpreter of `benchmarks/petals-2.2`; uv builds that environment if it is not there yet.

    Raises:
        BenchmarkError: uv is not installed, or could not build it.
    """
    if shutil.which("uv") is None:
        raise BenchmarkError(
            f"Petals' own classes of models need the packages of {_PETALS}, which uv installs: pip install uv."
        )
    # of the environment that this process runs in
    own = ("VIRTUAL_ENV", "UV_PROJECT_ENVIRONMENT", "UV_PYTHON")
    done = subprocess.run(
        ["uv", "run", "--project", _PETALS, "python", "-c", "import sys; print(sys.executable)"],
        cwd=_ROOT,
        env={name: value for name, value in os.environ.items() if name not in own},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    if done.returncode:
        raise BenchmarkError(f"uv could not build the environment of {_PETALS}: its message stands above.")
    return done.stdout.strip()
