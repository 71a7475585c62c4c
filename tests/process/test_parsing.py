"""JSON and YAML are read, or refused in one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from dist_eval.process.parsing import ExponentText, parse_json, parse_yaml, read_json

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.text('[]{}"\\', max_size=9),
    lambda parts: st.lists(parts, max_size=4) | st.dictionaries(st.text(max_size=3), parts, max_size=4),
)


@given(value=VALUES, indent=st.sampled_from([None, 2]), ascii_only=st.booleans())
def test_json_is_read_as_it_was_written(value: Any, indent: int | None, ascii_only: bool) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    assert parse_json(text) == parse_json(text.encode(errors="surrogatepass")) == value


def test_json_that_is_nested_deeply_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("[" * 100_000 + "1" + "]" * 100_000)
    with pytest.raises(ValueError, match=r"^it is nested too deeply$"):
        read_json(tmp_path / "a.json")


@given(value=VALUES)
def test_yaml_is_read_as_pyyaml_reads_it(value: Any) -> None:
    text = yaml.safe_dump(value, allow_unicode=False)
    assert parse_yaml(text) == yaml.safe_load(text)


def test_aliases_are_fine() -> None:
    assert parse_yaml("a: &x {b: [1, 2]}\nc: *x\nd: {<<: *x, e: 3}\n")["d"] == {"b": [1, 2], "e": 3}
    assert parse_yaml("") is None


@pytest.mark.parametrize(
    "text", ["[" * 5000 + "]" * 5000, "- " * 5000 + "x", "a: [b", "a: \x0c", "!!python/name:os.system x"]
)
def test_yaml_that_cannot_be_read_is_an_error_in_one_line(text: str) -> None:
    with pytest.raises(ValueError) as error:
        parse_yaml(text)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("text", ["2e-5", "9e-1", "1.5E3", "+1.e5", "-.5e+2"])
def test_what_is_a_number_in_newer_yaml_only_is_marked(text: str) -> None:
    plain, quoted = parse_yaml(f"[{text}, '{text}']")
    assert (plain, type(plain)) == (text, ExponentText)
    assert (quoted, type(quoted)) == (text, str)


@pytest.mark.parametrize("text", ["1e", "e5", "1e5x", "0x1e5", "1-e5"])
def test_other_words_of_digits_are_not_marked(text: str) -> None:
    assert type(parse_yaml(text)) is not ExponentText


@pytest.mark.parametrize(
    "content", ["a: 1\nb: 2\na: 1", "x: [{a: 1, 'a': 2}]", "x: {1: a, 1: b}", "{a: &y {b: 1, b: 2}, c: *y}"]
)
def test_a_key_that_stands_twice_is_refused(content: str) -> None:
    with pytest.raises(ValueError, match=r"it has '(a|b|1)' twice, in lines? \d"):
        parse_yaml(content)


def test_a_key_may_override_a_merged_one() -> None:
    text = "a: &x {b: 1}\nc: &y {<<: *x, b: 2}\nd: {<<: *y, b: 3}\ne: *y\n"
    assert parse_yaml(text) == {"a": {"b": 1}, "c": {"b": 2}, "d": {"b": 3}, "e": {"b": 2}}
