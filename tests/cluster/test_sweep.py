"""Lists of runs: each run gets the options of its line, and errors name the line."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dist_eval.cluster.sweep import Entry, read_sweep
from dist_eval.errors import ConfigError

LIST = """\
# name   options\f of a page, \u2028 and no line of `grep -c ''`
epoch-1  --checkpoint tuned/epoch-1

epoch-2  --checkpoint "tuned/epoch 2"  # the long one
base
"""


def test_lines_are_counted_as_a_person_counts_them(tmp_path: Path) -> None:
    path = tmp_path / "runs.txt"
    path.write_text(LIST, encoding="utf-8")
    assert read_sweep(path) == [
        None,
        Entry("epoch-1", ["--checkpoint", "tuned/epoch-1"]),
        None,
        Entry("epoch-2", ["--checkpoint", "tuned/epoch 2"]),
        Entry("base", []),
    ]


@given(options=st.lists(st.text(st.characters(exclude_categories=["C", "Z"])), max_size=5))
def test_options_arrive_as_a_shell_would_pass_them(
    options: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("lists") / "runs.txt"
    path.write_text(f"run --x {shlex.join(options)}\n", encoding="utf-8")
    assert read_sweep(path) == [Entry("run", ["--x", *options])]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("a --x\na --y\n", "lines 1 and 2: both runs are named a"),
        ("a\n../b\n", "line 2: '../b' cannot be the name of a run"),
        ("a\n--checkpoint x\n", "line 2: '--checkpoint' cannot be the name of a run"),
        ("a\nb --x 'y\n", "line 2: No closing quotation"),
        ("a --output=here\n", "line 1: --output follows from the name"),
        ("# only this\n", "names no run"),
    ],
)
def test_errors_name_the_line(content: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "runs.txt"
    path.write_text(content)
    with pytest.raises(ConfigError, match=f"{path}.*{words}"):
        read_sweep(path)


def test_a_missing_list_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nothing cannot be read: No such file"):
        read_sweep(tmp_path / "nothing")
