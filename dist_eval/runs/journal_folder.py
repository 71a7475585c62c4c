"""The folder of the journal as a new start finds it: whose batches it holds, and how they were planned."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from dist_eval.errors import RunError, translating_os_errors
from dist_eval.process.files import write_atomically
from dist_eval.process.parsing import read_json
from dist_eval.runs.files import FINGERPRINT, JOURNAL, RECORDED_PLAN
from dist_eval.runs.fingerprint import Fingerprint

SUFFIX, FAULTY_SUFFIX = ".batches", ".odd"
"""Of a rank's finished batches, and of what marks a server as excluded (see `dist_eval.runs.journal`)."""

_DAMAGE = (ValueError, KeyError, TypeError)  # What reading a damaged JSON file raises


def has_batches(folder: Path) -> bool:
    """Returns whether a run's folder holds finished batches."""
    return any(path.stat().st_size for path in (folder / JOURNAL).glob(f"*{SUFFIX}"))


def has_batches_of(folder: Path, run: Fingerprint) -> bool:
    """Returns whether a run's folder holds finished batches that depend on just this, by the names of their files."""
    with suppress(FileNotFoundError, *_DAMAGE):
        as_recorded = run.with_plan(_recorded_plan(folder)["plan"])
        if _has_files_of(folder, as_recorded):
            return True
    return _has_files_of(folder, run)


def _has_files_of(folder: Path, run: Fingerprint) -> bool:
    pattern = f"{name_of_run(run.digest())}-*{SUFFIX}"
    return any(path.stat().st_size for path in (folder / JOURNAL).glob(pattern))


def name_of_run(digest: str) -> str:
    """Returns what the names of a run's files begin with, by the hash of what its results depend on."""
    return f"run-{digest[:12]}"


def _recorded_plan(folder: Path) -> dict[str, Any]:
    return dict(read_json(folder / JOURNAL / RECORDED_PLAN))


def recorded_cache_tokens(folder: Path) -> int | None:
    """Returns for caches of how many tokens a run's batches were planned; None if that is still to be decided.

    Raises:
        RunError: there are batches, and what says how they were planned cannot be read.
    """
    try:
        return int(_recorded_plan(folder)["session_tokens"])
    except FileNotFoundError:
        return 0 if has_batches(folder) else None
    except (OSError, *_DAMAGE) as error:
        if not has_batches(folder):
            return None
        raise RunError(
            f"{folder / JOURNAL / RECORDED_PLAN}, which says how the finished batches were planned, is damaged "
            f"({error!r}). Restore it, choose another --output, or start afresh with --overwrite."
        ) from error


def record_plan(folder: Path, cache_tokens: int, plan: str) -> None:
    """Records for caches of how many tokens a run's batches are planned, and the digest of that plan.

    Raises:
        RunError: the file cannot be written.
    """
    path, content = folder / JOURNAL / RECORDED_PLAN, {"session_tokens": cache_tokens, "plan": plan}
    with translating_os_errors(RunError, f"{path} cannot be written"):
        write_atomically(path, json.dumps(content).encode())


def require_recorded_plan(folder: Path, plan: str) -> None:
    """Requires that a run's batches are still planned as they were.

    Raises:
        RunError: they are not: another version of dist_eval began the run.
    """
    try:
        recorded = _recorded_plan(folder)["plan"]
    except (OSError, *_DAMAGE):
        return
    if recorded != plan:
        raise RunError(
            f"{folder} holds a part of a run whose sessions another version of dist_eval planned. Finish it with that "
            "version, choose another --output, or start afresh with --overwrite."
        )


def forget_journal(folder: Path) -> None:
    """Removes the finished batches of a run's folder."""
    for pattern in (f"*{SUFFIX}", f"*{FAULTY_SUFFIX}", FINGERPRINT, RECORDED_PLAN):
        for path in (folder / JOURNAL).glob(pattern):
            path.unlink(missing_ok=True)
