"""`dist-eval completion SHELL`: prints a shell script that completes commands and options of `dist-eval`."""

from __future__ import annotations

import argparse

from dist_eval.process.programs import run_program


def build_parser() -> argparse.ArgumentParser:
    """Builds the command line's parser."""
    description = 'Prints a completion script. For bash: eval "$(dist-eval completion bash)"'
    parser = argparse.ArgumentParser(prog="dist-eval completion", description=description, allow_abbrev=False)
    parser.add_argument("shell", choices=("bash", "zsh", "tcsh"), help="the shell")
    return parser


def main() -> int:
    """Runs the command line and returns its exit status."""
    shell = build_parser().parse_args().shell
    import shtab

    from dist_eval.cli.main import COMMANDS, NAME, parser_of

    every = argparse.ArgumentParser(prog=NAME)
    commands = every.add_subparsers()
    for name, program in COMMANDS.items():
        commands.add_parser(name, help=program.help, parents=[parser_of(program)], add_help=False)
    print(shtab.complete(every, shell))
    return 0


if __name__ == "__main__":
    run_program(main)
