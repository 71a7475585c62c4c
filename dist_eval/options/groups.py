"""Groups of options: each is a dataclass, the single source of its options' names, types, defaults, help and limits.

A configuration (see `dist_eval.options.config`) inherits from the groups that its command has. The packages that do
the work are given the groups that they need.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from dist_eval.errors import ConfigError
from dist_eval.petals.client.peers import require_peer_addresses
from dist_eval.tracking import TRACKERS

# most tokens in one request: Petals' client splits anything larger into requests of this size (its
# `MAX_TOKENS_IN_BATCH`), which would send the deep prompts more than once
MAX_TOKEN_BUDGET = 1024

_LONGEST_WAIT = 30 * 24 * 3600.0


def option(
    default: Any,
    help: str,
    *,
    group: str,
    metavar: str | None = None,
    least: float | None = None,
    most: float | None = None,
    aliases: Sequence[str] = (),
    **extra: Any,
) -> Any:
    """Declares a field of a group that is an option of the command line and of the YAML file.

    Args:
        default: value if the option is not given; lists and mappings are copied for each instance.
        help: one line for `--help`, which appends the default.
        group: heading under which `--help` shows the option.
        metavar: placeholder in `--help`.
        least: smallest value, None without a limit.
        most: largest value, None without a limit.
        aliases: further names of the field, such as that which another command or tool has for it.
        **extra: `choices`, `action`, `type` or `nargs`, for argparse; a field of lists takes several words anyway.

    Returns:
        A dataclass field.
    """
    limits = {"least": least, "most": most}
    metadata = {"help": help, "group": group, "metavar": metavar, **limits, "aliases": aliases, "extra": extra}
    if isinstance(default, (list, dict)):
        return dataclasses.field(default_factory=lambda: default.copy(), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def with_escapes(text: str) -> str:
    r"""Replaces `\n`, `\t` and `\\` by a line break, a tab and a backslash, for what is typed in a shell."""
    return re.sub(r"\\([nt\\])", lambda match: {"n": "\n", "t": "\t"}.get(match[1], "\\"), text)


def unwrap_single(dataset: str | list[str] | None) -> str | list[str] | None:
    """Returns the names of a dataset's files, a single one by itself."""
    return dataset[0] if isinstance(dataset, list) and len(dataset) == 1 else dataset


def flag(name: str) -> str:
    """Returns the command line option of a field."""
    return "--" + name.replace("_", "-")


@dataclass(kw_only=True)
class Options:
    """Base of all groups of options.

    Raises:
        ConfigError: on construction, when an option is out of range or contradicts another one.
    """

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            choices, value = field.metadata["extra"].get("choices"), getattr(self, field.name)
            unknown = [item for item in (value if isinstance(value, list) else [value]) if item not in (choices or ())]
            if choices and value is not None and unknown:
                raise ConfigError(f"{flag(field.name)} must be one of {', '.join(choices)}, not {unknown[0]!r}.")
            if field.metadata["least"] is not None:
                self._check_range(field.name, field.metadata["least"], field.metadata["most"])

    def select(self, group: type[Group]) -> Group:
        """Returns the options of one group as a record of their own.

        Args:
            group: a base of this class.
        """
        return group(**{field.name: getattr(self, field.name) for field in dataclasses.fields(group)})

    @classmethod
    def recorded_in(cls: type[Group], config: Mapping[str, Any]) -> Group:
        """Returns this group as the results of a run record it.

        Args:
            config: all options of the run, by name; those that its version did not have get their defaults.
        """
        return cls(**{field.name: config[field.name] for field in dataclasses.fields(cls) if field.name in config})

    def _check_range(self, name: str, low: float, high: float | None = None) -> None:
        value = getattr(self, name)
        if value is not None and not (value >= low and (high is None or value <= high)):
            limits = f"at least {low}" if high is None else f"between {low} and {high}"
            raise ConfigError(f"{flag(name)} must be {limits}, not {value}.")

    def _check_seconds(self, name: str) -> None:
        value = getattr(self, name)
        if not 0 < value <= _LONGEST_WAIT:
            raise ConfigError(f"{flag(name)} must be more than 0 and at most {_LONGEST_WAIT:g} seconds, not {value}.")


Group = TypeVar("Group", bound=Options)


@dataclass(kw_only=True)
class DataOptions(Options):
    """The dataset and its columns."""

    dataset: str | list[str] | None = option(
        None,
        "CSV, TSV, JSON, JSONL or Parquet files, folders of them, or quoted patterns such as 'data/*.parquet'; or an "
        "Arrow folder, or a hub name",
        group="data",
    )
    dataset_revision: str | None = option(
        None, "branch, tag or commit of a hub dataset (default: the newest)", group="data", metavar="NAME"
    )
    subset: str | None = option(None, "configuration of a hub dataset", group="data")
    split: str | None = option(None, "split of a hub dataset or Arrow folder", group="data")
    text_column: list[str] = option(
        ["text"], "column with the text, or two columns for a pair", group="data", metavar="NAME"
    )
    label_column: str = option(
        "label",
        "column with the label: a class number or name, a list of these, or a number",
        group="data",
        metavar="NAME",
    )
    labels: str = option(
        "auto",
        "how to read the label column: as class names, as class numbers, as 0/1 vectors (where a text may have "
        "several labels), or whichever of these fits (auto)",
        group="data",
        choices=("auto", "names", "numbers", "vectors"),
    )
    strict: bool = option(False, "a text longer than --max-length is an error", group="data")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.dataset = unwrap_single(self.dataset)
        if not self.text_column:
            raise ConfigError("--text-column takes one column, or two for a pair, not 0.")
        if self.label_column in self.text_column:
            raise ConfigError(f"--label-column and --text-column both name {self.label_column!r}.")


@dataclass(kw_only=True)
class SwarmOptions(Options):
    """The swarm, and how long to wait for it."""

    initial_peers: list[str] = option(
        [], "addresses of a running swarm: /ip4/HOST/tcp/PORT/p2p/ID", group="where", metavar="ADDRESS"
    )
    swarm: str | None = option(
        None,
        "start a private swarm on this host (embedded), or send the data to the public swarm (public)",
        group="where",
        choices=("embedded", "public"),
    )
    servers: int = option(2, "number of servers of an embedded swarm", group="where", least=1)
    max_tokens_per_second: float | None = option(
        None,
        "most tokens that all ranks together send in a second, including padding and prompts, to leave a share of the "
        "swarm to others (default: no limit)",
        group="how",
        metavar="TOKENS",
        least=1,
    )
    session_share: float = option(
        0.5,
        "most of the servers' free attention cache that all ranks together take, 0 to 1: for generated texts, and for "
        "sessions in which a beginning that texts have in common is computed once (0: plain forwards where possible)",
        group="how",
        metavar="SHARE",
    )
    swarm_timeout: float = option(120.0, "longest wait for missing blocks", group="failure", metavar="SECONDS")
    request_timeout: float = option(60.0, "longest wait for a server's answer", group="failure", metavar="SECONDS")
    max_retries: int = option(
        4,
        "how often each segment of a request is sent again after its first attempt, before the run stops",
        group="failure",
        least=0,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        require_peer_addresses(self.initial_peers)
        for name in ("swarm_timeout", "request_timeout"):
            self._check_seconds(name)
        if not 0 <= self.session_share <= 1:
            raise ConfigError(f"--session-share must be between 0 and 1, such as 0.5, not {self.session_share:g}.")


@dataclass(kw_only=True)
class ModelOptions(Options):
    """The base model, where it runs, and how large a request may be."""

    model: str | None = option(None, "base model: folder or hub name", group="what")
    revision: str | None = option(
        None, "branch, tag or commit of --model on its hub (default: the newest)", group="what", metavar="NAME"
    )
    max_length: int | None = option(
        None,
        "longest text in tokens; longer ones are truncated and counted (default: what servers accept in one request or "
        "a classifier's tokenizer takes; texts of more take several, up to what the model has positions for)",
        group="data",
        least=1,
    )
    dht_prefix: str | None = option(
        None,
        "name under which the swarm announces the model (default: Petals' rule for the name)",
        group="where",
        metavar="NAME",
    )
    adapter: str | None = option(
        None,
        "LoRA adapter to use, as the servers announce it: only those that hold it are asked (default: the one that the "
        "checkpoint was tuned with, if any)",
        group="where",
        metavar="NAME",
    )
    backend: str = option(
        "petals",
        "where the model's blocks run: on a swarm, or in each rank's own process",
        group="where",
        choices=("petals", "local"),
    )
    token_budget: int = option(
        MAX_TOKEN_BUDGET,
        "most tokens in one request, including padding and prompts",
        group="how",
        metavar="TOKENS",
        least=1,
        most=MAX_TOKEN_BUDGET,
    )
    compression: str = option(
        "none",
        "precision of transferred activations: as the servers compute (none), or float16 where they compute in "
        "float32, which changes the outputs slightly",
        group="how",
        choices=("none", "float16"),
    )
    server_max_tokens: int | None = option(
        None,
        "tokens that servers accept in one request (default: Petals' default)",
        group="how",
        metavar="TOKENS",
        least=1,
    )


@dataclass(kw_only=True)
class RankOptions(Options):
    """How each rank works, and how long it waits for the others."""

    in_flight: int | None = option(
        None,
        "requests that a rank keeps in flight (default: adapts to the swarm)",
        group="how",
        metavar="REQUESTS",
        least=1,
    )
    collective_timeout: float = option(
        600.0,
        "longest wait for another rank's heartbeat, and, once this rank is done, for another's progress",
        group="failure",
        metavar="SECONDS",
    )
    stop_grace: float = option(
        20.0, "longest wait for batches in flight once the run is asked to stop", group="failure", metavar="SECONDS"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_seconds("collective_timeout")
        if not 0 <= self.stop_grace <= _LONGEST_WAIT:
            raise ConfigError(f"--stop-grace must be at least 0 and at most {_LONGEST_WAIT:g} seconds.")


@dataclass(kw_only=True)
class OutputOptions(Options):
    """Where the results go, and what is shown meanwhile."""

    output: str | None = option(
        None, "folder for the results (default: runs/ and the dataset's name)", group="output", metavar="FOLDER"
    )
    overwrite: bool = option(
        False,
        "start afresh, whatever the folder holds (default: resume an earlier start of the same run)",
        group="output",
    )
    tracker: list[str] = option(
        [],
        "experiment trackers to log to, whose libraries have to be installed",
        group="output",
        choices=TRACKERS,
    )
    verbose: bool = option(False, "show the logs of Petals, hivemind and the servers, and tracebacks", group="output")


_SIZES = ("limit", "sample", "precision")


@dataclass(kw_only=True)
class SelectionOptions(Options):
    """Which rows of the dataset are evaluated, if not all of them."""

    limit: int | None = option(None, "evaluate only the first rows", group="data", metavar="ROWS", least=1)
    sample: int | None = option(
        None,
        "evaluate only a random sample of the rows, drawn without replacement",
        group="data",
        metavar="ROWS",
        least=1,
    )
    precision: float | None = option(
        None,
        "evaluate a random sample just large enough for intervals of at most this half width, whatever the share of "
        "right answers, such as 0.01 for one percentage point",
        group="data",
        metavar="FRACTION",
    )
    sample_seed: int = option(0, "seed of the random sample", group="data", metavar="SEED", least=0)
    stratify: bool = option(False, "draw from each class as large a share of the sample as of all rows", group="data")

    def __post_init__(self) -> None:
        super().__post_init__()
        given = [flag(name) for name in _SIZES if getattr(self, name) is not None]
        if len(given) > 1:
            raise ConfigError(f"{' and '.join(given)} contradict each other: give one of them.")
        if self.precision is not None and not 0 < self.precision < 0.5:
            raise ConfigError(
                f"--precision must be more than 0 and less than 0.5, such as 0.01 for one percentage point, not "
                f"{self.precision}."
            )
        if (self.sample_seed or self.stratify) and self.sample is None and self.precision is None:
            name = "--stratify" if self.stratify else "--sample-seed"
            raise ConfigError(f"{name} belongs to --sample or --precision, and neither is given.")
