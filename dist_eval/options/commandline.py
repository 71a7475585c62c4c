"""Parses the command line and the YAML file into a validated configuration.

Options come from three places, later ones override earlier ones: the defaults of a `RunConfig`, a YAML file
(`--config`), the command line.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import os
import re
import sys
import time
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, NoReturn, TypeVar

from dist_eval.errors import ConfigError, os_reason
from dist_eval.options.config import EvaluationConfig, RunConfig
from dist_eval.options.groups import flag
from dist_eval.printable import printable_lines
from dist_eval.process.files import is_utf8
from dist_eval.process.interpreter import require_docstrings
from dist_eval.process.parsing import ExponentText, parse_yaml
from dist_eval.process.programs import WRONG_OPTIONS, ArgumentParser

Config = TypeVar("Config", bound=RunConfig)

PROGRAM = "dist-eval run"

NOTHING_ASKED = f"""\
dist_eval needs a base model and a tuned checkpoint, labelled data, and a swarm:
  {PROGRAM} --model MODEL --checkpoint TUNED --dataset FILE --initial-peers ADDRESS...
Or see it work on a private swarm of its own: {PROGRAM} --demo   (all options: --help)"""


_FIRST_RANK_SECONDS = 10.0

_GROUPS = {
    "data": ("the data", None),
    "prompt": ("a language model without a tuned head", None),
    "generation": ("generated texts (--generate)", None),
    "where": ("where the model runs", "Data goes to a swarm only when that swarm is named here."),
    "how": ("how it runs", "Nothing here needs setting: a rank finds out by itself what is fast."),
    "failure": ("when servers fail, or answer falsely", None),
    "output": ("output", None),
}

# a part of a command's usage: one of these options is required
WHERE = " " * 7 + "(--initial-peers ADDRESS... | --swarm embedded | --backend local)"

_EXAMPLES = f"""\
examples:
  {PROGRAM} --nproc-per-node 2 --demo
  {PROGRAM} --nproc-per-node 4 --model MODEL --checkpoint TUNED --dataset test.csv \\
      --text-column sentence --initial-peers /ip4/10.0.0.5/tcp/31337/p2p/QmPeerIdentity --output runs/sst2
  {PROGRAM} --model ./llama --checkpoint TUNED --dataset test.csv --swarm embedded
  {PROGRAM} --model ./llama --prompt 'Review: {{text}}\\nSentiment:' --label-words negative positive \\
      --dataset test.csv --swarm embedded
  {PROGRAM} --model ./llama --prompt 'Question: {{question}}\\nAnswer:' --generate --stop '\\n' \\
      --label-column answer --dataset test.jsonl --swarm embedded
  {PROGRAM} --backend local --model ./bert --dataset test.csv --report texts
"""


@dataclass(frozen=True)
class Command(Generic[Config]):
    """A command with options."""

    program: str  # how it is started
    config: type[Config]  # class of its options
    description: str  # what it does, in a sentence
    examples: str  # shown below its options
    usage: str  # the most important options
    nothing_asked: str  # message when it is started without options
    groups: dict[str, tuple[str, str | None]]  # headings and texts of groups of options, besides those of all commands
    foreign: Mapping[str, str] = dataclasses.field(
        default_factory=dict
    )  # what to do instead of options of a similar program


EVALUATION = Command(
    program=PROGRAM,
    config=EvaluationConfig,
    description="Evaluates a tuned classifier, or a language model by label words or by the texts that it generates, "
    "whose blocks live on a Petals swarm: exactly, on any number of processes.",
    examples=_EXAMPLES,
    usage=f"(--checkpoint TUNED | --model MODEL --prompt TEMPLATE (--label-words WORD... | --generate))\n"
    f"       --dataset FILE {WHERE.strip()}\n       [options]",
    nothing_asked=NOTHING_ASKED,
    groups={"what": ("what is evaluated", None), "metrics": ("which metrics", None)},
)


class OptionParser(ArgumentParser):
    """A parser that raises a `ConfigError` for invalid options, and suggests similar names for unknown ones."""

    foreign: Mapping[str, str] = {}  # what to do instead of options that another program has

    def error(self, message: str) -> NoReturn:
        """Raises a `ConfigError` where argparse would print and exit."""
        unknown = re.match(r"unrecognized arguments: (--[\w-]+)", message)
        if unknown:
            shown = (name for name, act in self._option_string_actions.items() if act.help is not argparse.SUPPRESS)
            instead = self.foreign.get(unknown[1].replace("_", "-"))
            message = f"There is no option {unknown[1]}" + (
                f": {instead}" if instead else "." + _suggestion(unknown[1], shown)
            )
        raise ConfigError(message if message.endswith((".", "?")) else message + ".")


def _suggestion(name: str, known: typing.Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), n=1)
    return f" Did you mean {close[0]}?" if close else " --help lists them all."


def _scalar_type(annotation: Any) -> tuple[type, bool]:
    """Returns the type of one value, and whether the option takes a list of them."""
    parts = typing.get_args(annotation) if isinstance(annotation, types.UnionType) else (annotation,)
    for part in parts:
        if typing.get_origin(part) is list:
            return typing.get_args(part)[0], True
    scalar = next(part for part in parts if part is not type(None))
    return typing.get_origin(scalar) or scalar, False


def build_parser(command: Command[Any] = EVALUATION) -> argparse.ArgumentParser:
    """Builds a command's parser from the fields of its configuration."""
    parser = OptionParser(
        prog=command.program,
        usage=f"{command.program} {command.usage}",
        description=command.description,
        epilog=f"{command.examples}\nEvery option can also stand in the file given by --config, with or without the "
        "dashes; the command line wins. A value that begins with a dash follows =, and further values of the "
        "command line +=: --metric=-a --metric+=-b.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
    )
    parser.foreign = command.foreign
    titles = {"what": command.groups["what"], "data": _GROUPS["data"], **command.groups, **_GROUPS}
    groups = {key: parser.add_argument_group(title, text) for key, (title, text) in titles.items()}
    hints = typing.get_type_hints(command.config)
    for field in dataclasses.fields(command.config):
        scalar, is_list = _scalar_type(hints[field.name])
        default = " ".join(field.default_factory()) if callable(field.default_factory) else field.default
        help_text = field.metadata["help"]
        if scalar is bool:
            names = [flag(field.name), "-v"] if field.name == "verbose" else [flag(field.name)]
            group = groups[field.metadata["group"]]
            # both, so that the command line can also win over a YAML file; shown is the one that changes the default
            on, off = (argparse.SUPPRESS, help_text) if default else (help_text, argparse.SUPPRESS)
            group.add_argument(*names, action="store_true", help=on)
            group.add_argument("--no-" + names[0][2:], dest=field.name, action="store_false", help=off)
            continue
        if default not in (None, ""):
            help_text += f" (default: {default:g})" if isinstance(default, float) else f" (default: {default})"
        extra = dict(field.metadata["extra"])
        if "choices" not in extra:
            extra["metavar"] = field.metadata["metavar"] or {int: "N", float: "X", str: field.name.upper()}[scalar]
        names = [flag(field.name), *map(flag, field.metadata["aliases"])]
        if is_list:
            extra["nargs"] = "+"
        group, settings = groups[field.metadata["group"]], {"type": scalar, "help": help_text, **extra}
        group.add_argument(*names, **settings)
        if settings.get("nargs") == "+":  # each value in the word of its option, so that it may begin with a dash
            further = {"action": "extend", **settings, "dest": field.name, "help": argparse.SUPPRESS}
            group.add_argument(*(f"{name}+" for name in names), **further)
    groups["what"].add_argument("--config", metavar="FILE.yaml", help="read options from a YAML file")
    return parser


def parse_args(
    arguments: Sequence[str],
    command: Command[Config] = EVALUATION,  # type: ignore[assignment]
    parser: argparse.ArgumentParser | None = None,
) -> Config:
    """Reads a command line, and the YAML file that it may name, into a validated configuration.

    Args:
        arguments: the command line without the program's name.
        command: the command.
        parser: a parser with additional options, which are not part of the configuration.

    Returns:
        The configuration.

    Raises:
        ConfigError: an option is unknown, of the wrong type, out of range, missing or contradictory.
    """
    require_docstrings()
    if not arguments:
        raise ConfigError(command.nothing_asked)
    require_utf8(arguments)
    given = vars((parser or build_parser(command)).parse_args(list(arguments)))
    from_file = read_yaml(Path(given.pop("config")), command.config) if "config" in given else {}
    names = {field.name for field in dataclasses.fields(command.config)}
    return command.config(**{**from_file, **{name: value for name, value in given.items() if name in names}})


def require_utf8(arguments: Sequence[str]) -> None:
    """Rejects arguments that could not be written into results.

    Raises:
        ConfigError: one is not UTF-8.
    """
    for word in arguments:
        if not is_utf8(word):
            raise ConfigError(f"{word!r} is not UTF-8: rename the file, folder or column, or set a UTF-8 locale.")


def read_yaml(path: Path, config: type[RunConfig] = EvaluationConfig) -> dict[str, Any]:
    """Reads options from a YAML file."""
    try:
        content = parse_yaml(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--config {path}: cannot be read ({os_reason(error)}).") from error
    except ValueError as error:
        raise ConfigError(f"--config {path}: is no valid YAML ({error}).") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigError(f"--config {path}: should hold lines of the form `option: value`.")
    return convert_options(content, config, f"--config {path}")


def convert_options(given: Mapping[Any, Any], config: type[RunConfig], where: str) -> dict[str, Any]:
    """Converts options that do not come from a command line to the names and types of a configuration.

    Args:
        given: value by name of the option, as in a YAML file.
        config: the configuration's class.
        where: where they were given, for messages.

    Returns:
        Value by name of the field.

    Raises:
        ConfigError: an option is unknown, or of the wrong type.
    """
    hints, values = typing.get_type_hints(config), {}
    extras = {field.name: field.metadata["extra"] for field in dataclasses.fields(config)}
    aliases = {alias: field.name for field in dataclasses.fields(config) for alias in field.metadata["aliases"]}
    spelled: dict[str, Any] = {}
    for key, value in given.items():
        name = str(key).lstrip("-").replace("-", "_")
        name = aliases.get(name, name)
        if spelled.setdefault(name, key) != key:
            raise ConfigError(f"{where}: {spelled[name]!r} and {key!r} are one option: give it once.")
        if name not in hints:
            raise ConfigError(f"{where}: there is no option {key!r}." + _suggestion(flag(name), map(flag, hints)))
        values[name] = _convert(where, name, value, hints[name], extras[name])
    return values


_QUOTE = " Put it in quotes: YAML takes words such as yes, no, on and off for true or false, and digits for numbers."


def _with_numbers(value: Any) -> Any:
    """Returns a value of YAML with the numbers of YAML 1.2."""
    if isinstance(value, ExponentText):
        return float(value)
    if isinstance(value, dict):
        return {key: _with_numbers(item) for key, item in value.items()}
    return [_with_numbers(item) for item in value] if isinstance(value, list) else value


def _convert(where: str, name: str, value: Any, annotation: Any, extra: dict[str, Any]) -> Any:
    scalar, is_list = _scalar_type(annotation)
    if value is None and isinstance(annotation, types.UnionType):
        return None
    if scalar is dict and isinstance(value, str):
        try:
            return extra["type"](value)
        except argparse.ArgumentTypeError as error:
            raise ConfigError(f"{where}: {name}: {error}.") from error
    if scalar is dict:
        value = _with_numbers(value)
    items = value if is_list and isinstance(value, list) else [value]
    items = [float(item) if scalar is float and isinstance(item, ExponentText) else item for item in items]
    for item in items:
        accepted = (int, float) if scalar is float else (scalar,)
        if not isinstance(item, accepted) or (isinstance(item, bool) and scalar is not bool):
            advice = _QUOTE if scalar is str and where.startswith("--config") else ""
            raise ConfigError(f"{where}: {name} should be of type {scalar.__name__}, not {item!r:.80}.{advice}")
    if not all(map(is_utf8, items)):
        raise ConfigError(f"{where}: {name} is not UTF-8: {value!r}.")
    choices = extra.get("choices")
    if choices and any(item not in choices for item in items):
        raise ConfigError(f"{where}: {name} should be one of {', '.join(choices)}, not {value!r}.")
    return [scalar(item) for item in items] if is_list else scalar(items[0])


def end_for_wrong_options(error: ConfigError) -> NoReturn:
    """Prints the error, once on each host, and exits with the status for wrong options.

    torchrun ends all ranks as soon as one has ended: the other ranks of a host give its first one time to print. Hosts
    may have different errors, because a YAML file and a file of peers are their own.
    """
    if os.environ.get("LOCAL_RANK", "0") == "0":
        print(printable_lines(str(error)), file=sys.stderr, flush=True)
    else:
        time.sleep(_FIRST_RANK_SECONDS)
    sys.exit(WRONG_OPTIONS)
