"""Lists of runs: each run gets the options of its line, and errors name the line."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dist_eval.arguments.commandline import Command, build_parser, parse_args, read_yaml
from dist_eval.cluster.run_lists import Entry, read_grid, read_sweep
from dist_eval.errors import ConfigError
from dist_eval.options.config import EVALUATION, EvaluationConfig
from dist_eval.options.harness import HARNESS

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
        ("a --output=here\n", "line 1: leave out --output, which follows from the"),
        ("# only this\n", "contains no runs"),
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


GRID = """\
command: harness
num-fewshot: 5
apply_chat_template: true
grid:
  model:
    small: ./llama-3.2-1b
    quick: {model: ./llama-3.1-8b, limit: 200}
  tasks: [arc_easy, [mmlu, tasks/my own.yaml]]
  --seed: [0]
"""


def test_a_grid_is_a_run_for_each_combination(tmp_path: Path) -> None:
    path = tmp_path / "grid.yaml"
    path.write_text(GRID)
    grid = read_grid(path)
    assert (grid.command, grid.axes) == ("harness", ["model", "tasks", "seed"])
    second, third = grid.entries[1:3]
    shared = ["--num-fewshot=5", "--apply-chat-template"]
    tasks = ["--tasks", "mmlu", "tasks/my own.yaml"]
    assert second.name == "small-mmlu+my_own.yaml-seed=0"
    assert second.options == [*shared, "--model=./llama-3.2-1b", *tasks, "--seed=0"]
    assert second.values == {"model": "small", "tasks": "mmlu+my_own.yaml", "seed": "seed=0"}
    assert third.name == "quick-arc_easy-seed=0"
    assert third.options == [*shared, "--model=./llama-3.1-8b", "--limit=200", "--tasks=arc_easy", "--seed=0"]
    assert read_sweep(path) == list(grid.entries)


WORDS = st.text("-a1. =+'\\nt\n\t", max_size=8).filter(lambda word: word != "--")


@given(words=st.lists(WORDS, min_size=1, max_size=4), prompt=WORDS, number=st.floats(0, 5), is_on=st.booleans())
def test_values_are_those_of_a_yaml_file_of_options(
    words: list[str], prompt: str, number: float, is_on: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("grid")
    options = {"label-words": words, "stop": words, "prompt": prompt, "temperature": number, "strict": is_on}
    (folder / "options.yaml").write_text(json.dumps(options))
    (folder / "grid.yaml").write_text(json.dumps({"grid": {name: {"a": value} for name, value in options.items()}}))
    [entry] = read_grid(folder / "grid.yaml").entries
    found = vars(build_parser(EVALUATION).parse_args(shlex.split(shlex.join(entry.options))))
    assert {name: found[name] for name in found if found[name] is not None} == read_yaml(
        folder / "options.yaml", EvaluationConfig
    )


WRITTEN = """\
label-words: [1e5, 2e-5, "1"]
temperature: 1e-1
prompt: 'Find $\\theta$: {text}'
"""
OF_TASKS = """\
gen_kwargs: 'temperature=0.7'
samples: '{"a": [1, 2]}'
metadata: {name: {size: 1e-3}}
limit: null
"""


@pytest.mark.parametrize(("command", "lines"), [(EVALUATION, WRITTEN), (HARNESS, OF_TASKS)], ids=["run", "harness"])
def test_lines_of_a_yaml_file_mean_the_same_in_a_grid(command: Command[Any], lines: str, tmp_path: Path) -> None:
    pytest.importorskip("lm_eval")
    (tmp_path / "options.yaml").write_text(lines)
    name = "harness" if command is HARNESS else "run"
    (tmp_path / "grid.yaml").write_text(f"command: {name}\n{lines}grid: {{seed: [1]}}\n")
    [entry] = read_grid(tmp_path / "grid.yaml").entries
    found = vars(build_parser(command).parse_args(shlex.split(shlex.join(entry.options))))
    expected = read_yaml(tmp_path / "options.yaml", command.config)
    assert {name: found.get(name) for name in expected} == expected


def test_a_name_of_a_value_may_not_begin_with_a_dash_so_that_of_a_run_begins_with_its_option(tmp_path: Path) -> None:
    path = tmp_path / "grid.yaml"
    path.write_text("grid: {stop: [--end, a], seed: [0]}\n")
    assert [entry.name for entry in read_grid(path).entries] == ["stop=--end-seed=0", "a-seed=0"]


def test_a_value_that_command_lines_would_lose_is_refused() -> None:
    with pytest.raises(ConfigError, match="--prompt=--: the value -- is not possible on a command line"):
        parse_args(["--prompt=--"], EVALUATION)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("seed: 1\n", "has no `grid:`"),
        ("grid: [1]\n", "has no `grid:`"),
        ("grid: {seed: [0]}\ncommand: compare\n", "command must be one of run, harness, tune, not 'compare'"),
        ("grid: {seed: 0}\n", "seed must be a list of values, or a mapping of names to values, not 0"),
        ("grid: {seed: []}\n", "seed must be a list"),
        ("grid: {model: [a/x, b/x]}\n", "two values of model have the same name"),
        ("grid: {seed: {x-y: 1, x: 2}, in-flight: {z: 1, y-z: 2}}\n", "two runs are named x-y-z"),
        ("grid: {model: {../up: x}}\n", "'../up' cannot be the name of a run"),
        ("grid: {seed: [0]}\noutput: runs\n", "leave out output, which follows from the names"),
        ("grid: {seed: [0]}\nmodel: {small: x}\n", "model must be text, not {'small': 'x'}"),
        ("grid: [\n", "not valid YAML"),
        ("grid: {model: {a: x, a: y}}\n", "it has 'a' twice, in line 1"),
        ("grid: {model: {1: x, '1': y}}\n", "two values of model have the same name"),
        ("grid: {max-length: [1], max_length: [2]}\n", "grid: max-length is given twice"),
        ("grid: {seed: [0]}\nin-flight: 1\nin_flight: 2\n", "in-flight is given twice"),
        ("grid: {few: {few: {limit: 5}}, limit: [6, 7]}\n", "limit is given twice for the run few-limit=6"),
        ("grid: {seed: [0]}\nconfig: [a.yaml]\n", "config must be the path of a file, not ['a.yaml']"),
        ("grid: {seed: [0]}\n_output: runs\n", "leave out output, which follows from the names"),
        ("command: harness\ngrid: {seed: [0]}\nmetadata: {a: 2024-01-01}\n", "metadata must be writable as JSON"),
        ("command: harness\ngrid: {seed: [0]}\nmetadata: {1: 2}\n", "metadata must be a mapping of text, not {1: 2}"),
        ("grid: {text-column: [1.10]}\n", "text_column must be text, not 1.1 (put it in quotes"),
        ("grid: {seed: [0]}\nlabel-words: [no, yes]\n", "label_words must be text, not False (put it in quotes"),
    ],
)
def test_what_is_no_grid_is_told(content: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "grid.yaml"
    path.write_text(content)
    with pytest.raises(ConfigError) as raised:
        read_grid(path)
    assert str(path) in str(raised.value) and words in str(raised.value)
