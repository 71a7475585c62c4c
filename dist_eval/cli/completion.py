"""`dist-eval completion SHELL`: prints a shell script that completes commands and options of `dist-eval`."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Literal

from dist_eval.arguments.commandline import Command, run_command
from dist_eval.arguments.fields import Options, argument
from dist_eval.process.programs import COMPLETE, run_program


@dataclass(kw_only=True)
class CompletionOptions(Options):
    """The options of `dist-eval completion`."""

    shell: Literal["bash", "zsh", "tcsh"] = argument("the shell that is to complete", "SHELL")


COMMAND = Command(
    program="dist-eval completion",
    config=CompletionOptions,
    description='Prints a completion script. For bash: eval "$(dist-eval completion bash)"',
)


def complete(options: CompletionOptions) -> int:
    """Prints the script."""
    import shtab

    from dist_eval.cli.main import COMMANDS, NAME, parser_of

    every = argparse.ArgumentParser(prog=NAME)
    commands = every.add_subparsers()
    for name, program in COMMANDS.items():
        commands.add_parser(name, help=program.help, parents=[parser_of(program)], add_help=False)
    print(shtab.complete(every, options.shell))
    return COMPLETE


if __name__ == "__main__":
    run_program(lambda: run_command(COMMAND, complete))
