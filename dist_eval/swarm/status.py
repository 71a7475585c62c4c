"""`dist-eval swarm status`: which servers of a swarm hold which blocks."""

from __future__ import annotations

import argparse
import functools
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from dist_eval.errors import SwarmError
from dist_eval.process.arguments import ArgumentParser

if TYPE_CHECKING:
    from dist_eval.swarm.coverage import SwarmCoverage

_LEAST_SECONDS, _MODELS_NAMED = 0.1, 5


def build_parser() -> argparse.ArgumentParser:
    """Builds the parser of the command `status`."""
    parser = ArgumentParser(
        prog="dist-eval swarm status",
        description="Shows which servers of a swarm hold which blocks and adapters, in which precision and with which "
        "version of Petals, and which blocks have no server.",
        allow_abbrev=False,
    )
    parser.add_argument("--initial-peers", nargs="+", required=True, metavar="ADDRESS")
    parser.add_argument("--model", help="the model to look for: folder or hub name (default: all announced ones)")
    parser.add_argument("--dht-prefix", metavar="NAME", help="name it is announced under")
    parser.add_argument("--adapter", metavar="NAME", help="count only servers that hold this LoRA adapter")
    parser.add_argument("--timeout", type=float, default=30.0, metavar="SECONDS")
    parser.add_argument("-v", "--verbose", action="store_true")
    return parser


def show(arguments: argparse.Namespace) -> bool:
    """Prints a swarm's coverage."""
    from dist_eval.swarm.client import join_swarm, leave_swarm
    from dist_eval.swarm.coverage import look_up_coverage
    from dist_eval.swarm.dht_records import read_models
    from dist_eval.swarm.families import default_dht_prefix, read_base_config

    config = read_base_config(arguments.model) if arguments.model else None
    dht = join_swarm(arguments.initial_peers, arguments.timeout, timeout_option="--timeout")
    try:
        if config is not None:
            prefix = arguments.dht_prefix or default_dht_prefix(arguments.model, config)
            models = {prefix: config.num_hidden_layers}
        else:
            announced = read_models(dht, arguments.timeout)
            models = {k: v for k, v in announced.blocks.items() if arguments.dht_prefix in (None, k)}
            if announced.dropped:
                print(f"dropped models, which no honest server announces: {announced.dropped}")
        if not models:
            raise SwarmError("The swarm announces no model. Name the one to look for with --model.")
        look_up = functools.partial(look_up_coverage, dht, adapter=arguments.adapter)
        coverages, unknown = look_up_all(look_up, models, arguments.timeout)
    finally:
        leave_swarm(dht)
    coverages = [coverage.serving(config) for coverage in coverages]
    print("\n\n".join(coverage.describe() for coverage in coverages))
    if unknown:
        names = ", ".join(unknown[:_MODELS_NAMED]) + (", ..." if len(unknown) > _MODELS_NAMED else "")
        print(f"not looked up within {arguments.timeout:g} s: {names}; name one with --dht-prefix")
    return not unknown and not any(coverage.missing for coverage in coverages)


def look_up_all(
    look_up: Callable[..., SwarmCoverage], models: Mapping[str, int], timeout: float
) -> tuple[list[SwarmCoverage], list[str]]:
    """Looks up the coverage of models, as many as there is time for: anybody can announce some.

    Returns:
        The coverage of each that was looked up, and the names of the others.
    """
    found, unknown, deadline = [], [], time.monotonic() + timeout
    for name, blocks in sorted(models.items()):
        try:
            found.append(look_up(name, blocks, max(_LEAST_SECONDS, deadline - time.monotonic())))
        except SwarmError:
            unknown.append(name)
            if len(unknown) == len(models):
                raise
    return found, unknown
