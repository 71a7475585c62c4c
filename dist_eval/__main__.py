"""`torchrun --nproc_per_node=N -m dist_eval`: the command line of the evaluator."""

from __future__ import annotations

import os
import sys
import traceback
from dataclasses import asdict
from pathlib import Path
from typing import NoReturn

from dist_eval.chatter import silence_libraries
from dist_eval.commandline import parse_args
from dist_eval.config import EvaluationConfig
from dist_eval.errors import ConfigError, CoverageError, EvaluationError, RunStopped
from dist_eval.imports import no_garbage_expected
from dist_eval.lifetime import die_with_parent, temporary_files_in, workspace
from dist_eval.stopping import Stop

FAILED, STOPPED, INTERRUPTED = 1, 75, 130
"""Exit statuses besides 0 for a complete run and 2 for wrong options; 75 is what sysexits.h has for "try again"."""


def main() -> NoReturn:
    """Runs one rank and ends the process."""
    try:
        config = parse_args(sys.argv[1:])
    except ConfigError as error:
        if os.environ.get("RANK", "0") == "0":
            print(error, file=sys.stderr)
        sys.exit(2)
    code, stop = INTERRUPTED, Stop()
    try:
        stop.handle_signals()
        if "TORCHELASTIC_RUN_ID" in os.environ:
            die_with_parent()  # an agent killed with SIGKILL would leave its ranks behind
        if not config.verbose:
            silence_libraries()
        with workspace() as own, temporary_files_in(own):
            code = run(config, own, stop)
            stop.ignore_signals()  # torchrun ends the other ranks once the first is gone
    except KeyboardInterrupt:
        stop.ignore_signals()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # everything is closed; threads that still wait for a server's answer must not keep us


def run(config: EvaluationConfig, own: Path, stop: Stop | None = None) -> int:
    """Runs one rank; of the ranks that fail, the first one speaks for all.

    Args:
        config: what to do.
        own: this rank's private folder.
        stop: asked whether to go on.

    Returns:
        The exit status: 0 when the run is complete, 1 when it failed, 75 when it was stopped in good order, 130 when it
        was interrupted.
    """
    with no_garbage_expected():
        from dist_eval.collectives import Board, Launch
        from dist_eval.evaluator import evaluate_run
        from dist_eval.report import print_error
        from dist_eval.run_folder import RunFolder

    launch, board, coverage, details, folder = None, None, None, "", RunFolder(config)
    try:
        launch = Launch.from_environment()
        board = Board(launch)
        evaluate_run(config, launch, board, own, stop, folder)
        return 0
    except KeyboardInterrupt:
        message, code = "interrupted before the end", INTERRUPTED
    except RunStopped as error:
        if launch is not None and launch.is_leader:  # all ranks stop together
            print_error(str(error))
        return STOPPED
    except EvaluationError as error:
        message, code = str(error), FAILED
        details = traceback.format_exc() if config.verbose else ""
        coverage = _counts(error.coverage) if isinstance(error, CoverageError) else None
    except Exception as error:
        message, details, code = f"{type(error).__name__}: {error}", traceback.format_exc(), FAILED
    launch = launch or Launch(rank=int(os.environ.get("RANK", 0)))
    reason = {"message": message, "rank": launch.rank, "host": launch.host, "coverage": coverage}
    try:
        speaks = board is None or board.claim_failure(reason)
        first = reason if speaks or board is None else board.failure() or reason
    except (EvaluationError, RuntimeError):  # the store went with torchrun: better twice than not at all
        speaks, first = True, reason
    if speaks:
        print_error(details + message)
    if speaks or launch.is_leader:  # the leader too: the rank that failed may be on a host with other disks
        try:
            end = folder.stop if code == INTERRUPTED else folder.fail
            if end(**first) and speaks and folder.is_resumable:
                print_error("What was finished before is in the journal: the same command goes on from there.")
        except OSError as error:
            print_error(f"results.json could not be marked as failed: {error}")
    return code


def _counts(coverage: object) -> dict[str, int]:
    return asdict(coverage)  # type: ignore[call-overload]


if __name__ == "__main__":
    main()
