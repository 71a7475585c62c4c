"""Runs a benchmark as a program: with a temporary folder, and with cleanup of its processes, also on Ctrl-C."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from dist_eval.errors import EvaluationError
from dist_eval.process.lifetime import adopt_orphans, temporary_files_in, workspace
from dist_eval.process.logging_setup import silence_libraries

INTERRUPTED = 130


class BenchmarkError(Exception):
    """A benchmark cannot continue; the message is shown to the user."""


def run_program(measure: Callable[[Path], None]) -> NoReturn:
    """Runs a benchmark as a program, in a workspace, and shuts it down gracefully on Ctrl-C.

    Args:
        measure: the benchmark, which is called with the workspace.
    """
    silence_libraries()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _interrupt)
    code = INTERRUPTED
    try:
        adopt_orphans()
        with workspace() as scratch_dir, temporary_files_in(scratch_dir):
            _share_bytecode(scratch_dir)
            measure(scratch_dir)
            code = 0
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
    except (BenchmarkError, EvaluationError) as error:
        print(error, file=sys.stderr)
        code = 1
    except Exception:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # everything is closed; see `temporary_files_in`


def _share_bytecode(scratch_dir: Path) -> None:
    """Shares compiled bytecode between the processes of a benchmark, if writing it is disabled."""
    if sys.dont_write_bytecode:
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        os.environ["PYTHONPYCACHEPREFIX"] = str(scratch_dir / "bytecode")


def _interrupt(number: int, frame: object) -> None:
    for other in (signal.SIGTERM, signal.SIGINT):
        signal.signal(other, signal.SIG_IGN)
    raise KeyboardInterrupt
