"""`torchrun --nproc_per_node=N -m dist_eval`: the command line of the evaluator."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from pathlib import Path
from typing import NoReturn

from dist_eval.chatter import silence_libraries
from dist_eval.config import EvaluationConfig, parse_args
from dist_eval.errors import ConfigError, EvaluationError
from dist_eval.lifetime import die_with_parent, temporary_files_in, workspace


def main() -> NoReturn:
    """Runs one rank and ends the process."""
    is_leader = os.environ.get("RANK", "0") == "0"
    try:
        config = _with_demo(parse_args(sys.argv[1:]))
    except ConfigError as error:
        if is_leader:
            print(error, file=sys.stderr)
        sys.exit(2)
    if "TORCHELASTIC_RUN_ID" in os.environ:
        die_with_parent()  # an agent killed with SIGKILL would leave its ranks behind
    if not config.verbose:
        silence_libraries()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _interrupt)
    with workspace() as own, temporary_files_in(own):
        code = run(config, own)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # everything is closed; threads that still wait for a server's answer must not keep us


def run(config: EvaluationConfig, own: Path) -> int:
    """Runs one rank; of the ranks that fail, the first one speaks for all.

    Args:
        config: what to do.
        own: this rank's private folder.

    Returns:
        The exit status: 0 when the run is complete, 1 when it failed, 130 when it was interrupted.
    """
    from dist_eval.collectives import Board, Launch
    from dist_eval.evaluator import evaluate_run
    from dist_eval.report import RunFolder, print_error

    launch = Launch.from_environment()
    try:
        board = Board(launch)
        evaluate_run(config, launch, board, own)
        return 0
    except KeyboardInterrupt:
        message, details, code = "interrupted before the end", "", 130
    except EvaluationError as error:
        message, details, code = str(error), traceback.format_exc() if config.verbose else "", 1
    except Exception as error:
        message, details, code = f"{type(error).__name__}: {error}", traceback.format_exc(), 1
    try:
        speaks = board.claim_failure()
    except (EvaluationError, RuntimeError, UnboundLocalError):
        speaks = launch.is_leader
    if speaks:
        print_error(details + message)
        RunFolder(config).fail(message, rank=launch.rank, host=launch.host)
    return code


def _with_demo(config: EvaluationConfig) -> EvaluationConfig:
    if config.demo:
        from dist_eval.demo import OPTIONS

        for name, value in OPTIONS.items():
            setattr(config, name, value)
    return config


def _interrupt(number: int, frame: object) -> None:
    for further in (signal.SIGTERM, signal.SIGINT):  # a terminal's Ctrl-C reaches us twice, from torchrun again
        signal.signal(further, signal.SIG_IGN)
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
