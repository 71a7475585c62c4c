"""Declares options: the fields of a dataclass are the single source of their names, types, defaults and help."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, get_type_hints

from dist_eval.arguments.types import OptionType, option_type
from dist_eval.errors import ConfigError

REQUIRED = dataclasses.MISSING


def option(
    default: Any,
    help: str,
    *,
    group: str = "options",
    metavar: str | None = None,
    aliases: Sequence[str] = (),
    repeats: bool = False,
    alone: Any = None,
    is_positional: bool = False,
    needs: Sequence[str] = (),
) -> Any:
    """Declares a dataclass field that is an option of the command line and of the YAML file.

    Args:
        default: value if the option is not given, or `REQUIRED`; lists and mappings are copied for each instance.
        help: one line for `--help`, which appends the default; empty to hide the option there.
        group: heading under which `--help` shows the option.
        metavar: placeholder in `--help`; by default that of the type.
        aliases: further names of the field, such as that which another command or tool has for it.
        repeats: whether the option may be given several times, each adding values.
        alone: value of the option when it is given without one; None if it needs one.
        is_positional: whether its values follow the command without a name.
        needs: options, as typed, of which one must have another value than its default: without it, this one has no
            effect.
    """
    metadata = {
        "help": help,
        "group": group,
        "metavar": metavar,
        "aliases": aliases,
        "repeats": repeats,
        "alone": alone,
        "is_positional": is_positional,
        "needs": needs,
    }
    if isinstance(default, (list, dict)):
        return dataclasses.field(default_factory=default.copy, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def argument(help: str, metavar: str) -> Any:
    """Declares a field whose values follow the command without a name."""
    return option(REQUIRED, help, metavar=metavar, is_positional=True)


def flag(name: str) -> str:
    """Returns the command line option of a field."""
    return "--" + name.replace("_", "-")


def options_of(config: type[Any]) -> dict[str, tuple[dataclasses.Field[Any], OptionType]]:
    """Returns the options of a class: field and type by name."""
    return _read_options(config)  # type: ignore[arg-type]  # python/mypy#11470: classes are hashable


@functools.cache
def _read_options(config: type[Any]) -> dict[str, tuple[dataclasses.Field[Any], OptionType]]:
    hints = get_type_hints(config, include_extras=True)
    return {field.name: (field, option_type(hints[field.name])) for field in dataclasses.fields(config)}


@dataclass(kw_only=True)
class Options:
    """Base of all groups of options; construction raises ConfigError if one is wrong or contradicts another."""

    def __post_init__(self) -> None:
        for name, (field, kind) in options_of(type(self)).items():
            try:
                setattr(self, name, kind.convert(getattr(self, name)))
            except ValueError as error:
                spelled = field.metadata["metavar"] if field.metadata["is_positional"] else flag(name)
                raise ConfigError(f"{spelled} must be {error}.") from error
        self._validate()
        for name, (field, _) in options_of(type(self)).items():
            named = {text.split()[0][2:].replace("-", "_"): text for text in field.metadata["needs"]}
            needs = {other: text for other, text in named.items() if hasattr(self, other)}  # a group may lack them
            has_effect = self.is_given(name) and getattr(self, name) is not False
            if needs and has_effect and not any(map(self.is_given, needs)):
                raise ConfigError(f"{flag(name)} needs {' or '.join(needs.values())}.")

    def _validate(self) -> None:
        """Checks and completes options that depend on each other; their types have been checked."""

    def select(self, group: type[Group]) -> Group:
        """Returns the options of one group, a base of this class, as a record of their own."""
        return group(**{field.name: getattr(self, field.name) for field in dataclasses.fields(group)})

    @classmethod
    def recorded_in(cls: type[Group], config: Mapping[str, Any]) -> Group:
        """Returns this group from all options of a run, by name, as its results record them.

        Options that the run's version did not have get their defaults.
        """
        return cls(**{field.name: config[field.name] for field in dataclasses.fields(cls) if field.name in config})

    def is_given(self, name: str) -> bool:
        """Returns whether an option has another value than its default."""
        field, _ = options_of(type(self))[name]
        default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        return bool(getattr(self, name) != default)

    def _refuse_together(self, *names: str) -> None:
        given = [flag(name) for name in names if self.is_given(name)]
        if len(given) > 1:
            raise ConfigError(f"{' and '.join(given)} cannot be combined: give one of them.")


Group = TypeVar("Group", bound=Options)
