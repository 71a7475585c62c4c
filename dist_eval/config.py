"""What a run is asked to do: one dataclass is the single source of option names, types, defaults and help.

Options come from three places, the later one winning: the defaults below, a YAML file (`--config`), the command
line. Everything that can be checked without reading data or asking the swarm is checked on construction.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import re
import types
import typing
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dist_eval.errors import ConfigError

MAX_TOKEN_BUDGET = 1024
"""Tokens in one request: Petals' client splits anything larger into requests of this size (its
`MAX_TOKENS_IN_BATCH`), which would send the deep prompts more than once."""

_LONGEST_WAIT = 30 * 24 * 3600.0

PROGRAM = "torchrun --nproc_per_node=N -m dist_eval"

NOTHING_ASKED = f"""\
dist_eval needs a base model and a tuned checkpoint, labelled data, and a swarm:
  {PROGRAM} --model MODEL --checkpoint TUNED --dataset FILE --initial-peers ADDRESS...
Or see it work on a private swarm of its own: {PROGRAM} --demo   (all options: --help)"""


def option(default: Any, help: str, *, group: str, metavar: str | None = None, **extra: Any) -> Any:
    """Declares a field of `EvaluationConfig` that is an option of the command line and of the YAML file.

    Args:
        default: value when the option is not given; lists are copied for each instance.
        help: one line for `--help`; the default is added to it.
        group: heading under which `--help` shows the option.
        metavar: placeholder in `--help`.
        **extra: `choices` or `nargs`, passed on to argparse.

    Returns:
        A dataclass field.
    """
    metadata = {"help": help, "group": group, "metavar": metavar, "extra": extra}
    if isinstance(default, list):
        return dataclasses.field(default_factory=lambda: list(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


@dataclass(kw_only=True)
class EvaluationConfig:
    """The options of one evaluation run.

    Raises:
        ConfigError: on construction, when an option is out of range, missing, or contradicts another.
    """

    demo: bool = option(False, "evaluate the embedded example on a private swarm of this host", group="what")
    model: str | None = option(
        None, "base model: folder or hub name (default: the one that the checkpoint names)", group="what"
    )
    checkpoint: str | None = option(None, "tuned checkpoint: folder with config.json and safetensors", group="what")
    dataset: str | None = option(None, "CSV, TSV, JSON, JSONL or Parquet file, Arrow folder, or hub name", group="what")
    subset: str | None = option(None, "configuration of a hub dataset", group="what")
    split: str | None = option(None, "split of a hub dataset or Arrow folder", group="what")
    text_column: list[str] = option(
        ["text"], "column with the text, or two columns for a pair", group="what", nargs="+", metavar="NAME"
    )
    label_column: str = option("label", "column with the label, as an id or a name", group="what", metavar="NAME")
    max_length: int | None = option(
        None, "longest text in tokens, longer ones are cut and counted (default: what servers accept)", group="what"
    )
    strict: bool = option(False, "a text longer than --max-length is an error", group="what")

    initial_peers: list[str] = option(
        [], "addresses of a running swarm: /ip4/HOST/tcp/PORT/p2p/ID", group="where", nargs="+", metavar="ADDRESS"
    )
    swarm: str | None = option(
        None,
        "start a private swarm on this host (embedded), or send the data to the public one (public)",
        group="where",
        choices=("embedded", "public"),
    )
    servers: int = option(2, "servers of an embedded swarm", group="where")
    dht_prefix: str | None = option(
        None, "name under which the swarm announces the model (default: Petals' rule for the name)", group="where"
    )
    backend: str = option(
        "petals",
        "where the model's blocks run: on a swarm, or in each rank's own process",
        group="where",
        choices=("petals", "local"),
    )

    token_budget: int = option(
        MAX_TOKEN_BUDGET, "tokens in one request, padding and prompts included", group="how", metavar="TOKENS"
    )
    in_flight: int = option(4, "requests that a rank keeps in flight", group="how")
    server_max_tokens: int | None = option(
        None, "tokens that servers accept in one request (default: Petals' default)", group="how", metavar="TOKENS"
    )
    swarm_timeout: float = option(60.0, "longest wait for the swarm to be complete", group="how", metavar="SECONDS")
    request_timeout: float = option(60.0, "longest wait for a server's answer", group="how", metavar="SECONDS")
    max_retries: int = option(5, "attempts for each part of a request before the run stops", group="how")
    collective_timeout: float = option(
        600.0, "longest wait for a rank that makes no progress, once this one is done", group="how", metavar="SECONDS"
    )

    output: str | None = option(None, "folder for the results (default: runs/ and the dataset's name)", group="output")
    overwrite: bool = option(False, "replace the results that are in the folder", group="output")
    verbose: bool = option(False, "show what Petals, hivemind and the servers say, and tracebacks", group="output")

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            choices, value = field.metadata["extra"].get("choices"), getattr(self, field.name)
            if choices and value is not None and value not in choices:
                raise ConfigError(f"{flag(field.name)} must be one of {', '.join(choices)}, not {value!r}.")
        if not self.demo:
            self._require(self.dataset, "--dataset", "the data to evaluate on")
            self._require(self.checkpoint, "--checkpoint", "the tuned head and prompts")
        self._check_where()
        for name in ("servers", "in_flight", "max_retries", "token_budget"):
            self._check_range(name, 1, MAX_TOKEN_BUDGET if name == "token_budget" else None)
        for name in ("max_length", "server_max_tokens"):
            if getattr(self, name) is not None:
                self._check_range(name, 1)
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
        """The folder of the run: `--output`, or `runs/` and the dataset's name."""
        if self.output is not None:
            return Path(self.output)
        return Path("runs") / ("demo" if self.demo else Path(str(self.dataset)).stem)

    def to_dict(self) -> dict[str, Any]:
        """Returns all options by name, ready for JSON."""
        return dataclasses.asdict(self)

    def _require(self, value: Any, name: str, what: str) -> None:
        if not value:
            raise ConfigError(f"{name} is missing: {what}. (--demo needs no other option.)")

    def _check_range(self, name: str, low: int, high: int | None = None) -> None:
        value = getattr(self, name)
        if value < low or (high is not None and value > high):
            limits = f"at least {low}" if high is None else f"between {low} and {high}"
            raise ConfigError(f"{flag(name)} must be {limits}, not {value}.")

    def _check_where(self) -> None:
        if self.backend == "local":
            if self.initial_peers or self.swarm:
                raise ConfigError("--backend local uses no swarm: leave out --initial-peers and --swarm.")
            return
        if self.initial_peers and self.swarm:
            raise ConfigError(
                f"--swarm {self.swarm} and --initial-peers contradict each other: "
                "--initial-peers names a running swarm, --swarm embedded starts one, --swarm public means Petals' own."
            )
        if not (self.initial_peers or self.swarm or self.demo):
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


_PEER_ADDRESS = re.compile(
    r"/(ip4|ip6|dns|dns4|dns6|dnsaddr)/[^/]+(/(tcp|udp)/\d+)?(/[a-z0-9-]+)*/p2p/[1-9A-HJ-NP-Za-km-z]{40,}"
)

_GROUPS = {
    "what": ("what is evaluated", None),
    "where": ("where the model runs", "Data goes to a swarm only when that swarm is named here."),
    "how": ("how it runs", None),
    "output": ("output", None),
}

_EXAMPLES = f"""\
examples:
  {PROGRAM.replace("N ", "2 ")} --demo
  {PROGRAM.replace("N ", "4 ")} --model MODEL --checkpoint TUNED --dataset test.csv \\
      --text-column sentence --initial-peers /ip4/10.0.0.5/tcp/31337/p2p/QmPeerIdentity --output runs/sst2
  {PROGRAM.replace("N ", "2 ")} --model ./llama --checkpoint TUNED --dataset test.csv --swarm embedded

Every option can also stand in the file given by --config, with or without the dashes; the command line wins."""


def flag(name: str) -> str:
    """Turns a field's name into the option as it is typed."""
    return "--" + name.replace("_", "-")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> typing.NoReturn:
        unknown = re.match(r"unrecognized arguments: (--[\w-]+)", message)
        if unknown:
            message = f"There is no option {unknown[1]}." + _suggestion(unknown[1], self._option_string_actions)
        raise ConfigError(message if message.endswith((".", "?")) else message + ".")


def _suggestion(name: str, known: typing.Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), n=1)
    return f" Did you mean {close[0]}?" if close else " --help lists them all."


def _scalar_type(annotation: Any) -> tuple[type, bool]:
    """Returns the type of one value, and whether the option takes a list of them."""
    if isinstance(annotation, types.UnionType):
        annotation = next(part for part in typing.get_args(annotation) if part is not type(None))
    if typing.get_origin(annotation) is list:
        return typing.get_args(annotation)[0], True
    return annotation, False


def build_parser() -> argparse.ArgumentParser:
    """Makes the command line's parser from the fields of `EvaluationConfig`."""
    parser = _Parser(
        prog=PROGRAM,
        description="Evaluates a tuned classifier whose base model lives on a Petals swarm, exactly, on any number "
        "of processes.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
    )
    groups = {key: parser.add_argument_group(title, text) for key, (title, text) in _GROUPS.items()}
    hints = typing.get_type_hints(EvaluationConfig)
    for field in dataclasses.fields(EvaluationConfig):
        scalar, _ = _scalar_type(hints[field.name])
        default = " ".join(field.default_factory()) if callable(field.default_factory) else field.default
        help_text = field.metadata["help"]
        if scalar is bool:
            names = [flag(field.name), "-v"] if field.name == "verbose" else [flag(field.name)]
            group = groups[field.metadata["group"]]
            group.add_argument(*names, action="store_true", help=help_text)
            # so that the command line can also win over a YAML file that sets it
            group.add_argument("--no-" + names[0][2:], dest=field.name, action="store_false", help=argparse.SUPPRESS)
            continue
        if default not in (None, ""):
            help_text += f" (default: {default:g})" if isinstance(default, float) else f" (default: {default})"
        extra = dict(field.metadata["extra"])
        if "choices" not in extra:
            extra["metavar"] = field.metadata["metavar"] or {int: "N", float: "X", str: field.name.upper()}[scalar]
        groups[field.metadata["group"]].add_argument(flag(field.name), type=scalar, help=help_text, **extra)
    groups["what"].add_argument("--config", metavar="FILE.yaml", help="read options from a YAML file")
    return parser


def parse_args(arguments: Sequence[str]) -> EvaluationConfig:
    """Reads a command line, and the YAML file that it may name, into a checked configuration.

    Args:
        arguments: the command line without the program's name.

    Returns:
        The configuration.

    Raises:
        ConfigError: an option is unknown, of the wrong type, out of range, missing or contradictory.
    """
    if not arguments:
        raise ConfigError(NOTHING_ASKED)
    given = vars(build_parser().parse_args(list(arguments)))
    from_file = read_yaml(Path(given.pop("config"))) if "config" in given else {}
    return EvaluationConfig(**{**from_file, **given})


def read_yaml(path: Path) -> dict[str, Any]:
    """Reads options from a YAML file.

    Args:
        path: a file that holds one mapping from option names (with dashes or underscores) to values.

    Returns:
        Values by field name, of the types that `EvaluationConfig` declares.

    Raises:
        ConfigError: the file is missing, is no mapping, or holds an unknown option or a value of the wrong type.
    """
    import yaml

    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--config {path}: cannot be read ({getattr(error, 'strerror', None) or error}).") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"--config {path}: is no valid YAML ({str(error).splitlines()[0]}).") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigError(f"--config {path}: should hold lines of the form `option: value`.")
    hints, values = typing.get_type_hints(EvaluationConfig), {}
    for key, value in content.items():
        name = str(key).lstrip("-").replace("-", "_")
        if name not in hints:
            raise ConfigError(
                f"--config {path}: there is no option {key!r}." + _suggestion(flag(name), map(flag, hints))
            )
        values[name] = _convert(path, name, value, hints[name])
    return values


def _convert(path: Path, name: str, value: Any, annotation: Any) -> Any:
    scalar, is_list = _scalar_type(annotation)
    if value is None and isinstance(annotation, types.UnionType):
        return None
    items = value if is_list and isinstance(value, list) else [value]
    for item in items:
        accepted = (int, float) if scalar is float else (scalar,)
        if not isinstance(item, accepted) or (isinstance(item, bool) and scalar is not bool):
            raise ConfigError(f"--config {path}: {name} should be of type {scalar.__name__}, not {item!r}.")
    choices = next(f for f in dataclasses.fields(EvaluationConfig) if f.name == name).metadata["extra"].get("choices")
    if choices and value not in choices:
        raise ConfigError(f"--config {path}: {name} should be one of {', '.join(choices)}, not {value!r}.")
    return [scalar(item) for item in items] if is_list else scalar(value)
