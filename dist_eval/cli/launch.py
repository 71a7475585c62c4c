"""Starts the ranks of a command on this host, as `torchrun --nproc_per_node=N -m MODULE` does.

torchrun always exits with status 1 and a traceback. This launcher exits with the ranks' status, prints their error
message last, and checks options before any process starts.
"""

from __future__ import annotations

import argparse
import logging
import os
import re
from collections.abc import Sequence
from typing import Any

from dist_eval.errors import ConfigError
from dist_eval.options import commandline
from dist_eval.options.commandline import Command, OptionParser, end_for_wrong_options, parse_args

# Options of torchrun, with the same meaning
_OPTIONS = {
    "nproc-per-node": ("N", "processes (ranks) to start on this host (default: 1)"),
    "nnodes": ("N", "hosts of the run (default: 1)"),
    "node-rank": ("N", "number of this host, from 0"),
    "rdzv-endpoint": ("HOST:PORT", "rendezvous of the hosts"),
    "rdzv-id": ("ID", "name of the run, the same on all hosts"),
    "rdzv-backend": ("NAME", "kind of rendezvous (such as c10d)"),
    "rdzv-conf": ("K=V,...", "settings of --rdzv-backend"),
    "master-addr": ("HOST", "address of the first host, without --rdzv-endpoint"),
    "master-port": ("PORT", "port of the first host, without --rdzv-endpoint"),
    "local-addr": ("HOST", "address where other hosts reach this one"),
    "max-restarts": ("N", "number of restarts of the ranks after one died (default: 0)"),
}


def _add_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("processes", "As for torchrun.")
    for name, (metavar, text) in _OPTIONS.items():
        group.add_argument(f"--{name}", metavar=metavar, help=text, default=argparse.SUPPRESS)


def build_parser(command: Command[Any]) -> argparse.ArgumentParser:
    """Builds the parser of a command, with the options of its launch."""
    parser = commandline.build_parser(command)
    _add_options(parser)
    return parser


def start_ranks(module: str, command: Command[Any], arguments: Sequence[str]) -> int | list[str]:
    """Starts the ranks of this host and waits for them, unless this process can be the only rank."""
    launching = OptionParser(add_help=False, allow_abbrev=False)
    _add_options(launching)
    try:
        launch, options = launching.parse_known_args(arguments)
        if not options:
            raise ConfigError(command.nothing_asked)
        parse_args(arguments, command, build_parser(command))
        if re.fullmatch(r"0+|-\d+", ranks := vars(launch).get("nproc_per_node", "1")):
            raise ConfigError(f"--nproc-per-node must be at least 1, not {ranks}.")
    except ConfigError as error:
        end_for_wrong_options(error)
    if vars(launch) in ({}, {"nproc_per_node": "1"}):
        return options
    from dist_eval.cluster import agent

    os.environ.setdefault("OMP_NUM_THREADS", "1")  # torchrun would set it with a long warning
    logging.disable(logging.CRITICAL)  # the agent would repeat failures that ranks have reported
    torchrun = [f"--{name.replace('_', '-')}={value}" for name, value in vars(launch).items()]
    return agent.main([*torchrun, "-m", module, *options])
