"""`dist-eval sweep GRID.yaml --output FOLDER`: a run for each combination of options, one table, and comparisons.

The runs follow one another on this host, and each resumes where an earlier start ended. A job array can start the same
runs on a cluster (see `dist_eval.cluster.job`); this command then finds them complete and shows the table.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dist_eval.arguments.commandline import Command, parse_args, run_command
from dist_eval.arguments.fields import REQUIRED, argument, option
from dist_eval.arguments.types import Count
from dist_eval.cluster.job import Job, Verdict
from dist_eval.cluster.run_lists import Entry, Grid, read_grid
from dist_eval.errors import ConfigError, EvaluationError, print_error
from dist_eval.process.lifetime import workspace
from dist_eval.process.programs import COMPLETE, FAILED, STOPPED, WRONG_OPTIONS, run_program
from dist_eval.summary.__main__ import TableOptions
from dist_eval.summary.__main__ import main as summarize

_PROGRAM = "dist-eval sweep"
_EXAMPLES = f"""\
examples:
  {_PROGRAM} grid.yaml --output runs/models --nproc-per-node 4
  {_PROGRAM} grid.yaml --output runs/models --print

grid.yaml has the common options of all runs, and below `grid` the options that vary:
  command: harness                  # or tune (default: run)
  initial-peers: [/ip4/10.0.0.5/tcp/31337/p2p/QmPeerIdentity]
  grid:
    model: {{llama: ./llama-3.1-8b, qwen: ./qwen3-8b}}       # values with names, for the runs' folders,
    tasks: [arc_easy, hellaswag]                           # or without
    seed: [0, 1, 2]
A value may also be several options: `few: {{num-fewshot: 5, limit: 200}}`."""


@dataclass(kw_only=True)
class SweepOptions(TableOptions):
    """The options of `dist-eval sweep`."""

    grid: Path = argument("the options of the runs", "GRID.yaml")
    output: Path = option(REQUIRED, "gets a folder for each run", metavar="FOLDER")
    nproc_per_node: Count = option(1, "processes (ranks) of each run")
    compare: str | None = option(
        None, "test differences between runs that differ in this option only (default: the first below `grid`)",
        metavar="OPTION",
    )  # fmt: skip
    metric: list[str] = option(
        [], "metrics of the runs to show and to compare (default: the main ones)", metavar="NAME"
    )
    print: bool = option(False, "start nothing: print the name and the options of each run, in a line")


COMMAND = Command(
    program=_PROGRAM,
    config=SweepOptions,
    description="Starts a run for each combination of options, one after the other, then shows one table of all, "
    "and tests the differences between runs that differ in one option. The same command resumes.",
    examples=f"{_EXAMPLES}\n\nExit status: 0 all runs are complete; 75 some are not, and the same command resumes\n"
    "them; 2 an option is wrong; 1 some failed.",
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit status: 0, 1, 2 or 75 (see `COMMAND`)."""
    return run_command(COMMAND, sweep, arguments)


def sweep(options: SweepOptions) -> int:
    """Starts the runs, and shows them."""
    grid = read_grid(options.grid)
    if options.compare is not None and options.compare not in grid.axes:
        raise ConfigError(f"--compare {options.compare}: {options.grid} varies {', '.join(grid.axes)}.")
    if options.compare is not None and grid.command == "tune":
        raise ConfigError("--compare: tunings cannot be compared. Evaluate their checkpoints, and compare these runs.")
    _check_options(grid, options.grid)
    if options.print:
        for entry in grid.entries:
            print(shlex.join([entry.name, *entry.options]).replace("\n", "\\n"))
        return COMPLETE
    verdicts = _start_runs(grid, options.output, options.nproc_per_node)
    return STOPPED if len(verdicts) < len(grid.entries) else _show(grid, options, verdicts)


def _check_options(grid: Grid, path: Path) -> None:
    from dist_eval.cli.main import COMMANDS, command_of

    for entry in grid.entries:
        try:
            parse_args(entry.options, command_of(COMMANDS[grid.command]))
        except ConfigError as error:
            raise ConfigError(f"{path}, run {entry.name}: {error}") from error


def _start_runs(grid: Grid, output: Path, ranks: int) -> list[Verdict]:
    """Starts all runs, even after a failure; returns the outcome of each started run. A stop ends the loop."""
    verdicts: list[Verdict] = []
    command = [sys.executable, "-m", "dist_eval.cli.main", grid.command, f"--nproc-per-node={ranks}"]
    with workspace() as scratch_dir:  # its name marks all child processes, which end with this process
        environment = {**os.environ, "TMPDIR": str(scratch_dir)}
        for number, entry in enumerate(grid.entries, start=1):
            folder = output / entry.name
            print(f"{number} of {len(grid.entries)}: {entry.name}", file=sys.stderr, flush=True)
            job = Job([*command, *entry.options, "--output", str(folder)], folder, environment)
            verdict = job.run_to_end()
            if job.stop_signal is not None:
                print_error(f"stopped in run {number} of {len(grid.entries)}; the same command resumes.", _PROGRAM)
                break
            verdicts.append(verdict)
    return verdicts


def _show(grid: Grid, options: SweepOptions, verdicts: Sequence[Verdict]) -> int:
    """Prints the table of all runs, and the differences; returns the exit status."""
    metrics = ["--metric", *options.metric] if options.metric else []
    written = ["--write", *map(str, options.write)] if options.write else []
    print()  # separates the last run's table
    status = summarize([str(options.output), "--list", str(options.grid), *metrics, *written])
    if status == WRONG_OPTIONS:
        return status
    complete = []
    for entry, verdict in zip(grid.entries, verdicts, strict=True):
        if verdict.exit_status == COMPLETE:
            complete.append(entry)
        else:
            print(f"not compared: {entry.name}, {verdict.message}")
    if grid.command != "tune":
        _compare(complete, options.compare or grid.axes[0], options.output, options.metric)
    statuses = {status, *(verdict.exit_status for verdict in verdicts)}
    return next((worst for worst in (FAILED, STOPPED) if worst in statuses), COMPLETE)


def _compare(entries: Iterable[Entry], axis: str, output: Path, metrics: Sequence[str]) -> None:
    """Prints the differences between runs that differ in one axis only."""
    from dist_eval.compare.comparison import adjust_p_values, compare
    from dist_eval.compare.loading import load_run
    from dist_eval.compare.tables import describe_pairs
    from dist_eval.report.text import render_text

    sets: dict[tuple[str, ...], list[Path]] = {}
    for entry in entries:
        others = tuple(value for name, value in entry.values.items() if name != axis)
        sets.setdefault(others, []).append(output / entry.name)
    comparisons = []
    for folders in (folders for folders in sets.values() if len(folders) > 1):
        try:
            comparisons += compare([load_run(folder) for folder in folders], metrics=metrics, all_pairs=True)
        except EvaluationError as error:
            print(f"not compared: {error}")
    if comparisons:
        print("\n" + render_text(describe_pairs(adjust_p_values(comparisons))))


if __name__ == "__main__":
    run_program(main)
