"""The time of a run, and the software versions that its results depend on."""

from __future__ import annotations

import platform
import subprocess
from datetime import datetime, timezone
from importlib import metadata

from dist_eval.results.inputs import Environment

_PACKAGES = ("dist_eval", "petals", "hivemind", "torch", "transformers", "datasets", "numpy", "scikit-learn")


def now() -> str:
    """Returns the current time in UTC, as ISO 8601."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def environment() -> Environment:
    """Returns the software versions that results depend on."""
    packages: dict[str, str | None] = {}
    for name in _PACKAGES:
        try:
            packages[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            packages[name] = None
    return Environment(
        python=platform.python_version(), platform=platform.platform(), packages=packages, git_commit=_git_commit()
    )


def _git_commit() -> str | None:
    try:
        answer = subprocess.run(
            ["git", "rev-parse", "HEAD"],
            capture_output=True,
            text=True,
            timeout=5,
            check=True,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip()
