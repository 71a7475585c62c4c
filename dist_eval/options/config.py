"""The options of a run: a dataclass is the single source of option names, types, defaults and help.

Everything that can be checked without reading data or contacting the swarm is checked on construction.
`cli/commandline.py` parses the command line into a configuration. `RunConfig` has the options of every kind of run,
`EvaluationConfig` adds those of an evaluation.
"""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dist_eval.errors import ConfigError

MAX_TOKEN_BUDGET = 1024
"""Most tokens in one request: Petals' client splits anything larger into requests of this size (its
`MAX_TOKENS_IN_BATCH`), which would send the deep prompts more than once."""

_LONGEST_WAIT = 30 * 24 * 3600.0
_DEMO_HINT = " (--demo needs no other option.)"


def option(default: Any, help: str, *, group: str, metavar: str | None = None, **extra: Any) -> Any:
    """Declares a field of a `RunConfig` that is an option of the command line and of the YAML file.

    Args:
        default: value if the option is not given; lists are copied for each instance.
        help: one line for `--help`, which appends the default.
        group: heading under which `--help` shows the option.
        metavar: placeholder in `--help`.
        **extra: `choices`, `nargs` or `action`, passed to argparse.

    Returns:
        A dataclass field.
    """
    metadata = {"help": help, "group": group, "metavar": metavar, "extra": extra}
    if isinstance(default, list):
        return dataclasses.field(default_factory=lambda: list(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


@dataclass(kw_only=True)
class RunConfig:
    """The options of all kinds of runs.

    Raises:
        ConfigError: on construction, when an option is out of range, missing, or contradicts another.
    """

    model: str | None = option(None, "base model: folder or hub name", group="what")
    dataset: str | None = option(None, "CSV, TSV, JSON, JSONL or Parquet file, Arrow folder, or hub name", group="data")
    subset: str | None = option(None, "configuration of a hub dataset", group="data")
    split: str | None = option(None, "split of a hub dataset or Arrow folder", group="data")
    text_column: list[str] = option(
        ["text"], "column with the text, or two columns for a pair", group="data", nargs="+", metavar="NAME"
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
    max_length: int | None = option(
        None,
        "longest text in tokens; longer ones are truncated and counted (default: what servers accept)",
        group="data",
    )
    strict: bool = option(False, "a text longer than --max-length is an error", group="data")

    initial_peers: list[str] = option(
        [], "addresses of a running swarm: /ip4/HOST/tcp/PORT/p2p/ID", group="where", nargs="+", metavar="ADDRESS"
    )
    peers_file: str | None = option(None, "file with such addresses, one per line", group="where", metavar="FILE")
    swarm: str | None = option(
        None,
        "start a private swarm on this host (embedded), or send the data to the public swarm (public)",
        group="where",
        choices=("embedded", "public"),
    )
    servers: int = option(2, "number of servers of an embedded swarm", group="where")
    dht_prefix: str | None = option(
        None,
        "name under which the swarm announces the model (default: Petals' rule for the name)",
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
        MAX_TOKEN_BUDGET, "most tokens in one request, including padding and prompts", group="how", metavar="TOKENS"
    )
    in_flight: int | None = option(
        None, "requests that a rank keeps in flight (default: adapts to the swarm)", group="how", metavar="REQUESTS"
    )
    compression: str = option(
        "none",
        "precision of transferred activations: as the servers compute (none), or float16, which changes the outputs "
        "slightly",
        group="how",
        choices=("none", "float16"),
    )
    server_max_tokens: int | None = option(
        None, "tokens that servers accept in one request (default: Petals' default)", group="how", metavar="TOKENS"
    )
    swarm_timeout: float = option(120.0, "longest wait for missing blocks", group="failure", metavar="SECONDS")
    request_timeout: float = option(60.0, "longest wait for a server's answer", group="failure", metavar="SECONDS")
    max_retries: int = option(5, "attempts for each segment of a request before the run stops", group="failure")
    collective_timeout: float = option(
        600.0,
        "longest wait for another rank's heartbeat, and, once this rank is done, for another's progress",
        group="failure",
        metavar="SECONDS",
    )
    stop_grace: float = option(
        20.0, "longest wait for batches in flight once the run is asked to stop", group="failure", metavar="SECONDS"
    )

    output: str | None = option(
        None, "folder for the results (default: runs/ and the dataset's name)", group="output", metavar="FOLDER"
    )
    overwrite: bool = option(
        False,
        "start afresh, whatever the folder holds (default: resume an earlier start of the same run)",
        group="output",
    )
    verbose: bool = option(False, "show the logs of Petals, hivemind and the servers, and tracebacks", group="output")

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            choices, value = field.metadata["extra"].get("choices"), getattr(self, field.name)
            unknown = [item for item in (value if isinstance(value, list) else [value]) if item not in (choices or ())]
            if choices and value is not None and unknown:
                raise ConfigError(f"{flag(field.name)} must be one of {', '.join(choices)}, not {unknown[0]!r}.")
        if self.peers_file is not None and self.backend != "local":
            self.initial_peers = list(dict.fromkeys([*self.initial_peers, *read_peers(Path(self.peers_file))]))
        self._check_where()
        for name in ("servers", "max_retries", "token_budget"):
            self._check_range(name, 1, MAX_TOKEN_BUDGET if name == "token_budget" else None)
        for name in ("max_length", "server_max_tokens", "in_flight"):
            if getattr(self, name) is not None:
                self._check_range(name, 1)
        if not 0 <= self.stop_grace <= _LONGEST_WAIT:
            raise ConfigError(f"--stop-grace must be at least 0 and at most {_LONGEST_WAIT:g} seconds.")
        for name in ("swarm_timeout", "request_timeout", "collective_timeout"):
            if not 0 < getattr(self, name) <= _LONGEST_WAIT:
                raise ConfigError(
                    f"{flag(name)} must be more than 0 and at most {_LONGEST_WAIT:g} seconds, "
                    f"not {getattr(self, name)}."
                )
        if not 1 <= len(self.text_column) <= 2:
            raise ConfigError(f"--text-column takes one column, or two for a pair, not {len(self.text_column)}.")
        if self.label_column in self.text_column:
            raise ConfigError(f"--label-column and --text-column both name {self.label_column!r}.")

    @property
    def output_folder(self) -> Path:
        """The run's folder: `--output`, or `runs/` and the dataset's name."""
        return Path(self.output) if self.output is not None else Path("runs") / Path(str(self.dataset)).stem

    def to_dict(self) -> dict[str, Any]:
        """Returns all options by name, ready for JSON."""
        return dataclasses.asdict(self)

    def _require(self, value: Any, name: str, what: str, hint: str = "") -> None:
        if not value:
            raise ConfigError(f"{name} is missing: {what}.{hint}")

    def _check_range(self, name: str, low: int, high: int | None = None) -> None:
        value = getattr(self, name)
        if value < low or (high is not None and value > high):
            limits = f"at least {low}" if high is None else f"between {low} and {high}"
            raise ConfigError(f"{flag(name)} must be {limits}, not {value}.")

    def _check_where(self) -> None:
        if self.backend == "local":
            if self.initial_peers or self.peers_file or self.swarm:
                raise ConfigError("--backend local uses no swarm: leave out --initial-peers, --peers-file and --swarm.")
            return
        if self.initial_peers and self.swarm:
            raise ConfigError(
                f"--swarm {self.swarm} and --initial-peers contradict each other: "
                "--initial-peers names a running swarm, --swarm embedded starts one, --swarm public means Petals' own."
            )
        if not (self.initial_peers or self.swarm):
            raise ConfigError(
                "No swarm was named. Give --initial-peers ADDRESS... for a running one, --swarm embedded to start "
                "one on this host, or --swarm public to send the data to Petals' public swarm."
            )
        for address in self.initial_peers:
            if not _PEER_ADDRESS.fullmatch(address):
                raise ConfigError(
                    f"--initial-peers: {address!r} is no peer address. "
                    "It should look like /ip4/10.0.0.5/tcp/31337/p2p/QmPeerIdentity."
                )


@dataclass(kw_only=True)
class EvaluationConfig(RunConfig):
    """The options of one evaluation run.

    Raises:
        ConfigError: on construction, when an option is out of range, missing, or contradicts another.
    """

    demo: bool = option(False, "evaluate the embedded example on a private swarm on this host", group="what")
    model: str | None = option(
        None, "base model: folder or hub name (default: the one named in the checkpoint)", group="what"
    )
    checkpoint: str | None = option(
        None,
        "tuned checkpoint: folder with config.json and safetensors; without it, --backend local evaluates --model, a "
        "classifier with its own head",
        group="what",
        metavar="FOLDER",
    )
    metric: list[str] = option(
        [],
        "custom metrics: package.module:name of a function, of a class with a reduction, or of a torchmetrics metric; "
        "or the path of a metric of Hugging Face's evaluate; a prefix NAME= names the result",
        group="figures",
        nargs="+",
        action="extend",
        metavar="METRIC",
    )

    compare_backends: bool = option(
        False, "also run the base model in each rank's own process, and report differences", group="where"
    )

    audit: float = option(
        0.0,
        "share of the batches that are sent twice, over different servers, and compared (0 to 1)",
        group="failure",
        metavar="FRACTION",
    )
    audit_tolerance: float | None = option(
        None,
        "largest relative difference that counts as agreement (default: by the servers' dtype)",
        group="failure",
        metavar="FRACTION",
    )
    on_error: str = option(
        "stop",
        "what to do if an example gets no prediction: stop the run, or count it and leave it out",
        group="failure",
        choices=("stop", "skip"),
    )
    max_failed: int = option(
        100, "most examples that --on-error skip may leave out", group="failure", metavar="EXAMPLES"
    )
    confidence: float = option(
        0.95, "confidence level of the metrics' intervals (0 to 1)", group="figures", metavar="LEVEL"
    )
    slice_by: list[str] = option(
        [],
        "also compute metrics for slices of the data: by these columns of the dataset, or by length in tokens (length)",
        group="figures",
        nargs="+",
        metavar="COLUMN",
    )
    group_column: str | None = option(
        None,
        "column with the group of each row, such as the document of a sentence: intervals then allow for correlation "
        "within groups",
        group="figures",
        metavar="NAME",
    )
    report: str = option(
        "numbers",
        "what report.html shows of wrong predictions: positions and labels (numbers), also their texts (texts); or "
        "write no report (none)",
        group="output",
        choices=("numbers", "texts", "none"),
    )

    def __post_init__(self) -> None:
        if self.demo:
            self._become_demo()
        else:
            self._require(self.dataset, "--dataset", "the data to evaluate on", _DEMO_HINT)
            if self.backend == "local" and not self.checkpoint:
                what = "a classifier, or what was tuned of one"
                self._require(self.model, "--model or --checkpoint", what, _DEMO_HINT)
            else:
                self._require(self.checkpoint, "--checkpoint", "the tuned head and prompts", _DEMO_HINT)
        super().__post_init__()
        self._check_range("max_failed", 0)
        if not 0 <= self.audit <= 1:
            raise ConfigError(f"--audit must be between 0 and 1, not {self.audit}.")
        if not 0 < self.confidence < 1:
            raise ConfigError(f"--confidence must be between 0 and 1, such as 0.95, not {self.confidence}.")
        if self.audit_tolerance is not None and not 0 <= self.audit_tolerance < float("inf"):
            raise ConfigError(f"--audit-tolerance must be a number of at least 0, not {self.audit_tolerance}.")

    @property
    def output_folder(self) -> Path:
        """The run's folder: `--output`, or `runs/` and the dataset's name, or `runs/demo`."""
        return Path("runs") / "demo" if self.demo and self.output is None else super().output_folder

    def _become_demo(self) -> None:
        from dist_eval import demo

        for name, value in demo.OPTIONS.items():
            default = next(f.default for f in dataclasses.fields(self) if f.name == name)
            if getattr(self, name) not in (default, value):
                raise ConfigError(
                    f"--demo evaluates the embedded example: leave out {flag(name)}, or leave out --demo."
                )
            setattr(self, name, value)
        if self.output is None:
            self.overwrite = True  # runs/demo is the demo's own folder

    def _check_where(self) -> None:
        if self.backend == "local" and self.audit:
            raise ConfigError("--backend local uses no servers that --audit could compare: leave it out.")
        if self.backend == "local" and self.compare_backends:
            raise ConfigError("--compare-backends compares a swarm with --backend local: leave one of them out.")
        if self.initial_peers or self.swarm or not self.demo:  # the demo has a swarm of its own
            super()._check_where()


_PEER_ADDRESS = re.compile(
    r"/(ip4|ip6|dns|dns4|dns6|dnsaddr)/[^/]+(/(tcp|udp)/\d+)?(/[a-z0-9-]+)*/p2p/[1-9A-HJ-NP-Za-km-z]{40,}"
)


def read_peers(path: Path) -> list[str]:
    """Reads peer addresses from a file: one per line; blank lines, and lines that begin with #, are ignored.

    Raises:
        ConfigError: the file cannot be read, or holds no address.
    """
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"--peers-file {path}: cannot be read ({getattr(error, 'strerror', None) or error})."
        ) from error
    peers = [line for line in lines if line and not line.startswith("#")]
    if not peers:
        raise ConfigError(f"--peers-file {path} holds no address.")
    return peers


def flag(name: str) -> str:
    """Returns the command line option of a field."""
    return "--" + name.replace("_", "-")
