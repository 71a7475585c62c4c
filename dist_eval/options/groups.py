"""Groups of options: each is a dataclass, the single source of its options' names, types, defaults, help and limits.

A configuration (see `dist_eval.options.config`) inherits from the groups of its command. Other packages get only the
groups that they need.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from dist_eval.arguments.fields import Options, option
from dist_eval.arguments.types import Count, Limits, Natural, Seconds, SecondsOrZero, Share
from dist_eval.errors import ConfigError
from dist_eval.petals.client.peers import PeerOptions
from dist_eval.tracking import TrackerName

# maximum tokens of a request: Petals' client splits larger ones into requests of this size (its
# `MAX_TOKENS_IN_BATCH`), which would send the deep prompts more than once
MAX_TOKEN_BUDGET = 1024


@dataclass(kw_only=True)
class DataOptions(Options):
    """The dataset and its columns."""

    dataset: str | list[str] | None = option(
        None,
        "CSV, TSV, JSON, JSONL or Parquet files, their folders, quoted patterns such as 'data/*.parquet', an Arrow "
        "folder, or a hub name",
        group="data",
        metavar="FILE",
    )
    dataset_revision: str | None = option(
        None, "branch, tag or commit of a hub dataset (default: the newest)", group="data", metavar="NAME"
    )
    subset: str | None = option(None, "configuration of a hub dataset", group="data", metavar="NAME")
    split: str | None = option(None, "split of a hub dataset or Arrow folder", group="data", metavar="NAME")
    text_column: list[str] = option(
        ["text"], "column with the text, or two columns for a pair", group="data", metavar="NAME"
    )
    label_column: str = option(
        "label", "column with the label: a class number or name, a list of these, or a number", group="data",
        metavar="NAME",
    )  # fmt: skip
    labels: Literal["auto", "names", "numbers", "vectors"] = option(
        "auto", "how to read labels: as class names, class numbers, or 0/1 vectors for several labels", group="data"
    )
    strict: bool = option(False, "fail if a text is longer than --max-length", group="data")

    def _validate(self) -> None:
        super()._validate()
        if not self.text_column:
            raise ConfigError("--text-column takes one column, or two for a pair, not 0.")
        if self.label_column in self.text_column:
            raise ConfigError(f"--label-column and --text-column both name {self.label_column!r}.")


@dataclass(kw_only=True)
class SwarmOptions(PeerOptions):
    """The swarm, and how long to wait for it."""

    swarm: Literal["embedded", "public"] | None = option(
        None,
        "start a private swarm on this host (embedded), or send the data to the public swarm (public)",
        group="swarm",
    )
    servers: Count = option(
        2, "number of servers of an embedded swarm", group="swarm", needs=("--swarm embedded", "--demo")
    )
    max_tokens_per_second: Annotated[float, Limits(least=1)] | None = option(
        None, "limit for all ranks together, padding and prompts included (default: none)", group="speed",
        metavar="TOKENS",
    )  # fmt: skip
    session_share: Share = option(
        0.5,
        "share of the servers' free attention cache to use for generated texts and shared prefixes (0: send prefixes "
        "with each request where possible)",
        group="speed",
        metavar="SHARE",
    )
    swarm_timeout: Seconds = option(120.0, "how long to wait for missing blocks", group="failures", metavar="SECONDS")
    request_timeout: Seconds = option(
        60.0, "how long to wait for a server's answer", group="failures", metavar="SECONDS"
    )
    max_retries: Natural = option(4, "times to resend a part of a request before giving up", group="failures")

    @property
    def starts_swarm(self) -> bool:
        """Whether a swarm is started on this host, instead of joining one."""
        return not self.initial_peers and self.swarm != "public"


@dataclass(kw_only=True)
class ModelOptions(Options):
    """The base model, where it runs, and how large a request may be."""

    model: str | None = option(None, "base model: folder or hub name", group="model", metavar="MODEL")
    revision: str | None = option(
        None, "branch, tag or commit of --model on its hub (default: the newest)", group="model", metavar="NAME"
    )
    max_length: Count | None = option(
        None,
        "longest text in tokens; longer ones are truncated and counted (default: what servers accept in one request, "
        "or the tokenizer's limit; with more, texts are split across requests)",
        group="data",
    )
    dht_prefix: str | None = option(
        None, "name under which the swarm announces the model (default: by Petals' rule)", group="swarm",
        metavar="NAME",
    )  # fmt: skip
    adapter: str | None = option(
        None, "LoRA adapter, as the servers announce it (default: that of the checkpoint, if any)", group="model",
        metavar="NAME",
    )  # fmt: skip
    backend: Literal["petals", "local"] = option(
        "petals", "where the blocks run: on a swarm, or in each rank's own process", group="swarm"
    )
    token_budget: Annotated[int, Limits(least=1, most=MAX_TOKEN_BUDGET)] = option(
        MAX_TOKEN_BUDGET, "maximum tokens of a request, with padding and prompts", group="speed", metavar="TOKENS"
    )
    compression: Literal["none", "float16"] = option(
        "none",
        "how activations are sent: as the servers compute (none), or in float16, which changes outputs slightly",
        group="speed",
    )
    server_max_tokens: Count | None = option(
        None, "tokens that servers accept in one request (default: Petals' default)", group="speed", metavar="TOKENS"
    )


@dataclass(kw_only=True)
class RankOptions(Options):
    """How each rank works, and how long it waits for the others."""

    in_flight: Count | None = option(
        None, "requests that a rank keeps in flight (default: adapts to the swarm)", group="speed", metavar="REQUESTS"
    )
    collective_timeout: Seconds = option(
        600.0, "how long to wait for another rank's heartbeat or progress", group="failures", metavar="SECONDS"
    )
    stop_grace: SecondsOrZero = option(
        20.0,
        "how long to wait for batches in flight once the run is asked to stop",
        group="failures",
        metavar="SECONDS",
    )


@dataclass(kw_only=True)
class OutputOptions(Options):
    """Where the results go, and what a run shows."""

    output: str | None = option(
        None,
        "folder for the results (default: runs/ and the name of the dataset or tasks)",
        group="output",
        metavar="FOLDER",
    )
    overwrite: bool = option(False, "start afresh instead of resuming the run in that folder", group="output")
    tracker: list[TrackerName] = option([], "experiment trackers to log to, if installed", group="output")
    verbose: bool = option(
        False, "show tracebacks, and the logs of Petals, hivemind and servers", group="output", aliases=["-v"]
    )


@dataclass(kw_only=True)
class SelectionOptions(Options):
    """Which rows of the dataset are evaluated, if not all of them."""

    limit: Count | None = option(None, "evaluate only the first rows", group="rows", metavar="ROWS")
    sample: Count | None = option(
        None, "evaluate a random sample of the rows, drawn without replacement", group="rows", metavar="ROWS"
    )
    precision: Annotated[float, Limits(above=0, below=0.5, example="0.01 for one percentage point")] | None = option(
        None,
        "evaluate a random sample large enough for intervals of this half width, such as 0.01 for one percentage point",
        group="rows",
        metavar="FRACTION",
    )
    sample_seed: Natural = option(
        0, "seed of the random sample", group="rows", metavar="SEED", needs=("--sample", "--precision")
    )
    stratify: bool = option(
        False, "keep each class's share in the sample", group="rows", needs=("--sample", "--precision")
    )

    def _validate(self) -> None:
        super()._validate()
        self._refuse_together("limit", "sample", "precision")
