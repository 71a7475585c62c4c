"""The table of types: one reading of a value and one message, from the command line, YAML and Python."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from dist_eval.arguments.commandline import Command, build_parser, parse_args, run_command
from dist_eval.arguments.fields import REQUIRED, Options, argument, flag, option, options_of
from dist_eval.arguments.types import Count, EscapedText, Level, Limits, NonNegative, OneOf, Seconds, Share
from dist_eval.cli.main import COMMANDS, command_of
from dist_eval.errors import ConfigError


@dataclass(kw_only=True)
class Sample(Options):
    """An option of each type."""

    text: str | None = option(None, "text")
    escaped: EscapedText = option("", "text with escapes")
    count: Count = option(1, "number", aliases=("number", "-c"))
    share: Share = option(0.5, "share")
    level: Level = option(0.95, "level")
    seconds: Seconds | None = option(None, "time")
    size: NonNegative = option(0.0, "size")
    port: Annotated[int, Limits(least=1, most=65535)] = option(1, "port")
    is_fast: bool = option(False, "fast")
    mode: Literal["slow", "fast"] = option("slow", "mode")
    from_table: Annotated[str, OneOf(("a", "b"))] = option("a", "from a table")
    modes: list[Literal["slow", "fast"]] = option([], "modes", repeats=True)
    data: str | list[str] | None = option(None, "data")
    names: list[str] = option([], "names")
    settings: dict[str, Any] = option({}, "settings")
    watch: Seconds | None = option(None, "again", alone=10.0)


SAMPLE = Command(program="sample", config=Sample, description="Samples.", is_run=True)


def read(words: list[str]) -> Sample:
    return parse_args(words, SAMPLE)


words = st.text(st.characters(blacklist_categories=["Cs", "Cc"]), min_size=1).filter(lambda word: word[0] != "-")
VALUES = st.fixed_dictionaries(
    {},
    optional={
        "text": words,
        "count": st.integers(1, 10**30),
        "share": st.floats(0, 1),
        "level": st.floats(0.01, 0.99),
        "seconds": st.floats(1e-6, 1e6),
        "size": st.floats(0, 1e300),
        "port": st.integers(1, 65535),
        "is_fast": st.booleans(),
        "mode": st.sampled_from(["slow", "fast"]),
        "from_table": st.sampled_from(["a", "b"]),
        "modes": st.lists(st.sampled_from(["slow", "fast"]), min_size=1),
        "data": words | st.lists(words, min_size=2),
        "names": st.lists(words, min_size=1),
    },
)


@given(values=VALUES)
def test_shell_yaml_and_python_read_a_value_alike(
    values: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = tmp_path_factory.mktemp("yaml") / "a.yaml"
    file.write_text(yaml.safe_dump(values, allow_unicode=True), encoding="utf-8")
    typed: list[str] = []
    for name, value in values.items():
        if isinstance(value, bool):
            typed.append(flag(name) if value else f"--no-{name.replace('_', '-')}")
        else:
            typed += [flag(name), *map(str, value if isinstance(value, list) else [value])]
    assert read(["--config", str(file)]) == read(typed) == Sample(**values)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("count", 0, "at least 1, not 0"),
        ("count", "many", "a whole number, not 'many'"),
        ("size", -1.0, "at least 0, not -1.0"),
        ("size", math.inf, "at least 0, not inf"),
        ("share", math.nan, "between 0 and 1, not nan"),
        ("share", 1.5, "between 0 and 1, not 1.5"),
        ("level", 95.0, "more than 0 and less than 1, such as 0.95, not 95.0"),
        ("seconds", 1e9, "more than 0 and at most 2.592e+06 seconds, not 1000000000.0"),
        ("seconds", 0.0, "more than 0 and at most 2.592e+06 seconds, not 0.0"),
        ("port", 65536, "between 1 and 65535, not 65536"),
        ("mode", "fats", "one of slow, fast, not 'fats'"),
        ("from_table", "c", "one of a, b, not 'c'"),
        ("modes", "fats", "one of slow, fast, not 'fats'"),
        ("text", "\udcff", "UTF-8, not '\\udcff'"),
    ],
)
def test_a_wrong_value_has_one_message(name: str, value: Any, expected: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as in_python:
        Sample(**{name: value})
    with pytest.raises(ConfigError) as in_shell:
        read([flag(name), str(value)])
    assert str(in_python.value).startswith(f"{flag(name)} must be {expected}")
    assert str(in_shell.value).startswith(f"{flag(name)} must be {expected}")
    (tmp_path / "a.yaml").write_text(yaml.safe_dump({name: value}))
    with pytest.raises(ConfigError, match=r"^--config .*a\.yaml: ") as in_yaml:
        read(["--config", str(tmp_path / "a.yaml")])
    assert f": {name} must be {expected}" in str(in_yaml.value)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("count", "4", "a whole number, not '4'"),
        ("count", True, "a whole number, not True"),
        ("count", 1.5, "a whole number, not 1.5"),
        ("count", None, "a whole number, not None"),
        ("size", "60", "a number, not '60'"),
        ("is_fast", 1, "true or false, not 1"),
        ("is_fast", "yes", "true or false, not 'yes'"),
        ("text", 7, "text, not 7 (put it in quotes"),
        ("text", False, "text, not False (put it in quotes"),
        ("text", date(2024, 1, 31), "text, not datetime.date(2024, 1, 31) (put it in quotes: YAML reads"),
        ("text", ["a"], "text, not ['a']"),
        ("mode", None, "one of slow, fast, not None"),
        ("names", [1], "text, not 1"),
        ("names", [False, True], "text, not False (put it in quotes: YAML reads"),
        ("names", {"a": "b"}, "text, not {'a': 'b'}"),
        ("settings", [1], "a mapping, not [1]"),
    ],
)
def test_a_value_of_another_type_is_refused(name: str, value: Any, expected: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as in_python:
        Sample(**{name: value})
    assert str(in_python.value).startswith(f"{flag(name)} must be {expected}")
    (tmp_path / "a.yaml").write_text(yaml.safe_dump({name: value}))
    with pytest.raises(ConfigError) as in_yaml:
        read(["--config", str(tmp_path / "a.yaml")])
    assert f": {name} must be {expected}" in str(in_yaml.value)


def test_values_follow_from_the_type() -> None:
    assert Sample(names="a", share=1) == Sample(names=["a"], share=1.0)
    assert Sample(data=["a"]).data == "a" and Sample(data=["a", "b"]).data == ["a", "b"]
    assert read(["--escaped", r"a\n\\t"]).escaped == "a\n\\t" and Sample(escaped=r"a\n").escaped == r"a\n"
    assert (read(["--watch"]).watch, read(["--watch", "3"]).watch) == (10.0, 3.0)
    assert read(["--settings", '{"a": 1, "b": 2}', '{"b": 3}']).settings == {"a": 1, "b": 3}
    assert read(["--settings", '{"a": 1}', "--settings", '{"b": 3}']).settings == {"a": 1, "b": 3}
    assert read(["-c", "2"]) == Sample(count=2)
    assert read(["--names=-a", "--names+=-b"]).names == ["-a", "-b"]
    assert read(["--modes", "slow", "--modes", "fast", "slow"]).modes == ["slow", "fast", "slow"]


def test_names_may_have_underscores_and_values_keep_theirs() -> None:
    assert read(["--is_fast", "--from_table=b", "--text", "is_fast"]) == Sample(
        is_fast=True, text="is_fast", from_table="b"
    )


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--count", "1", "--count=2"], "--count is given twice: give it once."),
        (["--number", "1", "--count", "1"], "--number and --count are the same option: give it once."),
        (["--names", "a", "--names", "b"], "--names is given twice: give it once, with all its values."),
        (["--config", "a", "--config", "b"], "--config is given twice: give it once."),
    ],
)
def test_a_value_that_would_replace_another_is_refused(given: list[str], said: str) -> None:
    parser = build_parser(SAMPLE)
    for _ in range(2):  # a parser may be used again
        assert parser.parse_args(given[:2])
        with pytest.raises(ConfigError) as caught:
            parser.parse_args(given)
        assert str(caught.value) == said


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["stray"], "unrecognized arguments: stray."),
        (["--is-fast=yes"], "--is-fast: ignored explicit argument 'yes'."),
        (["--text"], "--text: expected one argument."),
        (["--names"], "--names: expected at least one argument."),
        (["--is-fats=yes"], "There is no option --is-fats. Did you mean --is-fast?"),
    ],
)
def test_words_that_are_no_option_with_its_values_are_refused(given: list[str], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(given)
    assert str(caught.value) == said


def test_what_is_required_or_wrong_ends_a_program_with_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    @dataclass(kw_only=True)
    class Needed(Options):
        files: list[Path] = argument("files", "FILE")
        size: int = option(REQUIRED, "size")

    command = Command(program="sample", config=Needed, description="Samples.")
    assert run_command(command, lambda options: len(options.files) + options.size, ["a", "b", "--size", "3"]) == 5
    assert capsys.readouterr().err == ""
    for typed, said in (
        ([], "sample: the following arguments are required: FILE, --size.\n"),
        (["a", "--size", "1", "--sise", "2"], "sample: There is no option --sise. Did you mean --size?\n"),
    ):
        assert run_command(command, lambda options: 0, typed) == 2
        assert capsys.readouterr().err == said


@pytest.mark.parametrize("name", [name for name, program in COMMANDS.items() if program.command])
def test_defaults_are_values_of_their_types(name: str) -> None:
    for option_name, (field, kind) in options_of(command_of(COMMANDS[name]).config).items():
        default = field.default if field.default is not REQUIRED else field.default_factory()  # type: ignore[misc]
        assert dataclasses.is_dataclass(kind) and kind.convert(default) == default, option_name
