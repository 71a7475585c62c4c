"""Starts the ranks of a command on this host, as `torchrun --nproc_per_node=N -m MODULE` does.

torchrun always exits with status 1 and a traceback. This launcher exits with the ranks' status, prints their error
message last, and checks options before any process starts.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

from dist_eval.arguments.commandline import Command, OptionParser, build_parser, end_for_wrong_options, parse_args
from dist_eval.arguments.fields import Options, flag, option
from dist_eval.errors import ConfigError

_SHUTDOWN_SECONDS = 30  # beside --stop-grace, as torchrun's own default


@dataclass(kw_only=True)
class LaunchOptions(Options):
    """Options of torchrun, with the same meaning."""

    nproc_per_node: str = option("1", "processes (ranks) to start on this host", group="processes", metavar="N")
    nnodes: str | None = option(None, "", group="processes")
    node_rank: str | None = option(None, "", group="processes")
    rdzv_endpoint: str | None = option(None, "", group="processes")
    rdzv_id: str | None = option(None, "", group="processes")
    rdzv_backend: str | None = option(None, "", group="processes")
    rdzv_conf: str | None = option(None, "", group="processes")
    master_addr: str | None = option(None, "", group="processes")
    master_port: str | None = option(None, "", group="processes")
    local_addr: str | None = option(None, "", group="processes")
    max_restarts: str | None = option(None, "", group="processes")


def start_ranks(module: str, command: Command[Any], arguments: Sequence[str]) -> int | list[str]:
    """Starts the ranks of this host and waits for them, unless this process can be the only rank."""
    launching = OptionParser(add_help=False)
    launching.add_options(LaunchOptions)
    try:
        given, options = launching.parse_known_args(arguments)
        if not options:
            raise ConfigError(command.nothing_asked)
        config = parse_args(arguments, command, build_parser(command, LaunchOptions))
        launch = vars(given)
        if not re.fullmatch(r"0*[1-9]\d*|auto|cpu|gpu|xpu", ranks := launch.get("nproc_per_node", "1")):
            raise ConfigError(f"--nproc-per-node must be at least 1, auto, cpu or gpu, not {ranks}.")
    except ConfigError as error:
        end_for_wrong_options(error)
    if launch in ({}, {"nproc_per_node": "1"}):
        return options
    from dist_eval.cluster import agent

    os.environ.setdefault("OMP_NUM_THREADS", "1")  # torchrun would set it as well, with a long warning
    # torchrun kills ranks that are still finishing their batches after 30 s, whatever --stop-grace says
    grace = ceil(getattr(config, "stop_grace", 0)) + _SHUTDOWN_SECONDS
    os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", str(grace))
    logging.disable(logging.CRITICAL)  # the agent would repeat failures that ranks have reported
    torchrun = [f"{flag(name)}={value}" for name, value in launch.items()]
    return agent.main([*torchrun, "-m", module, *options])
