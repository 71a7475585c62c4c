"""A run as a program: one rank from its command line to its exit status, whatever kind of run it is.

Knows signals, the workspace, and who of several failed ranks speaks; what a run does is the caller's.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from dist_eval.distributed.stop import Stop, asked_by_a_person
from dist_eval.errors import ConfigError, CoverageError, EvaluationError, RunStopped
from dist_eval.options.commandline import end_for_wrong_options
from dist_eval.options.config import RunConfig
from dist_eval.process.exit_status import COMPLETE, FAILED, INTERRUPTED, STOPPED, STOPPED_BY_A_PERSON
from dist_eval.process.gc_paused import gc_paused
from dist_eval.process.lifetime import die_with_parent, temporary_files_in, workspace
from dist_eval.process.logging_setup import silence_libraries

if TYPE_CHECKING:
    from dist_eval.runs.run_folder import RunFolder

Config = TypeVar("Config", bound=RunConfig)
Conduct = Callable[..., Any]
"""What every rank does: called with its configuration, topology, board, private folder, stop, and the run's folder."""

Load = Callable[[], "tuple[Conduct, type[RunFolder]]"]
"""Imports what conducts the run, and the class of its folder."""


def main(parse: Callable[[Sequence[str]], Config], load: Load) -> NoReturn:
    """Runs one rank and ends the process.

    Args:
        parse: makes a configuration of the command line without the program's name.
        load: imports what the run needs; called once the command line is known to be right.
    """
    try:
        config = parse(sys.argv[1:])
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
            stop.ignore_signals()  # torchrun ends the other ranks once the first is gone
    except KeyboardInterrupt:
        stop.ignore_signals()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # everything is closed; threads that still wait for a server's answer must not keep us


def run(config: RunConfig, scratch_dir: Path, stop: Stop | None, load: Load) -> int:
    """Runs one rank; of the ranks that fail, the first one speaks for all.

    Args:
        config: what to do.
        scratch_dir: this rank's private folder.
        stop: asked whether to go on.
        load: imports what the run needs.

    Returns:
        The exit status: 0 when the run is complete, 1 when it failed, 75 when it was stopped in good order, 3 when a
        person did so, 130 when it was interrupted. Ranks that stop together have the same one.
    """
    with gc_paused():
        from dist_eval.distributed.rank_store import RankStore, Topology
        from dist_eval.errors import print_error

        conduct, folder_class = load()

    topology, rank_store, coverage, details, folder = None, None, None, "", folder_class(config)
    transient = True  # what nobody foresaw may be the host's, not the input's
    try:
        topology = Topology.from_environment()
        rank_store = RankStore(topology)
        conduct(config, topology, rank_store, scratch_dir, stop, folder)
        return COMPLETE
    except KeyboardInterrupt:
        message, code = "interrupted before the end", INTERRUPTED
    except RunStopped as error:
        if topology is not None and topology.is_leader:  # all ranks stop together
            print_error(str(error))
        return STOPPED_BY_A_PERSON if asked_by_a_person(str(error)) else STOPPED
    except EvaluationError as error:
        message, code, transient = str(error), FAILED, error.transient
        details = traceback.format_exc() if config.verbose else ""
        coverage = _counts(error.coverage) if isinstance(error, CoverageError) else None
    except Exception as error:
        message, details, code = f"{type(error).__name__}: {error}", traceback.format_exc(), FAILED
    topology = topology or Topology(rank=int(os.environ.get("RANK", 0)))
    reason = {"message": message, "rank": topology.rank, "host": topology.host, "transient": transient}
    reason["coverage"] = coverage
    try:
        speaks = rank_store is None or rank_store.claim_failure(reason)
        first = reason if speaks or rank_store is None else rank_store.failure() or reason
    except (EvaluationError, RuntimeError):  # the store went with torchrun: better twice than not at all
        speaks, first = True, reason
    if speaks:
        if folder.is_ours and folder.is_resumable and folder.results().get("status") == "running":
            print_error(f"What was finished before is in {folder.keeps}: the same command resumes from there.")
        print_error(details + message)
        _tell_torchrun(message)
    if speaks or topology.is_leader:  # the leader too: the rank that failed may be on a host with other disks
        try:
            end = folder.stop if code == INTERRUPTED else folder.fail
            end(**first)
        except OSError as error:
            print_error(f"{folder.results_name} could not be marked as failed: {error}")
    return code


def _tell_torchrun(message: str) -> None:
    """Has torchrun's own report of the failure, which follows, end with the message.

    The file's form: https://docs.pytorch.org/docs/stable/elastic/errors.html
    """
    path, now = os.environ.get("TORCHELASTIC_ERROR_FILE"), int(time.time())
    if path:
        with suppress(OSError):
            Path(path).write_text(json.dumps({"message": {"message": message, "extraInfo": {"timestamp": now}}}))


def _counts(coverage: object) -> dict[str, int]:
    return asdict(coverage)  # type: ignore[call-overload]
