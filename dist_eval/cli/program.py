"""Runs one rank of any kind of run as a program, from its command line to its exit status.

Handles signals, the scratch folder, and the report of several failed ranks. The caller defines the run.
"""

from __future__ import annotations

import errno
import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

from dist_eval import errors
from dist_eval.arguments.commandline import Command, end_for_wrong_options, parse_args
from dist_eval.distributed.stop import Stop, asked_by_a_person
from dist_eval.errors import (
    ConfigError,
    CoverageError,
    EvaluationError,
    RunStopped,
    error_summary,
    os_reason,
    print_error,
)
from dist_eval.options.config import RunConfig
from dist_eval.process.lifetime import die_with_parent, temporary_files_in, workspace
from dist_eval.process.logging_setup import silence_libraries
from dist_eval.process.patching import gc_paused
from dist_eval.process.programs import (
    COMPLETE,
    FAILED,
    INTERRUPTED,
    STOPPED,
    STOPPED_BY_A_PERSON,
    lost_output,
    tolerate_broken_output,
)

if TYPE_CHECKING:
    from dist_eval.distributed.rank_store import RankStore, Topology
    from dist_eval.runs.run_folder import RunFolder

# runs one rank: called with its context (see `dist_eval.evaluation.context`)
RunFunction = Callable[..., Any]

# the run function and the class of the run's folder; and the function that imports them, given the options
Loaded: TypeAlias = "tuple[RunFunction, type[RunFolder]]"
Load = Callable[[Any], Loaded]


def main(command: Command[Any], load: Load) -> NoReturn:
    """Runs one rank and ends the process."""
    tolerate_broken_output()
    try:
        config: RunConfig = parse_args(sys.argv[1:], command)
    except ConfigError as error:
        end_for_wrong_options(error)
    code, stop = INTERRUPTED, Stop()
    try:
        stop.handle_signals()
        if "TORCHELASTIC_RUN_ID" in os.environ:
            die_with_parent()  # an agent killed with SIGKILL would leave its ranks behind
        if not config.verbose:
            silence_libraries()
        with workspace() as scratch_dir, temporary_files_in(scratch_dir):
            code = run(config, scratch_dir, stop, load)
            stop.ignore_signals()  # torchrun ends the other ranks once the first has ended
    except KeyboardInterrupt:
        stop.ignore_signals()
    if why := lost_output():  # the run's results are in its folder all the same
        print(f"dist_eval: standard output cannot be written: {why}.", file=sys.stderr, flush=True)
    os._exit(code)  # everything is closed; threads that still wait for a server's answer must not delay the exit


def run(config: RunConfig, scratch_dir: Path, stop: Stop | None, load: Load) -> int:
    """Runs one rank and returns its exit status; if ranks fail, the first one reports for all.

    The status is 0 if the run is complete, 1 if it failed, 75 if it was stopped gracefully, 3 if a person stopped it
    with the file STOP, 130 if it was interrupted. Ranks that stop together have the same status. `scratch_dir` is this
    rank's private folder; `load` imports the run's code.
    """
    with gc_paused():
        from transformers import masking_utils, modeling_layers  # noqa: F401  (what any of its models imports)

        from dist_eval.evaluation import context  # noqa: F401  (what `_run_in` imports)

        run_function, folder_class = load(config)
    peers = config.initial_peers
    with closing(
        folder_class(config.output_folder, config.recorded(), overwrite=config.overwrite, peers=peers)
    ) as folder:
        return _run_in(folder, config, scratch_dir, stop, run_function)


@dataclass(frozen=True)
class _Failure:
    """Why a rank did not reach its end."""

    message: str
    exit_status: int = FAILED
    transient: bool = True  # an unexpected error may be due to the host, not to the input
    details: str = ""  # the traceback, if requested
    coverage: dict[str, Any] | None = None
    kind: str = ""  # class of the error, as in `dist_eval.errors`

    @classmethod
    def from_error(cls, error: BaseException, *, is_verbose: bool) -> _Failure:
        traceback_text = "".join(traceback.format_exception(error))
        if isinstance(error, KeyboardInterrupt):
            return cls("interrupted before the end", INTERRUPTED)
        if isinstance(error, EvaluationError):
            coverage = error.coverage.model_dump() if isinstance(error, CoverageError) else None
            details = traceback_text if is_verbose else ""
            kind = next(kind.__name__ for kind in type(error).__mro__ if kind.__module__ == errors.__name__)
            return cls(str(error), FAILED, error.transient, details, coverage, kind)
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            where = error.filename or "a temporary file or for shared memory (/dev/shm)"  # semaphores are unnamed
            message = f"No space left for {where}: free some, or give the container more."
            return cls(message, details=traceback_text if is_verbose else "")
        return cls(error_summary(error), details=traceback_text)


def _run_in(
    folder: RunFolder, config: RunConfig, scratch_dir: Path, stop: Stop | None, run_function: RunFunction
) -> int:
    """Runs one rank in a folder, which is locked until its end is recorded."""
    from dist_eval.distributed.rank_store import RankStore, Topology
    from dist_eval.evaluation.context import RunContext

    rank = os.environ.get("RANK", "0")
    topology, rank_store = Topology(rank=int(rank) if rank.isdecimal() else 0), None
    end: Callable[..., bool] = folder.fail
    try:
        topology = Topology.from_environment()
        rank_store = RankStore(topology)
        run_function(RunContext(config, topology, rank_store, scratch_dir, folder, stop or Stop()))
        return COMPLETE
    except RunStopped as error:
        if topology.is_leader:  # all ranks stop together
            print_error(str(error))
        return STOPPED_BY_A_PERSON if asked_by_a_person(str(error)) else STOPPED
    except (KeyboardInterrupt, Exception) as error:
        failure = _Failure.from_error(error, is_verbose=config.verbose)
        failure = replace(failure, message=config.without_temporary_names(failure.message))
        if isinstance(error, KeyboardInterrupt):
            # torchrun sends SIGTERM to the other ranks when one has died, and may restart them all
            end = partial(folder.stop, may_restart=error.args == ("SIGTERM",))
    _report(failure, folder, topology, rank_store, end)
    return failure.exit_status


def _report(
    failure: _Failure, folder: RunFolder, topology: Topology, rank_store: RankStore | None, end: Callable[..., bool]
) -> None:
    """Prints why a run ended and records it in its folder; the first rank that failed does so for all."""
    reason = {"message": failure.message, "rank": topology.rank, "host": topology.host}
    reason |= {"transient": failure.transient, "coverage": failure.coverage}
    try:
        reports = rank_store is None or rank_store.claim_failure(reason)
        first = reason if reports or rank_store is None else rank_store.failure() or reason
    except (EvaluationError, RuntimeError):  # the store ended with torchrun; reporting twice is better than not at all
        reports, first = True, reason
    if reports:
        with suppress(OSError):  # the folder's disk may have failed
            if folder.is_ours and folder.is_resumable and folder.is_running:
                source = folder.resume_source
                print_error(f"The finished part is in {source}: the same command resumes from there.")
        print_error(failure.details + failure.message)
        _report_to_torchrun(failure)
    if reports or topology.is_leader:  # also the leader, because the failed rank may be on a host with other disks
        try:
            (end if first["message"] == failure.message else folder.fail)(
                **first
            )  # another rank may have the root cause
        except OSError as error:
            print_error(f"{folder.results_name} could not be marked as failed: {os_reason(error)}.")


def _report_to_torchrun(failure: _Failure) -> None:
    """Adds the message and class to torchrun's failure report, which `dist_eval.run` also reads.

    Format of the file: https://docs.pytorch.org/docs/stable/elastic/errors.html
    """
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if path:
        details = {"timestamp": int(time.time()), "type": failure.kind}
        with suppress(OSError):
            Path(path).write_text(json.dumps({"message": {"message": failure.message, "extraInfo": details}}))
