"""`dist-eval COMMAND ...`: all commands of this package.

A command is a module that also runs as `python -m MODULE`. It is imported only when used, so `--help` is fast. `launch`
starts the commands that use several processes.
"""

from __future__ import annotations

import difflib
import runpy
import sys
from dataclasses import dataclass
from importlib import import_module, metadata
from typing import TYPE_CHECKING, Any

from dist_eval.process.programs import WRONG_OPTIONS, tolerate_broken_output
from dist_eval.tables import text_table

if TYPE_CHECKING:
    import argparse

    from dist_eval.arguments.commandline import Command

NAME = "dist-eval"


@dataclass(frozen=True)
class Program:
    """The module behind a command."""

    help: str  # summary in one line
    module: str  # to run, as with `python -m`; unless `command` is given, its `Command` is `COMMAND`
    command: str = ""  # `Command` of a command with several processes, as MODULE:NAME


COMMANDS = {
    "run": Program("evaluate a model on a dataset", "dist_eval", "dist_eval.options.config:EVALUATION"),
    "tune": Program("tune soft prompts and a head", "dist_eval.tuning", "dist_eval.options.tuning:COMMAND"),
    "harness": Program(
        "evaluate on tasks of the lm-evaluation-harness", "dist_eval.harness", "dist_eval.options.harness:HARNESS"
    ),
    "plan": Program(
        "estimate what a run sends, and how long it takes", "dist_eval.planning", "dist_eval.planning.config:PLAN"
    ),
    "doctor": Program(
        "check hosts, inputs and swarm before a run", "dist_eval.doctor", "dist_eval.doctor.config:DOCTOR"
    ),
    "swarm": Program("start a private swarm, or show one (swarm status)", "dist_eval.petals.__main__"),
    "compare": Program("test whether runs differ by more than chance", "dist_eval.compare.__main__"),
    "report": Program("show a run as a page, a summary or model card metadata", "dist_eval.report.__main__"),
    "summary": Program("show many runs in one table", "dist_eval.summary.__main__"),
    "sweep": Program("run each combination of some options", "dist_eval.sweep"),
    "schema": Program("print the JSON Schema of results.json", "dist_eval.schema"),
    "job": Program("run a command as a batch job of a scheduler", "dist_eval.cluster.job"),
    "completion": Program("print a shell completion script", "dist_eval.cli.completion"),
}


def usage() -> str:
    """Returns the output of `dist-eval --help`."""
    commands = text_table([(name, program.help) for name, program in COMMANDS.items()])
    return "\n".join(
        [
            f"usage: {NAME} COMMAND [options]",
            "",
            "Evaluates large language models on a Petals swarm, exactly, on any number of processes.",
            "",
            "commands:",
            *(f"  {line}" for line in commands),
            "",
            f"{NAME} COMMAND --help lists the options of a command; {NAME} run --demo needs none.",
            "",
        ]
    )


def main() -> int:
    """Runs the command line; returns the exit status of commands that do not end the process themselves."""
    tolerate_broken_output()
    name, *arguments = sys.argv[1:] or ["--help"]
    if name in ("-h", "--help", "help"):
        print(usage(), end="")
        return 0
    if name == "--version":
        print(NAME, metadata.version("dist_eval"))
        return 0
    if name not in COMMANDS:
        close = difflib.get_close_matches(name, COMMANDS, n=1)
        hint = f" Did you mean {close[0]}?" if close else f" {NAME} --help lists all commands."
        print(f"Unknown command {name!r}.{hint}", file=sys.stderr)
        return WRONG_OPTIONS
    sys.path.append("")  # the working directory, for custom metrics; last, so that it cannot shadow libraries
    program = COMMANDS[name]
    if program.command:
        from dist_eval.cli.launch import start_ranks

        started = start_ranks(program.module, command_of(program), arguments)
        if isinstance(started, int):
            return started
        arguments = started
    sys.argv = [f"{NAME} {name}", *arguments]
    runpy.run_module(program.module, run_name="__main__", alter_sys=True)
    return 0


def parser_of(program: Program) -> argparse.ArgumentParser:
    """Builds the parser of a command."""
    from dist_eval.arguments.commandline import build_parser
    from dist_eval.cli.launch import LaunchOptions

    return build_parser(command_of(program), *([LaunchOptions] if program.command else []))


def command_of(program: Program) -> Command[Any]:
    """Imports the `Command` of a command."""
    module, _, name = (program.command or f"{program.module}:COMMAND").partition(":")
    return getattr(import_module(module), name)


if __name__ == "__main__":
    sys.exit(main())
