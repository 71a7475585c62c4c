"""Parses a command line, and the YAML file that it may name, into the options of a command.

Options come from three places, later ones override earlier ones: the defaults of the command's options, a YAML file
(`--config`), the command line.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, NoReturn, TypeVar

from dist_eval.arguments.fields import REQUIRED, Options, flag, options_of
from dist_eval.arguments.types import OptionType
from dist_eval.errors import ConfigError, EvaluationError, print_error, translating_os_errors
from dist_eval.printable import printable_lines
from dist_eval.process.parsing import parse_yaml
from dist_eval.process.programs import FAILED, WRONG_OPTIONS

Config = TypeVar("Config", bound=Options)

# headings of `--help`, in this order, and what is said below them
_GROUPS = {
    "model": None,
    "tasks": None,
    "data": None,
    "rows": None,
    "prompts": "For a language model without a tuned head.",
    "generation": "With --generate.",
    "tuning": None,
    "learning": None,
    "swarm": "Data goes to a swarm only when that swarm is named here.",
    "output": None,
    "metrics": None,
    "speed": "The defaults suit most runs.",
    "failures": None,
    "processes": "torchrun's --nnodes, --node-rank, --rdzv-endpoint, --rdzv-id, --rdzv-backend,\n"
    "--rdzv-conf, --master-addr, --master-port, --local-addr and --max-restarts\n"
    "are options here as well.",
}

_OF_PROCESSES = (
    *("nproc_per_node", "nnodes", "node_rank", "master_addr", "master_port", "max_restarts", "local_addr"),
    *("rdzv_endpoint", "rdzv_id", "rdzv_backend", "rdzv_conf"),
)
_FIRST_RANK_SECONDS = 10.0
_WIDEST, _HELP_COLUMN = 120, 30


@dataclass(frozen=True)
class Command(Generic[Config]):
    """A command with options."""

    program: str  # how it is started
    config: type[Config]  # class of its options
    description: str  # what it does, in a sentence
    examples: str = ""  # shown below its options
    usage: str = ""  # the most important options; by default all
    nothing_asked: str = ""  # message when it is started without options; empty if it needs none
    is_run: bool = False  # whether it also takes its options from a YAML file
    foreign: Mapping[str, str] = dataclasses.field(default_factory=dict)  # what replaces a similar program's options


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Uses the width of the terminal, and writes `NAME...` for several values."""

    def __init__(self, prog: str) -> None:
        width = min(shutil.get_terminal_size((_WIDEST, 24)).columns, _WIDEST)
        super().__init__(prog, max_help_position=_HELP_COLUMN, width=width)

    def _format_args(self, action: argparse.Action, default_metavar: str) -> str:
        if action.nargs == "+":
            return f"{self._metavar_formatter(action, default_metavar)(1)[0]}..."
        return super()._format_args(action, default_metavar)


class OptionParser(argparse.ArgumentParser):
    """Raises a `ConfigError` for invalid options, and suggests similar names for unknown ones.

    Accepts underscores in names: `--num_fewshot` like `--num-fewshot`.
    """

    def __init__(self, foreign: Mapping[str, str] | None = None, **settings: Any) -> None:
        super().__init__(formatter_class=_Formatter, allow_abbrev=False, argument_default=argparse.SUPPRESS, **settings)
        self.given: dict[str, str] = {}  # how each option was spelled, by its name
        self._foreign = foreign or {}  # what to do instead of options that another program has

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        self.given.clear()
        words = [self._with_dashes(word) for word in (sys.argv[1:] if args is None else args)]
        for word in words:
            if word.endswith("=--") and word[:-3] in self._option_string_actions:  # Python 3.12 and older drop it
                self.error(f"{word}: the value -- is not possible on a command line")
        return super().parse_known_args(words, namespace)

    def _with_dashes(self, word: str) -> str:
        name, equals, value = word.partition("=")
        dashed = name.replace("_", "-")
        is_option = name.startswith("--") and dashed in self._option_string_actions
        return dashed + equals + value if is_option else word

    def error(self, message: str) -> NoReturn:
        """Raises a `ConfigError` where argparse would print and exit."""
        unknown = re.match(r"unrecognized arguments: (--[\w-]+)", message)
        if unknown:
            shown = (name for name, act in self._option_string_actions.items() if act.help is not argparse.SUPPRESS)
            instead = self._foreign.get(unknown[1].replace("_", "-"))
            message = f"There is no option {unknown[1]}" + (
                f": {instead}" if instead else "." + _suggestion(unknown[1], shown)
            )
        message = re.sub(r"^argument ([^/:]+)[^:]*: (must )?", lambda m: f"{m[1]}{' must ' if m[2] else ': '}", message)
        raise ConfigError(message if message.endswith((".", "?")) else message + ".")

    def add_options(self, config: type[Options]) -> None:
        """Adds the options of a class, each below the heading of its group."""
        known = {group.title: group for group in self._action_groups}
        options = options_of(config)
        titles = dict.fromkeys(field.metadata["group"] for field, _ in options.values())
        for title in sorted(titles, key=lambda title: [*_GROUPS, title].index(title)):
            group: Any = known.get(title) or (
                self if title == "options" else self.add_argument_group(title, _GROUPS.get(title))
            )
            for field, kind in options.values():
                if field.metadata["group"] == title:
                    _add_option(group, field, kind)


class _Store(argparse.Action):
    """Stores the values of an option; a second time, it adds them if the option repeats, else it is an error."""

    repeats = False

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        before = parser.given.get(self.dest)
        if option_string is None:
            setattr(namespace, self.dest, values)
            return
        is_further = option_string.endswith("+")
        if before and not (self.repeats or is_further):
            which = "is given twice" if before == option_string else f"and {option_string} are the same option"
            more = ", with all its values" if self.nargs == "+" else ""
            parser.error(f"{before} {which}: give it once{more}.")
        if not is_further:
            parser.given[self.dest] = option_string
        merged = getattr(namespace, self.dest, None)
        setattr(namespace, self.dest, values if merged is None else [*merged, *values])


class _Merge(argparse.Action):
    """Merges the mappings that an option's words are; of a key that several have, the last one counts."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        merged = dict(getattr(namespace, self.dest, {}))
        for mapping in values:
            merged.update(mapping)
        setattr(namespace, self.dest, merged)


def _add_option(group: Any, field: dataclasses.Field[Any], kind: OptionType) -> None:
    given, default = field.metadata, field.default
    if callable(field.default_factory):
        default = " ".join(field.default_factory())
    text = given["help"] or argparse.SUPPRESS
    names = [flag(field.name), *(alias if alias.startswith("-") else flag(alias) for alias in given["aliases"])]
    if kind.base is bool:
        # both, so that the command line can also win over a YAML file; shown is the one that changes the default
        on, off = (argparse.SUPPRESS, text) if default else (text, argparse.SUPPRESS)
        group.add_argument(*names, action="store_true", help=on)
        group.add_argument("--no-" + names[0][2:], dest=field.name, action="store_false", help=off)
        return
    if default not in (None, "", REQUIRED) and text is not argparse.SUPPRESS and "(default" not in text:
        text += f" (default: {default:g})" if isinstance(default, float) else f" (default: {default})"
    several = "+" if kind.is_list or kind.base is dict else "?" if given["alone"] is not None else None
    settings: dict[str, Any] = {"type": _reader(kind), "help": text, "nargs": several, "dest": field.name}
    settings |= {"metavar": given["metavar"] or kind.metavar, "action": _Merge if kind.base is dict else _Store}
    if given["is_positional"]:
        del settings["dest"]
        group.add_argument(field.name, **settings).choices = kind.choices or None
        return
    if given["alone"] is not None:
        settings["const"] = given["alone"]
    action = group.add_argument(names[0], *names[1:], required=default is REQUIRED, **settings)
    action.choices, action.repeats = kind.choices or None, given["repeats"]
    if several == "+":  # each value in the word of its option, so that it may begin with a dash
        group.add_argument(*(f"{name}+" for name in names), **{**settings, "help": argparse.SUPPRESS})


def _reader(kind: OptionType) -> Callable[[str], Any]:
    def read(word: str) -> Any:
        try:
            return kind.read(word)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"must be {error}") from error

    return read


def _suggestion(name: str, known: Iterable[str]) -> str:
    names = list(known)
    longer = [other for other in names if name.strip("-") and other.startswith(name)]
    close = longer or difflib.get_close_matches(name, names, n=1)
    return f" Did you mean {close[0]}?" if close else " --help lists them all."


def build_parser(command: Command[Any], *further: type[Options]) -> OptionParser:
    """Builds a command's parser, which also takes `further` classes of options that are not the command's."""
    epilog = command.examples
    if command.is_run:
        epilog += (
            "\nAny option but those of processes can also be given in the file of --config; the command line wins.\n"
            "A value that begins with a dash follows =, and further values follow +=: --metric=-a --metric+=-b."
        )
    parser = OptionParser(
        command.foreign,
        prog=command.program,
        usage=f"{command.program} {command.usage}" if command.usage else None,
        description=command.description,
        epilog=epilog or None,
    )
    parser.add_options(command.config)
    if command.is_run:
        parser.add_argument("--config", action=_Store, metavar="FILE.yaml", help="read options from a YAML file")
    for config in further:
        parser.add_options(config)
    return parser


def parse_args(
    arguments: Sequence[str] | None, command: Command[Config], parser: argparse.ArgumentParser | None = None
) -> Config:
    """Reads a command line, and the YAML file that it may name, into the options of a command.

    `arguments` lack the program's name; None stands for those of this process. `parser` may have further options, which
    are not the command's. Raises ConfigError if an option is unknown, of the wrong type, out of range, missing or
    contradictory.
    """
    words = sys.argv[1:] if arguments is None else list(arguments)
    if not words and command.nothing_asked:
        raise ConfigError(command.nothing_asked)
    given = vars((parser or build_parser(command)).parse_args(words))
    from_file = read_yaml(Path(given.pop("config")), command.config) if command.is_run and "config" in given else {}
    known = options_of(command.config)
    return command.config(**{**from_file, **{name: value for name, value in given.items() if name in known}})


def read_yaml(path: Path, config: type[Options]) -> dict[str, Any]:
    """Reads options from a YAML file."""
    with translating_os_errors(ConfigError, f"--config {path} cannot be read"):
        text = path.read_text(encoding="utf-8")
    try:
        content = parse_yaml(text)
    except ValueError as error:
        raise ConfigError(f"--config {path}: not valid YAML ({error}).") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigError(f"--config {path}: should hold lines of the form `option: value`.")
    return convert_options(content, config, f"--config {path}")


def convert_options(given: Mapping[Any, Any], config: type[Options], where: str) -> dict[str, Any]:
    """Returns options that are named as in a YAML file by the names of a configuration's fields, in their types.

    Messages say `where` the options were given.
    """
    options = options_of(config)
    aliases = {alias: name for name, (field, _) in options.items() for alias in field.metadata["aliases"]}
    spelled: dict[str, Any] = {}
    values = {}
    for key, value in given.items():
        name = str(key).lstrip("-").replace("-", "_")
        name = aliases.get(name, name)
        if spelled.setdefault(name, key) != key:
            raise ConfigError(f"{where}: {spelled[name]!r} and {key!r} are the same option: give it once.")
        if name not in options:
            known = options if "_" in str(key) else (flag(option).lstrip("-") for option in options)
            is_elsewhere = name in _OF_PROCESSES and where.startswith("--config")
            hint = " Set it on the command line." if is_elsewhere else _suggestion(str(key), known)
            raise ConfigError(f"{where}: there is no option {key!r}.{hint}")
        kind = options[name][1]
        try:
            is_word = kind.base is dict and isinstance(value, str)
            values[name] = kind.read(value) if is_word else kind.convert(value)
        except ValueError as error:
            raise ConfigError(f"{where}: {name} must be {error}.") from error
    return values


def to_words(given: Mapping[str, Any], config: type[Options], where: str) -> list[str]:
    """Returns options that are named and typed as in a YAML file as the words of a command line.

    Messages say `where` the options were given.
    """
    words: list[str] = []
    given = {name: value for name, value in given.items() if value is not None}
    for name, value in zip(convert_options(given, config, where), given.values(), strict=True):
        kind, option = options_of(config)[name][1], flag(name)
        if kind.base is bool:
            words.append(option if value else "--no-" + option[2:])
            continue
        try:
            texts = [kind.write(item) for item in (value if isinstance(value, (list, tuple)) else [value])]
        except ValueError as error:
            raise ConfigError(f"{where}: {name} must be {error}.") from error
        if len(texts) > 1 and not any(text.startswith("-") for text in texts):
            words += [option, *texts]
        else:  # each in the word of its option, since it would be read as an option
            words += [f"{option}{'+' if place else ''}={text}" for place, text in enumerate(texts)]
    return words


def run_command(
    command: Command[Config], action: Callable[[Config], int], arguments: Sequence[str] | None = None
) -> int:
    """Runs a command, and returns its exit status: 2 for wrong options, 1 for another error, which are printed."""
    try:
        return action(parse_args(arguments, command))
    except EvaluationError as error:
        print_error(str(error), command.program)
        return WRONG_OPTIONS if isinstance(error, ConfigError) else FAILED


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
