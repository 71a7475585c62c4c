"""The types of options: one table for the command line, YAML, Python and `--help`.

The annotation of an option's field says what it takes: `int | None`, `list[str]`, `Literal["none", "float16"]`, or
one of the names below, which add limits.
"""

from __future__ import annotations

import functools
import json
import math
import re
import types
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, Union, get_args, get_origin

from dist_eval.errors import one_line, os_reason
from dist_eval.process.files import is_utf8
from dist_eval.process.parsing import ExponentText

_LONGEST_WAIT = 30 * 24 * 3600.0
_QUOTE = "put it in quotes: YAML reads yes, no, on and off as true or false, and digits as numbers"


@dataclass(frozen=True)
class Limits:
    """The smallest and largest value of a number, or what it must stay above and below."""

    least: float = -math.inf
    most: float = math.inf
    above: float = -math.inf
    below: float = math.inf
    unit: str = ""
    example: str = ""

    def allow(self, value: float) -> bool:
        """Returns whether a number is within the limits."""
        return self.least <= value <= self.most and self.above < value < self.below

    def __str__(self) -> str:
        if self.least > -math.inf and self.most < math.inf:
            text = f"between {self.least:g} and {self.most:g}"
        else:
            limits = {"at least": self.least, "more than": self.above, "at most": self.most, "less than": self.below}
            text = " and ".join(f"{words} {limit:g}" for words, limit in limits.items() if math.isfinite(limit))
        return text + (f" {self.unit}" if self.unit else "") + (f", such as {self.example}" if self.example else "")


@dataclass(frozen=True)
class OneOf:
    """The values of an option that a `Literal` cannot list, because a table has them."""

    choices: tuple[str, ...]


@dataclass(frozen=True)
class Reader:
    """Reads and writes a word of the command line, where that differs from what a YAML file or Python gives."""

    read: Callable[[str], Any]
    write: Callable[[Any], str] = str


def _with_escapes(text: str) -> str:
    r"""Replaces `\n`, `\t` and `\\` by a line break, a tab and a backslash, for what is typed in a shell."""
    return re.sub(r"\\([nt\\])", lambda match: {"n": "\n", "t": "\t"}.get(match[1], "\\"), text)


def _escaped(text: str) -> str:
    """Returns the word that `_with_escapes` reads as a text."""
    return text.replace("\\", r"\\").replace("\n", r"\n").replace("\t", r"\t")


def read_mapping(text: str) -> Any:
    """Reads a JSON object, or the file of that name."""
    is_json = text.lstrip().startswith("{")
    try:
        return json.loads(text if is_json else Path(text).read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{text}: not JSON, and cannot be read ({os_reason(error)})") from error
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{'' if is_json else text + ': '}not JSON: {one_line(error)}") from error


Words: TypeAlias = list[str]
Paths: TypeAlias = list[Path]
Count: TypeAlias = Annotated[int, Limits(least=1)]
Natural: TypeAlias = Annotated[int, Limits(least=0)]
NonNegative: TypeAlias = Annotated[float, Limits(least=0)]
Positive: TypeAlias = Annotated[float, Limits(above=0)]
Share: TypeAlias = Annotated[float, Limits(least=0, most=1)]
Level: TypeAlias = Annotated[float, Limits(above=0, below=1, example="0.95")]
Seconds: TypeAlias = Annotated[float, Limits(above=0, most=_LONGEST_WAIT, unit="seconds")]
SecondsOrZero: TypeAlias = Annotated[float, Limits(least=0, most=_LONGEST_WAIT, unit="seconds")]
EscapedText: TypeAlias = Annotated[str, Reader(_with_escapes, _escaped)]


@dataclass(frozen=True)
class _Base:
    """A row of the table: what a type is called, how a word is read, and what Python and YAML may give."""

    name: str
    metavar: str
    read: Callable[[str], Any]
    accepted: tuple[type, ...]


_TABLE: dict[Any, _Base] = {
    str: _Base("text", "TEXT", str, (str,)),
    int: _Base("a whole number", "N", int, (int,)),
    float: _Base("a number", "X", float, (int, float, ExponentText)),
    bool: _Base("true or false", "", bool, (bool,)),
    Path: _Base("a path", "FILE", Path, (str, Path)),
    dict: _Base("a mapping", "KEY=VALUE", read_mapping, (dict,)),
}


@dataclass(frozen=True)
class OptionType:
    """What an option takes.

    Attributes:
        base: type of one value: `str`, `int`, `float`, `bool`, `Path` or `dict`.
        is_list: whether it takes several.
        is_unwrapped: whether a list with one value is stored as the value alone.
        is_optional: whether None is a value.
        choices: the allowed values; empty if there are others.
        limits: the allowed numbers.
        reader: reads a word of the command line; None for the way of `base`.
    """

    base: type
    is_list: bool = False
    is_unwrapped: bool = False
    is_optional: bool = False
    choices: tuple[str, ...] = ()
    limits: Limits | None = None
    reader: Reader | None = None

    @property
    def metavar(self) -> str:
        """The placeholder in `--help`, unless an option has its own."""
        return "{" + ",".join(self.choices) + "}" if self.choices else _TABLE[self.base].metavar

    def read(self, word: str) -> Any:
        """Reads one value from a word of the command line; the message of its ValueError continues "OPTION must be"."""
        try:
            value = self.reader.read(word) if self.reader else _TABLE[self.base].read(word)
        except ValueError as error:
            what = _TABLE[self.base].name if self.base in (int, float) else f"{_TABLE[self.base].name} ({error})"
            raise ValueError(f"{what}, not {word!r}") from error
        return self._check(value)

    def write(self, value: Any) -> str:
        """Writes one value of YAML or Python, which `convert` takes, as the word that `read` reads as that value.

        Raises ValueError if there is none; the message continues "OPTION must be".
        """
        if self.base is not dict:
            return self.reader.write(value) if self.reader else str(value)
        if isinstance(value, str):  # it is such a word
            return value
        try:
            word = json.dumps(with_numbers(value))
        except TypeError as error:
            raise ValueError(f"writable as JSON, not {value!r:.80}: {error}") from error
        if json.loads(word) != with_numbers(value):
            raise ValueError(f"a mapping of text, not {value!r:.80}")
        return word

    def convert(self, value: Any) -> Any:
        """Returns a value of YAML or Python as the option's field has it.

        Raises ValueError if it is of another type or beyond the limits; the message continues "OPTION must be".
        """
        if value is None and self.is_optional:
            return None
        if self.is_list:
            items = [self._check(item) for item in (value if isinstance(value, (list, tuple)) else [value])]
            return items[0] if self.is_unwrapped and len(items) == 1 else items
        return self._check(value)

    def _check(self, value: Any) -> Any:
        row = _TABLE[self.base]
        if not isinstance(value, row.accepted) or (isinstance(value, bool) and self.base is not bool):
            expected = f"one of {', '.join(self.choices)}" if self.choices else row.name
            is_unquoted = self.base is str and isinstance(value, (bool, int, float, date))  # as YAML reads them
            quote = f" ({_QUOTE})" if is_unquoted else ""
            raise ValueError(f"{expected}, not {value!r:.80}{quote}")
        if isinstance(value, ExponentText) and self.base is str:
            value = str(value)
        try:
            value = with_numbers(value) if self.base is dict else value if self.base is bool else self.base(value)
        except OverflowError:  # a whole number beyond the floats
            value = math.inf
        if self.base in (str, Path) and not is_utf8(str(value)):
            raise ValueError(f"UTF-8, not {value!r}: rename the file, folder or column, or set a UTF-8 locale")
        if self.choices and value not in self.choices:
            raise ValueError(f"one of {', '.join(self.choices)}, not {value!r}")
        if self.base is float and not math.isfinite(value):
            raise ValueError(f"{self.limits or 'a finite number'}, not {value}")
        if self.limits and not self.limits.allow(value):
            raise ValueError(f"{self.limits}, not {value!r}")
        return value


def with_numbers(value: Any) -> Any:
    """Returns a value of YAML with the numbers of YAML 1.2."""
    if isinstance(value, ExponentText):
        return float(value)
    if isinstance(value, dict):
        return {key: with_numbers(item) for key, item in value.items()}
    return [with_numbers(item) for item in value] if isinstance(value, list) else value


@functools.cache
def option_type(annotation: Any) -> OptionType:
    """Returns what an option with this annotation takes."""
    if get_origin(annotation) in (Union, types.UnionType):
        parts = [option_type(part) for part in get_args(annotation) if part is not type(None)]
        several = next((part for part in parts if part.is_list), parts[0])
        return replace(several, is_optional=type(None) in get_args(annotation), is_unwrapped=len(parts) > 1)
    if get_origin(annotation) is Annotated:
        base, *extras = get_args(annotation)
        limits = next((extra for extra in extras if isinstance(extra, Limits)), None)
        reader = next((extra for extra in extras if isinstance(extra, Reader)), None)
        choices = next((extra.choices for extra in extras if isinstance(extra, OneOf)), ())
        return replace(option_type(base), limits=limits, reader=reader, choices=choices)
    if get_origin(annotation) is list:
        return replace(option_type(get_args(annotation)[0]), is_list=True)
    if get_origin(annotation) is Literal:
        return OptionType(str, choices=get_args(annotation))
    return OptionType(get_origin(annotation) or annotation)
