"""The command line and the YAML file: the same options as from Python, the command line winning over the file."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from samples import LOCAL, OTHER_PEER, PEER

from dist_eval import demo
from dist_eval.arguments import commandline
from dist_eval.arguments.commandline import build_parser
from dist_eval.arguments.fields import flag
from dist_eval.errors import ConfigError
from dist_eval.options.config import EVALUATION, EvaluationConfig
from dist_eval.options.groups import MAX_TOKEN_BUDGET
from dist_eval.tracking import TRACKERS

FLAGS = ["demo", "strict", "overwrite", "verbose"]

parse_args = functools.partial(commandline.parse_args, command=EVALUATION)
read_yaml = functools.partial(commandline.read_yaml, config=EvaluationConfig)

words = st.from_regex(r"[a-zA-Zé0-9_./ ][-a-zA-Zé0-9_./ ]{0,11}", fullmatch=True)
seconds = st.floats(0.001, 1e6) | st.integers(1, 10**6).map(float)
anywhere = {
    "subset": words,
    "split": words,
    "text_column": st.lists(words.filter(lambda name: name != "the label"), min_size=1, max_size=2, unique=True),
    "label_column": st.just("the label"),
    "labels": st.sampled_from(["auto", "names", "numbers", "vectors"]),
    "metric": st.lists(words, min_size=1, max_size=3),
    "slice_by": st.lists(words, min_size=1, max_size=3),
    "group_column": words,
    "max_length": st.integers(1, 10**9),
    "strict": st.booleans(),
    "dht_prefix": words,
    "token_budget": st.integers(1, MAX_TOKEN_BUDGET),
    "in_flight": st.integers(1, 1000),
    "adapter": st.sampled_from(["org/lora", "/adapters/my lora"]),
    "compression": st.sampled_from(["none", "float16"]),
    "stop_grace": st.floats(0, 1000),
    "confidence": st.floats(0.01, 0.99),
    "server_max_tokens": st.integers(1, 10**9),
    "swarm_timeout": seconds,
    "request_timeout": seconds,
    "max_tokens_per_second": st.floats(1, 1e9),
    "session_share": st.floats(0, 1),
    "max_retries": st.integers(0, 1000),
    "collective_timeout": seconds,
    "verbose": st.booleans(),
}
outputs = {
    "output": words,
    "overwrite": st.booleans(),
    "report": st.sampled_from(["numbers", "texts", "none"]),
    "tracker": st.lists(st.sampled_from(TRACKERS), min_size=1, max_size=2),
}
audits = {"audit": st.floats(0.001, 1), "audit_tolerance": st.floats(0, 10)}
skips = {"on_error": st.just("skip"), "max_failed": st.integers(0, 1000)}
wheres = st.one_of(
    st.just({"backend": "local", "compression": None, "max_tokens_per_second": None, "dht_prefix": None}),
    st.builds(
        lambda where, audit: {**where, **audit},
        st.fixed_dictionaries(
            {"swarm": st.sampled_from(["embedded", "public"])},
            optional={"backend": st.just("petals"), "servers": st.integers(1, 9)},
        )
        | st.fixed_dictionaries(
            {"initial_peers": st.lists(st.sampled_from([PEER, OTHER_PEER]), min_size=1, max_size=3)}
        ),
        st.just({}) | st.fixed_dictionaries(audits) | st.fixed_dictionaries(skips),
    ),
)
drawn = {"sample_seed": st.integers(0, 2**64), "stratify": st.booleans()}
parts = st.one_of(
    st.just({}),
    st.fixed_dictionaries({"limit": st.integers(1, 10**9)}),
    st.fixed_dictionaries({"sample": st.integers(1, 10**9)}, optional=drawn),
    st.fixed_dictionaries({"precision": st.floats(1e-6, 0.49), "group_column": st.none()}, optional=drawn),
)


def merged(*parts: dict[str, Any]) -> dict[str, Any]:
    """Later parts replace options of earlier ones, or drop them by None."""
    options: dict[str, Any] = {}
    for part in parts:
        options |= part
    return {name: value for name, value in options.items() if value is not None}


ordinary_runs = st.builds(
    merged,
    st.fixed_dictionaries(
        {"dataset": words, "checkpoint": words},
        optional={"demo": st.just(False), "model": words, **outputs, **anywhere},
    ),
    wheres,
    parts,
)
prompts = {
    "prompt": st.sampled_from(["{text}", "Review: {text}\nof {title}:"]),
    "label_words": st.lists(words, min_size=2, max_size=4),
    "label_delimiter": words,
    "length_normalization": st.sampled_from(["none", "tokens", "bytes"]),
    "few_shot": st.integers(1, 100),
    "few_shot_from": st.just("train.csv"),
    "few_shot_seed": st.integers(0, 1000),
    "apply_chat_template": st.booleans(),
    "system_instruction": words,
}
prompted_runs = st.builds(
    merged,
    st.fixed_dictionaries(
        {"dataset": st.just("test.csv"), "model": words, **prompts},
        optional={**outputs, **{name: value for name, value in anywhere.items() if name != "text_column"}},
    ),
    wheres,
)
generation = {
    "generate": st.just(True),
    "max_new_tokens": st.integers(1, 1000),
    "stop": st.lists(words, min_size=1, max_size=2),
    "temperature": st.floats(0.001, 10),
    "top_k": st.integers(0, 1000),
    "top_p": st.floats(0.01, 1),
    "seed": st.integers(0, 1000),
    "answer_pattern": st.sampled_from([r"\d+", "answer is (.*)"]),
}
generating_runs = st.builds(
    lambda what, where: {**what, **where},
    st.fixed_dictionaries(
        {"dataset": st.just("test.csv"), "model": words, "prompt": prompts["prompt"], **generation},
        optional={name: anywhere[name] for name in ("label_column", "max_length", "strict", "confidence")},
    ),
    st.sampled_from([{"backend": "local"}, {"swarm": "embedded"}, {"initial_peers": [PEER]}]),
)
demo_runs = st.builds(
    merged,
    st.fixed_dictionaries(
        {"demo": st.just(True)}, optional={**{name: st.just(value) for name, value in demo.OPTIONS.items()}, **anywhere}
    ),
    st.just({}) | st.fixed_dictionaries({"output": words, "overwrite": st.booleans()}),
    st.just({}) | wheres,
)
valid_options = ordinary_runs | prompted_runs | generating_runs | demo_runs


def command_line(options: dict[str, Any]) -> list[str]:
    arguments: list[str] = []
    for name, value in options.items():
        if isinstance(value, bool):
            arguments.append(flag(name) if value else "--no-" + flag(name)[2:])
        elif isinstance(value, list):
            arguments += [flag(name), *value]
        else:
            arguments += [flag(name), str(value)]
    return arguments


def yaml_file(folder: Path, content: str | dict[str, Any]) -> str:
    path = folder / "run.yaml"
    text = content if isinstance(content, str) else yaml.safe_dump(content, allow_unicode=True)
    path.write_text(text, encoding="utf-8")
    return str(path)


@settings(max_examples=40)
@given(options=valid_options)
def test_yaml_command_line_and_python_give_equal_configurations(
    options: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    dashed = {name.replace("_", "-"): value for name, value in options.items()}
    path = yaml_file(tmp_path_factory.mktemp("yaml"), dashed)

    from_yaml, from_shell = parse_args(["--config", path]), parse_args(command_line(options))

    assert from_yaml == from_shell == EvaluationConfig(**options)
    for name, value in options.items():
        assert getattr(from_shell, name) == value


def test_line_breaks_and_tabs_can_be_typed() -> None:
    options = ["--dataset", "a.csv", "--model", "m", "--backend", "local", "--label-words", "no", "yes"]
    config = parse_args([*options, "--prompt", r"C:\\new {text}\n\tIs it?", "--label-delimiter", r"\n"])
    assert (config.prompt, config.label_delimiter) == ("C:\\new {text}\n\tIs it?", "\n")


def test_an_option_has_the_name_that_another_command_gives_it(tmp_path: Path) -> None:
    options = ["--dataset", "a.csv", "--model", "m", "--backend", "local", "--label-words", "no", "yes"]
    options += ["--prompt", "{text}", "--few-shot-from", "b.csv"]
    for name in ("--few-shot", "--num-fewshot", "--num_fewshot"):
        assert parse_args([*options, name, "3"]).few_shot == 3
    for value in ("_v", "__demo", "_-demo"):
        assert parse_args([*options, "--few-shot", "3", "--label-column", value]).label_column == value
    assert parse_args([*options, "--config", yaml_file(tmp_path, {"num_fewshot": 3})]).few_shot == 3


def test_the_options_tried_above_are_all_options_there_are() -> None:
    fields = {field.name for field in dataclasses.fields(EvaluationConfig)}
    where = {"backend", "swarm", "servers", "initial_peers"}
    assert fields - {"peers_file", "prompt_file", "revision", "dataset_revision"} == {
        *(*anywhere, *outputs, *audits, *skips, *prompts, *generation, *demo.OPTIONS, "demo", *where),
        *("limit", "sample", "precision", *drawn),
    }


@pytest.mark.parametrize(
    ("name", "in_file", "typed"),
    [
        ("model", "a", "b"),
        ("text_column", ["a", "b"], ["c"]),
        ("labels", "names", "numbers"),
        ("max_length", 7, 8),
        ("in_flight", 2, 3),
        ("swarm_timeout", 1.5, 2.5),
        ("output", "here", "there"),
        ("strict", True, False),
        ("strict", False, True),
        ("overwrite", True, False),
        ("verbose", True, False),
    ],
)
def test_the_command_line_wins_over_the_file(tmp_path: Path, name: str, in_file: Any, typed: Any) -> None:
    path = yaml_file(tmp_path, {**LOCAL, name: in_file})
    config = parse_args(["--config", path, *command_line({name: typed})])
    assert getattr(config, name) == typed
    assert getattr(parse_args(["--config", path]), name) == in_file


def test_the_command_line_wins_also_when_it_gives_the_default(tmp_path: Path) -> None:
    path = yaml_file(tmp_path, {**LOCAL, "in_flight": 9})
    assert parse_args(["--config", path, "--in-flight", "4"]).in_flight == 4


def test_the_command_line_can_take_the_demo_back(tmp_path: Path) -> None:
    path = yaml_file(tmp_path, {"demo": True})
    assert parse_args(["--config", path, "--no-demo", *command_line(LOCAL)]) == EvaluationConfig(**LOCAL)


@pytest.mark.parametrize("name", FLAGS)
def test_of_a_switch_and_its_opposite_the_last_one_counts(name: str) -> None:
    on, off = flag(name), "--no-" + flag(name)[2:]
    options = command_line({**LOCAL, "output": "here"} if name != "demo" else {"backend": "local"})
    assert getattr(parse_args([*options, off, on]), name) is True
    if name != "demo":
        assert getattr(parse_args([*options, on, off]), name) is False


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("limit: 5\nlimit: 6\n", "it has 'limit' twice, in lines 1 and 2"),
        ("max-length: 5\nmax_length: 6\n", "'max-length' and 'max_length' are the same option: give it once"),
        ("few-shot: 5\nnum_fewshot: 6\n", "'few-shot' and 'num_fewshot' are the same option: give it once"),
    ],
)
def test_an_option_that_the_file_gives_twice_is_refused(content: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=rf"run\.yaml.*{words}"):
        parse_args(["--config", yaml_file(tmp_path, content), *command_line(LOCAL)])


@pytest.mark.parametrize("text", ["9e-1", "9E-1", "+9.e-1", ".9e0", "0.9"])
def test_numbers_of_newer_yaml_are_numbers(text: str, tmp_path: Path) -> None:
    path = yaml_file(tmp_path, f"confidence: {text}\nsplit: 12e5\noutput: {text}x\n")
    assert read_yaml(Path(path)) == {"confidence": 0.9, "split": "12e5", "output": f"{text}x"}


@pytest.mark.parametrize("name", ["--no-in-flight", "--no-dataset", "--no-config"])
def test_only_switches_have_an_opposite(name: str) -> None:
    with pytest.raises(ConfigError, match=f"There is no option {name}"):
        parse_args([*command_line(LOCAL), name])


def test_options_in_the_file_may_be_written_as_on_the_command_line(tmp_path: Path) -> None:
    path = yaml_file(tmp_path, "--dataset: d.csv\ncheckpoint: c\n--backend: local\n--in-flight: 3\ntext_column: body\n")
    config = parse_args(["--config", path])
    assert (config.dataset, config.in_flight, config.text_column) == ("d.csv", 3, ["body"])


def test_the_file_is_read_into_values_by_field_name(tmp_path: Path) -> None:
    path = yaml_file(tmp_path, "text-column: body\nswarm-timeout: 5\nmodel: null\nstrict: no\n")
    assert read_yaml(Path(path)) == {"text_column": ["body"], "swarm_timeout": 5.0, "model": None, "strict": False}


def test_null_in_the_file_means_not_given(tmp_path: Path) -> None:
    assert parse_args(["--config", yaml_file(tmp_path, {**LOCAL, "max_length": None})]).max_length is None


def test_an_empty_file_asks_for_nothing_beyond_the_command_line(tmp_path: Path) -> None:
    path = yaml_file(tmp_path, "# nothing yet\n")
    assert parse_args(["--config", path, *command_line(LOCAL)]) == EvaluationConfig(**LOCAL)


def test_an_unknown_option_like_no_other_points_to_help() -> None:
    with pytest.raises(ConfigError, match=r"There is no option --xyzzy\. --help"):
        parse_args([*command_line(LOCAL), "--xyzzy"])


def test_an_unknown_option_in_the_file_suggests_a_close_one(tmp_path: Path) -> None:
    path = yaml_file(tmp_path, {**LOCAL, "max-lenght": 5})
    with pytest.raises(ConfigError, match=r"run\.yaml: there is no option 'max-lenght'\. Did you mean max-length\?"):
        parse_args(["--config", path])


def test_options_cannot_be_abbreviated() -> None:
    with pytest.raises(ConfigError, match=r"There is no option --over\b"):
        parse_args([*command_line(LOCAL), "--over"])


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("- dataset\n- checkpoint\n", "option: value"),
        ("just words", "option: value"),
        ("dataset: [a", "not valid YAML"),
        ('dataset: "a\\udce9"', "dataset must be UTF-8"),
        ("model: " + "[" * 5000, "it is nested too deeply"),
        ("dataset: !!python/object/apply:os.getcwd []", "not valid YAML"),
    ],
)
def test_a_file_that_is_no_mapping_is_refused(tmp_path: Path, content: str, words: str) -> None:
    with pytest.raises(ConfigError, match=rf"--config .*run\.yaml.*{words}"):
        parse_args(["--config", yaml_file(tmp_path, content)])


@pytest.mark.parametrize("value", ["2024-13-45", "2024-02-30", "0b_"])
def test_a_value_that_yaml_itself_cannot_convert_is_refused(tmp_path: Path, value: str) -> None:
    with pytest.raises(ConfigError, match=r"--config .*run\.yaml"):
        parse_args(["--config", yaml_file(tmp_path, f"output: {value}\n"), *command_line(LOCAL)])


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--config .*nowhere\.yaml cannot be read: No such file"):
        parse_args(["--config", str(tmp_path / "nowhere.yaml")])


def test_a_file_that_is_not_utf8_is_named(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_bytes("dataset: café".encode("latin-1"))
    with pytest.raises(ConfigError, match=r"--config .*run\.yaml cannot be read: .*utf-8"):
        parse_args(["--config", str(tmp_path / "run.yaml")])


def test_without_options_three_lines_say_what_is_needed() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_args([])
    lines = str(caught.value).splitlines()
    assert len(lines) == 3
    assert all(name in lines[1] for name in ("--model", "--checkpoint", "--dataset", "--initial-peers"))
    assert "--demo" in lines[2]


def test_the_demo_needs_no_other_option() -> None:
    assert parse_args(["--demo"]) == EvaluationConfig(demo=True)


def test_help_shows_every_option_with_its_default() -> None:
    text = " ".join(build_parser(EVALUATION).format_help().split())
    for field in dataclasses.fields(EvaluationConfig):
        assert flag(field.name) in text
        assert field.metadata["help"] in text
    for default in ("auto", "1024", "60", "120"):
        assert f"(default: {default})" in text
    assert "--labels {auto,names,numbers,vectors}" in text and "--label-words WORD... " in text
    assert "--config FILE.yaml" in text


def test_help_keeps_the_opposites_of_switches_to_itself() -> None:
    assert "--no-" not in build_parser(EVALUATION).format_help()
