"""`dist-eval swarm status`: which servers of a swarm hold which blocks."""

from __future__ import annotations

import functools
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from dist_eval.arguments.commandline import Command
from dist_eval.arguments.fields import option
from dist_eval.arguments.types import Positive
from dist_eval.errors import ConfigError, SwarmError
from dist_eval.petals.client.peers import PeerOptions, all_peers

if TYPE_CHECKING:
    from dist_eval.petals.client.coverage import SwarmCoverage

_LEAST_SECONDS, _MODELS_NAMED, _ASK_AGAIN_SECONDS, _MOST_ASKED = 0.1, 5, 1.0, 300
_CLEAR = "\x1b[H\x1b[2J"  # the terminal


@dataclass(kw_only=True)
class StatusOptions(PeerOptions):
    """The options of `dist-eval swarm status`."""

    model: str | None = option(
        None, "the model to look for: folder or hub name (default: all announced ones)", metavar="MODEL"
    )
    dht_prefix: str | None = option(None, "name it is announced under", metavar="NAME")
    adapter: str | None = option(None, "count only servers that hold this LoRA adapter", metavar="NAME")
    timeout: float = option(30.0, "longest wait for joining the swarm", metavar="SECONDS")
    json: bool = option(False, "print one line of JSON instead of a table")
    watch: Positive | None = option(
        None, "look again after this time (10 without a number), until Ctrl-C", alone=10.0, metavar="SECONDS"
    )
    verbose: bool = option(False, "show the output of libraries", aliases=["-v"])

    def _validate(self) -> None:
        self.initial_peers = all_peers(self.initial_peers, self.peers_file)
        if not self.initial_peers:
            raise ConfigError("Name the swarm with --initial-peers or --peers-file.")


COMMAND = Command(
    program="dist-eval swarm status",
    config=StatusOptions,
    description="Shows which servers of a swarm hold which blocks and adapters, in which precision and with which "
    "version of Petals, and which blocks have no server.",
)


def show(arguments: StatusOptions) -> bool:
    """Prints a swarm's coverage, repeatedly with `--watch`; returns whether all blocks have servers."""
    from dist_eval.petals.client.client import join_swarm, leave_swarm

    dht = join_swarm(arguments.initial_peers, arguments.timeout, timeout_option="--timeout")
    try:
        while True:
            status = _look_up(dht, arguments)
            text = json.dumps(status.summary()) if arguments.json else status.describe()
            if arguments.watch and not arguments.json:
                text = _CLEAR + text if sys.stdout.isatty() else text + "\n"
            print(text, flush=True)
            if not arguments.watch:
                return status.is_complete
            time.sleep(arguments.watch)
    finally:
        leave_swarm(dht)


class Status(NamedTuple):
    """The state of a swarm."""

    models: list[SwarmCoverage]
    not_looked_up: list[str]  # models that the time did not suffice for
    dropped_models: Counter[str]  # how many implausible announcements of models were dropped, by reason
    asked: frozenset[str] = frozenset()  # peer ids of the servers that this host pinged

    @property
    def is_complete(self) -> bool:
        """Whether all blocks of all models have servers that this host can reach."""
        return not self.not_looked_up and not any(model.missing or model.out_of_reach for model in self.models)

    def summary(self) -> dict[str, Any]:
        """Returns the output of `--json`; each model is as in the section `swarm` of `results.json`.

        Each server also has `reachable`: whether it answered this host. It is null if the server was not asked, because
        it is not online or there are too many servers.
        """
        return {
            "models": [_summary_of(model, self.asked) for model in self.models],
            "not_looked_up": self.not_looked_up,
            "dropped_models": self.dropped_models.total(),
        }

    def describe(self) -> str:
        """Returns a text table for each model."""
        texts = [model.describe() for model in self.models]
        if self.dropped_models:
            from dist_eval.petals.client.coverage import format_dropped

            texts.insert(0, f"dropped, because they are implausible: {format_dropped(self.dropped_models, 'model')}")
        if self.not_looked_up:
            names = ", ".join(self.not_looked_up[:_MODELS_NAMED])
            more = ", ..." if len(self.not_looked_up) > _MODELS_NAMED else ""
            texts.append(f"not looked up within --timeout: {names}{more}; name one with --dht-prefix")
        return "\n\n".join(texts)


def _summary_of(model: SwarmCoverage, asked: frozenset[str]) -> dict[str, Any]:
    summary, online = model.summary().model_dump(mode="json"), {server.peer_id for server in model.online}
    for server in summary["servers"]:
        peer = server["peer_id"]
        server["reachable"] = peer not in model.unreachable if peer in online & asked else None
    return summary


def _look_up(dht: Any, arguments: StatusOptions) -> Status:
    from dist_eval.petals.base_model.config import default_dht_prefix, read_base_config
    from dist_eval.petals.client.coverage import look_up_coverage, measure_distances
    from dist_eval.petals.client.dht_records import read_models

    config, dropped = None, Counter[str]()
    if arguments.model:
        config = read_base_config(arguments.model)
        prefix = arguments.dht_prefix or default_dht_prefix(arguments.model, config)
        models = {prefix: config.num_hidden_layers}
    else:
        announced = read_models(dht, arguments.timeout)
        models = {k: v for k, v in announced.blocks.items() if arguments.dht_prefix in (None, k)}
        dropped = announced.dropped
    if not models:
        raise SwarmError("The swarm announces no model. Name the one to look for with --model.")
    look_up = functools.partial(look_up_coverage, dht, adapter=arguments.adapter)
    coverages, unknown = look_up_all(look_up, models, arguments.timeout)
    coverages = [coverage.serving(config) for coverage in coverages]
    online = list(dict.fromkeys(server.peer_id for coverage in coverages for server in coverage.online))
    answers = measure_distances(dht, online[:_MOST_ASKED], _ASK_AGAIN_SECONDS)  # anyone can announce thousands
    unreachable = frozenset(peer for peer, seconds in answers.items() if seconds is None)
    coverages = [replace(coverage, unreachable=unreachable) for coverage in coverages]
    return Status(coverages, unknown, dropped, frozenset(answers))


def look_up_all(
    look_up: Callable[..., SwarmCoverage], models: Mapping[str, int], timeout: float
) -> tuple[list[SwarmCoverage], list[str]]:
    """Looks up the coverage of as many models as time permits: anyone can announce models.

    Returns the coverage of these models, and the names of the others.
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
