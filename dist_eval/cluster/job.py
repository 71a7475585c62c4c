"""`python -m dist_eval.cluster.job --output RUN -- COMMAND...`: a run as a batch job of a scheduler.

Starts the command that evaluates (or tunes), stops the run gracefully when the scheduler sends a signal, and exits with
a status that reflects the outcome. With `--slurm` it also sets torchrun's rendezvous, and requeues the job if that
helps. Imports no large library, and reads the outcome from the run's folder.
"""

from __future__ import annotations

import itertools
import math
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType

from dist_eval.arguments.commandline import Command, run_command
from dist_eval.arguments.fields import REQUIRED, Options, argument, option
from dist_eval.arguments.types import Positive, Words
from dist_eval.cluster.run_lists import read_sweep
from dist_eval.distributed.stop import SIGNALS, leave_stop_file
from dist_eval.errors import ConfigError, RunError, print_error, translating_os_errors
from dist_eval.process import slurm
from dist_eval.process.lifetime import die_with_parent
from dist_eval.process.programs import COMPLETE, FAILED, STOPPED, run_program
from dist_eval.runs.outcome import Outcome, read_outcome

_POLL_SECONDS, _FILE_SYSTEM_SECONDS = 0.5, 10.0
# modules and commands of `dist-eval` that do not evaluate; their exit status is passed on
_BEFORE_A_RUN = {"dist_eval.doctor", "dist_eval.planning"}, {"doctor", "plan"}


@dataclass(kw_only=True)
class JobOptions(Options):
    """The options of `dist-eval job`."""

    output: Path = option(REQUIRED, "the run's folder; with --list the folder above the runs' folders", metavar="RUN")
    list: Path | None = option(
        None, "a run on each line: its name, and its options for the command; or the YAML file of `dist-eval sweep`"
    )
    line: int | None = option(None, "which line of --list, or which run of the grid, from 1")
    slurm: bool = option(
        False,
        "this is the batch script of a Slurm job: set torchrun's PET_* variables so that the rendezvous is on a free "
        "port of the first node, and requeue the job after SIGUSR1, or if it ended early but made progress",
    )
    patience: Positive = option(
        90.0, "with --slurm: requeue this long after SIGUSR1, whatever the run does", metavar="SECONDS"
    )
    command: Words = argument("the command of the run, after --", "COMMAND")

    def _validate(self) -> None:
        if (self.list is None) != (self.line is None):
            raise ConfigError("--list and --line must be given together: the file, and the line of this job's run.")


COMMAND = Command(
    program="dist-eval job",
    config=JobOptions,
    usage="--output RUN [options] -- COMMAND...",
    description="Runs a command that evaluates (or tunes), such as `srun torchrun -m dist_eval ...`, as a batch "
    "job. --output RUN is appended to the command. SIGUSR1, SIGTERM and Ctrl-C ask the run to stop gracefully.",
    examples="Exit status: 0 the run is complete; 75 it is not, and the same job would resume it; 2 an option is "
    "wrong; 1 it failed, and would fail again.",
)


@dataclass(frozen=True)
class Verdict:
    """The outcome of one start of a run."""

    exit_status: int  # 0, 1 or 75
    requeue: bool  # whether to requeue the job
    message: str  # for the user


def outcome_of(
    before: Outcome, after: Outcome, command_status: int | None, stop_signal: int | None, *, is_first: bool = True
) -> Verdict:
    """Determines the outcome of a start from the state of the run's folder before and after, and the exit status.

    The job is requeued only if it made progress, because otherwise the next start would end the same way. After
    SIGUSR1, which precedes a time limit, and if only the command got a signal, as in a preemption, a first start is
    always requeued; after other signals to the job it is not.
    """
    was_asked = stop_signal is not None
    was_interrupted = not was_asked and command_status == STOPPED
    is_over_time = stop_signal == signal.SIGUSR1
    made_progress = after.progress != before.progress
    if is_over_time and not is_first and not made_progress and after.status != "complete":
        message = f"{after.folder} made no progress within the time limit, twice in a row: raise the job's time limit"
        return Verdict(FAILED, False, message)
    ended = "did not end in time" if command_status is None else f"ended with status {command_status}"
    if after.version == before.version and command_status != 0:
        if was_asked:
            return Verdict(STOPPED, is_over_time, f"stopped before it opened {after.folder}")
        if was_interrupted:
            return Verdict(STOPPED, is_first, f"the command was interrupted before it opened {after.folder}")
        return Verdict(FAILED, False, f"the command {ended} before it opened {after.folder}; its output is above")
    if after.status == "missing":
        return Verdict(FAILED, False, f"the command ended, but {after.reason}. Is it a command that evaluates?")
    if after.status == "complete":
        return Verdict(COMPLETE, False, f"{after.folder} is complete")
    why = f": {after.reason}" if after.reason else ", for an unknown reason"
    message = f"{after.folder} is {'not complete' if after.status == 'running' else after.status}{why}"
    if after.exit_status == FAILED:
        return Verdict(FAILED, False, message)
    if was_asked or not after.transient:
        return Verdict(STOPPED, is_over_time, message)
    if not made_progress and was_interrupted:
        return Verdict(STOPPED, is_first, message)
    if not made_progress:
        return Verdict(FAILED, False, f"{message} (the command {ended}, and made no progress)")
    return Verdict(STOPPED, True, message)


class Job:
    """The running command, and the signal that stopped it."""

    def __init__(self, command: Sequence[str], folder: Path, environment: Mapping[str, str] | None = None) -> None:
        self._command, self._folder, self._environment = command, folder, environment
        self.stop_signal: int | None = None

    def run(self, drain_timeout: float) -> int | None:
        """Runs the command to its end, at most `drain_timeout` seconds after SIGUSR1."""
        handlers = {number: signal.signal(number, self._on_signal) for number in SIGNALS}
        try:
            return self._run(drain_timeout)
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)

    def _run(self, drain_timeout: float) -> int | None:
        with translating_os_errors(ConfigError, f"{self._command[0]} cannot be started"):
            # a killed job cannot stop its run; this program has no threads, for which a preexec_fn would be unsafe
            process = subprocess.Popen(
                self._command, env=self._environment, preexec_fn=partial(die_with_parent, signal.SIGTERM)
            )
        deadline = None
        while True:
            with suppress(subprocess.TimeoutExpired):
                return process.wait(_POLL_SECONDS)
            if self.stop_signal is None:
                continue
            self._request_stop()
            deadline = deadline or time.monotonic() + drain_timeout
            if self.stop_signal == signal.SIGUSR1 and time.monotonic() > deadline:
                return None

    def run_to_end(self, drain_timeout: float = math.inf, *, is_first: bool = True) -> Verdict:
        """Runs the command to its end, and determines the outcome (see `outcome_of`)."""
        before = read_outcome(self._folder)
        status = self.run(drain_timeout)
        after = _read_new_outcome(self._folder, before, status)
        return outcome_of(before, after, status, self.stop_signal, is_first=is_first)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.stop_signal = self.stop_signal or number

    def _request_stop(self) -> None:
        # repeatedly, because a starting run removes the file, which may be from an earlier run
        with suppress(OSError):
            leave_stop_file(self._folder)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit status: 0, 1, 2 or 75 (see `COMMAND`)."""
    return run_command(COMMAND, run_job, arguments)


def run_job(options: JobOptions) -> int:
    """Runs the command, and returns what became of the run as an exit status."""
    found = _run_of(options)
    if found is None:
        _print(f"nothing to do: line {options.line} of {options.list} has no run")
        return COMPLETE
    folder, extra_options = found
    environment = {**os.environ, **(slurm.rendezvous(os.environ) if options.slurm else {})}
    is_first = not (options.slurm and slurm.restarts(os.environ))
    if not is_first:  # keep the progress of earlier starts of this job
        extra_options = [*extra_options, "--no-overwrite"]
    job = Job([*options.command, "--output", str(folder), *extra_options], folder, environment)
    patience = options.patience if options.slurm else math.inf
    if _comes_before_a_run(options.command):
        command_status = job.run(patience)
        return FAILED if command_status is None else command_status
    verdict = job.run_to_end(patience, is_first=is_first)
    _print(verdict.message)
    if options.slurm and verdict.requeue:
        for number in SIGNALS:  # requeueing kills this script
            signal.signal(number, signal.SIG_IGN)
        _print(_try_requeue())
    return verdict.exit_status


def _comes_before_a_run(command: Sequence[str]) -> bool:
    modules, commands = _BEFORE_A_RUN
    after = (word for name, word in itertools.pairwise(command) if Path(name).name == "dist-eval")
    return not modules.isdisjoint(command) or not commands.isdisjoint(after)


def _read_new_outcome(folder: Path, before: Outcome, command_status: int | None) -> Outcome:
    """Reads the state of the run; a network file system may show another host's writes some seconds late."""
    deadline = time.monotonic() + _FILE_SYSTEM_SECONDS
    after = read_outcome(folder)
    is_change_expected = command_status == COMPLETE and before.status != "complete"
    while is_change_expected and after.version == before.version and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
        after = read_outcome(folder)
    return after


def _run_of(options: JobOptions) -> tuple[Path, Words] | None:
    """Returns the run's folder and its options from the list, None for a line without a run."""
    if options.list is None or options.line is None:
        return options.output, []
    entries = read_sweep(options.list)
    if not 1 <= options.line <= len(entries):
        raise ConfigError(f"{options.list} has no line {options.line}: it has {len(entries)}, counted from 1.")
    entry = entries[options.line - 1]
    return (options.output / entry.name, entry.options) if entry else None


def _try_requeue() -> str:
    try:
        slurm.requeue(os.environ)
    except (
        RunError
    ) as error:  # it is forbidden, or Slurm has already requeued the job after a preemption or a lost node
        return f"not requeued by this script: {error}"
    return "requeued"


def _print(message: str) -> None:
    print_error(message, "dist-eval job")


if __name__ == "__main__":
    run_program(main)
