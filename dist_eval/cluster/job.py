"""`python -m dist_eval.cluster.job --output RUN -- COMMAND...`: a run as a batch job of a scheduler.

Starts the command that evaluates (or tunes), asks the run to stop in good order when the scheduler sends a signal, and
ends with a status that says what became of it. With `--slurm` it also tells torchrun where to meet, and has the job
started again when that is worth it. Needs no large library, and knows nothing of what the command does but its folder.
"""

from __future__ import annotations

import argparse
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from dist_eval.cluster import slurm
from dist_eval.cluster.sweep import read_sweep
from dist_eval.distributed.stop import SIGNALS, STOP_FILE
from dist_eval.errors import ConfigError, EvaluationError, RunError
from dist_eval.process.exit_status import COMPLETE, FAILED, STOPPED, WRONG_OPTIONS
from dist_eval.runs.outcome import Outcome, read_outcome

_POLL_SECONDS, _PATIENCE_SECONDS, _NEWS_SECONDS = 0.5, 90.0, 10.0
_DOCTOR = "dist_eval.doctor"
"""Looks only: its own status says what it has found."""


def build_parser() -> argparse.ArgumentParser:
    """Makes the command line's parser."""
    parser = argparse.ArgumentParser(
        prog="dist-eval job",
        usage="%(prog)s --output RUN [options] -- COMMAND...",
        description="Runs a command that evaluates (or tunes), such as `srun torchrun -m dist_eval ...`, as a batch "
        "job. --output RUN is appended to the command. SIGUSR1, SIGTERM and Ctrl-C ask the run to stop in good order.",
        epilog="Exit status: 0 the run is complete; 75 it is not, and the same job would go on where it was; 2 an "
        "option is wrong; 1 it failed, and would again.",
        allow_abbrev=False,
    )
    parser.add_argument("--output", required=True, type=Path, metavar="RUN", help="the run's folder; with --list the "
                        "folder above the runs' folders")  # fmt: skip
    parser.add_argument(
        "--list", type=Path, metavar="FILE", help="a run on each line: its name, and its options for the command"
    )
    parser.add_argument("--line", type=int, metavar="N", help="which line of --list, from 1")
    parser.add_argument(
        "--slurm",
        action="store_true",
        help="this is the batch script of a Slurm job: set torchrun's PET_* variables so that its nodes meet on a free "
        "port of the first one, and requeue the job after SIGUSR1, or if it ended early but got further",
    )
    parser.add_argument(
        "--patience",
        type=float,
        default=_PATIENCE_SECONDS,
        metavar="SECONDS",
        help=f"with --slurm: requeue this long after SIGUSR1, whatever the run does (default: {_PATIENCE_SECONDS:g})",
    )
    parser.add_argument("command", nargs="+", metavar="COMMAND", help=argparse.SUPPRESS)
    return parser


@dataclass(frozen=True)
class Verdict:
    """What became of one start of a run.

    Attributes:
        exit_status: 0, 1 or 75.
        goes_on: whether the job should be started again at once.
        words: what there is to say.
    """

    exit_status: int
    goes_on: bool
    words: str


def judge(
    before: Outcome, after: Outcome, command_status: int | None, asked: int | None, *, is_first: bool = True
) -> Verdict:
    """Judges a start of a run by what its folder said before and after.

    Args:
        before: what the folder said before the start.
        after: what it says now.
        command_status: exit status of the command; None if it did not end in time.
        asked: the signal by which the job was asked to stop, if it was.
        is_first: whether this was the first start of the job.

    Returns:
        A start goes on only if it finished something: otherwise the next one would end as it did. After SIGUSR1, which
        comes before a time limit, a first start goes on in any case; after other signals whoever sent them decides.
    """
    told = asked is not None
    if asked == signal.SIGUSR1 and not is_first and after.progress == before.progress and after.status != "complete":
        words = f"{after.folder} got no further within the time limit, for the second time: give the job a longer one"
        return Verdict(FAILED, False, words)
    ended = "did not end in time" if command_status is None else f"ended with status {command_status}"
    if after.version == before.version and command_status != 0:
        if told:
            return Verdict(STOPPED, asked == signal.SIGUSR1, f"stopped before it opened {after.folder}")
        return Verdict(FAILED, False, f"the command {ended} before it opened {after.folder}; its own words are above")
    if after.status == "missing":
        return Verdict(FAILED, False, f"the command ended, but {after.reason}: does it evaluate at all?")
    if after.status == "complete":
        return Verdict(COMPLETE, False, f"{after.folder} is complete")
    why = f": {after.reason}" if after.reason else ", and nobody said why"
    words = f"{after.folder} is {'not complete' if after.status == 'running' else after.status}{why}"
    if after.exit_status == FAILED:
        return Verdict(FAILED, False, words)
    if told or not after.transient:
        return Verdict(STOPPED, asked == signal.SIGUSR1, words)
    if after.progress == before.progress:
        return Verdict(FAILED, False, f"{words} (the command {ended}, nothing was finished since its start)")
    return Verdict(STOPPED, True, words)


class Job:
    """The command under way, and what it was asked by signals.

    Args:
        command: what to run.
        folder: the run's folder.
        environment: of the command.
    """

    def __init__(self, command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> None:
        self._command, self._folder, self._environment = command, folder, environment
        self.asked: int | None = None

    def run(self, patience: float) -> int | None:
        """Runs the command to its end.

        Args:
            patience: seconds that it has to end after SIGUSR1.

        Returns:
            Its exit status, None if it still runs.

        Raises:
            ConfigError: it cannot be started.
        """
        for number in SIGNALS:
            signal.signal(number, self._note)
        try:
            process = subprocess.Popen(self._command, env=dict(self._environment))
        except OSError as error:
            raise ConfigError(f"{self._command[0]} cannot be started: {error.strerror}.") from error
        deadline = None
        while True:
            with suppress(subprocess.TimeoutExpired):
                return process.wait(_POLL_SECONDS)
            if self.asked is None:
                continue
            self._ask()
            deadline = deadline or time.monotonic() + patience
            if self.asked == signal.SIGUSR1 and time.monotonic() > deadline:
                return None

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.asked = self.asked or number

    def _ask(self) -> None:
        # again and again: a run that is just starting removes the file, which may be from an earlier one
        with suppress(OSError):
            (self._folder / STOP_FILE).touch()


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit status: 0, 1, 2 or 75 (see `build_parser`)."""
    options = build_parser().parse_args(arguments)
    try:
        found = _run_of(options)
        if found is None:
            _say(f"nothing to do: line {options.line} of {options.list} names no run")
            return COMPLETE
        folder, extra_options = found
        environment = {**os.environ, **(slurm.rendezvous(os.environ) if options.slurm else {})}
        is_first = not (options.slurm and slurm.restarts(os.environ))
        if not is_first:  # what this very job has finished is not to be thrown away
            extra_options = [*extra_options, "--no-overwrite"]
        job = Job([*options.command, "--output", str(folder), *extra_options], folder, environment)
        before = read_outcome(folder)
        command_status = job.run(options.patience if options.slurm else math.inf)
        if _DOCTOR in options.command:
            return FAILED if command_status is None else command_status
        verdict = judge(
            before, _read_news(folder, before, command_status), command_status, job.asked, is_first=is_first
        )
        _say(verdict.words)
        if options.slurm and verdict.goes_on:
            for number in SIGNALS:  # requeueing ends this very script
                signal.signal(number, signal.SIG_IGN)
            _say(_requeued())
    except EvaluationError as error:
        _say(str(error))
        return WRONG_OPTIONS if isinstance(error, ConfigError) else FAILED
    return verdict.exit_status


def _read_news(folder: Path, before: Outcome, command_status: int | None) -> Outcome:
    """Reads what became of the run: of another host's writing a network folder may tell some seconds later."""
    deadline = time.monotonic() + _NEWS_SECONDS
    after = read_outcome(folder)
    is_news_due = command_status == COMPLETE and before.status != "complete"
    while is_news_due and after.version == before.version and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
        after = read_outcome(folder)
    return after


def _run_of(options: argparse.Namespace) -> tuple[Path, list[str]] | None:
    """Returns the run's folder and its own options, None for a line without a run."""
    if (options.list is None) != (options.line is None):
        raise ConfigError("--list and --line go together: the file, and which of its lines this job is about.")
    if options.list is None:
        return options.output, []
    entry = read_sweep(options.list).at(options.line)
    return (options.output / entry.name, entry.options) if entry else None


def _requeued() -> str:
    try:
        slurm.requeue(os.environ)
    except RunError as error:  # it is forbidden, or Slurm was faster, because it preempts the job or lost a node
        return f"not requeued by this script: {error}"
    return "requeued"


def _say(words: str) -> None:
    print(f"dist-eval job: {words}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
