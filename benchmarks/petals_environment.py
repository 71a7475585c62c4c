"""The environment of Petals' own classes of models, with which dist_eval is compared: `launch/petals-2.2`."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from pathlib import Path

from benchmarks.program import BenchmarkError

_ROOT = Path(__file__).parents[1]
_PROJECT = "launch/petals-2.2"


@functools.cache
def petals_python() -> str:
    """Returns the environment's interpreter; uv builds the environment, and says so, if it is not there yet.

    Raises:
        BenchmarkError: uv is not installed, or could not build it.
    """
    if shutil.which("uv") is None:
        raise BenchmarkError(
            f"Petals' own classes of models need the packages of {_PROJECT}, which uv installs: pip install uv."
        )
    # of the environment that this process runs in
    own = ("VIRTUAL_ENV", "UV_PROJECT_ENVIRONMENT", "UV_PYTHON")
    done = subprocess.run(
        ["uv", "run", "--all-extras", "--project", _PROJECT, "python", "-c", "import sys; print(sys.executable)"],
        cwd=_ROOT,
        env={name: value for name, value in os.environ.items() if name not in own},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    if done.returncode:
        raise BenchmarkError(f"uv could not build the environment of {_PROJECT}: its message stands above.")
    return done.stdout.strip()
