"""`dist-eval completion SHELL`: prints a script with which a shell completes commands and options of `dist-eval`."""

from __future__ import annotations

import argparse

from dist_eval.process.output import run_program

SHELLS = ("bash", "zsh", "tcsh")


def build_parser() -> argparse.ArgumentParser:
    """Builds the command line's parser."""
    parser = argparse.ArgumentParser(
        prog="dist-eval completion",
        description='Prints a completion script. For bash: eval "$(dist-eval completion bash)"',
        allow_abbrev=False,
    )
    parser.add_argument("shell", choices=SHELLS, help="the shell that is to complete")
    return parser


def complete_parser() -> argparse.ArgumentParser:
    """Builds one parser for all commands."""
    from dist_eval.cli.main import COMMANDS, NAME, parser_of

    parser = argparse.ArgumentParser(prog=NAME)
    commands = parser.add_subparsers()
    for name, program in COMMANDS.items():
        commands.add_parser(name, help=program.help, parents=[parser_of(program)], add_help=False)
    return parser


def main() -> int:
    """Runs the command line and returns its exit status."""
    shell = build_parser().parse_args().shell
    import shtab

    print(shtab.complete(complete_parser(), shell))
    return 0


if __name__ == "__main__":
    run_program(main)
