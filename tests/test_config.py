"""Options: the same ones from YAML, the command line and Python, checked before anything is done."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from dist_eval.config import MAX_TOKEN_BUDGET, EvaluationConfig, build_parser, flag, parse_args
from dist_eval.errors import ConfigError

PEER = "/ip4/10.0.0.5/tcp/31337/p2p/QmVQE44noRKH2ZZoC8HKSJEsyAvYqAMpmRVPkKsyXn7g3a"
OTHER_PEER = "/dns4/swarm.example.org/tcp/31337/p2p/QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N"
REQUIRED: dict[str, Any] = {"dataset": "test.csv", "checkpoint": "tuned"}
LOCAL: dict[str, Any] = {**REQUIRED, "backend": "local"}

words = st.from_regex(r"[a-zA-Zé0-9_./ ][-a-zA-Zé0-9_./ ]{0,11}", fullmatch=True)
seconds = st.floats(0.001, 1e6) | st.integers(1, 10**6).map(float)
anywhere = {
    "demo": st.booleans(),
    "model": words,
    "checkpoint": words,
    "dataset": words,
    "subset": words,
    "split": words,
    "text_column": st.lists(words.filter(lambda name: name != "the label"), min_size=1, max_size=2),
    "label_column": st.just("the label"),
    "max_length": st.integers(1, 10**9),
    "strict": st.booleans(),
    "servers": st.integers(1, 1000),
    "dht_prefix": words,
    "token_budget": st.integers(1, MAX_TOKEN_BUDGET),
    "in_flight": st.integers(1, 1000),
    "server_max_tokens": st.integers(1, 10**9),
    "swarm_timeout": seconds,
    "request_timeout": seconds,
    "max_retries": st.integers(1, 1000),
    "collective_timeout": seconds,
    "output": words,
    "overwrite": st.booleans(),
    "verbose": st.booleans(),
}
wheres = st.one_of(
    st.just({"backend": "local"}),
    st.fixed_dictionaries({"swarm": st.sampled_from(["embedded", "public"])}, optional={"backend": st.just("petals")}),
    st.fixed_dictionaries({"initial_peers": st.lists(st.sampled_from([PEER, OTHER_PEER]), min_size=1, max_size=3)}),
)
valid_options = st.builds(
    lambda required, optional, where: {**optional, **required, **where},
    st.fixed_dictionaries({"dataset": words, "checkpoint": words}),
    st.fixed_dictionaries({}, optional=anywhere),
    wheres,
)


def command_line(options: dict[str, Any]) -> list[str]:
    arguments: list[str] = []
    for name, value in options.items():
        if value is True:
            arguments.append(flag(name))
        elif isinstance(value, list):
            arguments += [flag(name), *value]
        elif value is not False:
            arguments += [flag(name), str(value)]
    return arguments


def yaml_file(folder: Path, content: str | dict[str, Any]) -> str:
    path = folder / "run.yaml"
    text = content if isinstance(content, str) else yaml.safe_dump(content, allow_unicode=True)
    path.write_text(text, encoding="utf-8")
    return str(path)


@settings(max_examples=60, deadline=None)
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


def test_the_options_tried_above_are_all_options_there_are() -> None:
    fields = {field.name for field in dataclasses.fields(EvaluationConfig)}
    assert fields == {*anywhere, "backend", "swarm", "initial_peers"}


@pytest.mark.parametrize(
    ("name", "in_file", "typed"),
    [
        ("model", "a", "b"),
        ("text_column", ["a", "b"], ["c"]),
        ("max_length", 7, 8),
        ("in_flight", 2, 3),
        ("swarm_timeout", 1.5, 2.5),
        ("output", "here", "there"),
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


def test_options_in_the_file_may_be_written_as_on_the_command_line(tmp_path: Path) -> None:
    path = yaml_file(tmp_path, "--dataset: d.csv\ncheckpoint: c\n--backend: local\n--in-flight: 3\ntext_column: body\n")
    config = parse_args(["--config", path])
    assert (config.dataset, config.in_flight, config.text_column) == ("d.csv", 3, ["body"])


def test_null_in_the_file_means_not_given(tmp_path: Path) -> None:
    assert parse_args(["--config", yaml_file(tmp_path, {**LOCAL, "max_length": None})]).max_length is None


def test_an_empty_file_asks_for_nothing_beyond_the_command_line(tmp_path: Path) -> None:
    path = yaml_file(tmp_path, "# nothing yet\n")
    assert parse_args(["--config", path, *command_line(LOCAL)]) == EvaluationConfig(**LOCAL)


def test_lists_are_not_shared_between_configurations() -> None:
    first, second = EvaluationConfig(**LOCAL), EvaluationConfig(**LOCAL)
    first.text_column.append("more")
    assert second.text_column == ["text"]


@pytest.mark.parametrize("name", ["servers", "in_flight", "max_retries", "token_budget", "max_length"])
@pytest.mark.parametrize("value", [0, -1])
def test_a_number_below_its_range_is_named_with_its_limit(name: str, value: int) -> None:
    with pytest.raises(ConfigError, match=rf"^{flag(name)} must be .*1.*, not {value}\.$"):
        EvaluationConfig(**LOCAL, **{name: value})


def test_the_token_limit_of_servers_must_be_positive() -> None:
    with pytest.raises(ConfigError, match=r"^--server-max-tokens must be at least 1, not 0"):
        EvaluationConfig(**LOCAL, server_max_tokens=0)


def test_a_token_budget_that_petals_would_split_is_refused() -> None:
    assert EvaluationConfig(**LOCAL, token_budget=MAX_TOKEN_BUDGET).token_budget == MAX_TOKEN_BUDGET
    with pytest.raises(ConfigError, match=r"--token-budget must be between 1 and 1024, not 1025"):
        EvaluationConfig(**LOCAL, token_budget=MAX_TOKEN_BUDGET + 1)


@pytest.mark.parametrize("name", ["swarm_timeout", "request_timeout", "collective_timeout"])
@pytest.mark.parametrize("value", ["0", "-3", "nan", "inf"])
def test_a_time_that_nobody_can_wait_is_refused(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=flag(name)):
        parse_args([*command_line(LOCAL), f"{flag(name)}={value}"])


TYPOS = [
    ("swarm", {**REQUIRED, "swarm": "embeded"}),
    ("backend", {**REQUIRED, "initial_peers": [PEER], "backend": "petal"}),
]


@pytest.mark.parametrize(("name", "options"), TYPOS)
def test_an_unknown_choice_on_the_command_line_is_refused(name: str, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"{flag(name)}.*{options[name]}"):
        parse_args(command_line(options))


@pytest.mark.parametrize(("name", "options"), TYPOS)
def test_an_unknown_choice_in_the_file_is_refused(tmp_path: Path, name: str, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=rf"run\.yaml: {name} should be one of .*, not '{options[name]}'"):
        parse_args(["--config", yaml_file(tmp_path, options)])


@pytest.mark.parametrize(("name", "options"), TYPOS)
def test_an_unknown_choice_from_python_is_refused(name: str, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"{flag(name)}.*{options[name]}"):
        EvaluationConfig(**options)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("--datset", "--dataset"), ("--text_column", "--text-column"), ("--initial-peer", "--initial-peers")],
)
@pytest.mark.parametrize("form", ["{}=x", "{} x"])
def test_an_unknown_option_suggests_a_close_one(typed: str, meant: str, form: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_args([*command_line(LOCAL), *form.format(typed).split()])
    assert str(caught.value) == f"There is no option {typed}. Did you mean {meant}?"


def test_an_unknown_option_like_no_other_points_to_help() -> None:
    with pytest.raises(ConfigError, match=r"There is no option --xyzzy\. --help"):
        parse_args([*command_line(LOCAL), "--xyzzy"])


def test_an_unknown_option_in_the_file_suggests_a_close_one(tmp_path: Path) -> None:
    path = yaml_file(tmp_path, {**LOCAL, "max-lenght": 5})
    with pytest.raises(ConfigError, match=r"run\.yaml: there is no option 'max-lenght'\. Did you mean --max-length\?"):
        parse_args(["--config", path])


def test_options_cannot_be_abbreviated() -> None:
    with pytest.raises(ConfigError, match=r"There is no option --over\b"):
        parse_args([*command_line(LOCAL), "--over"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--in-flight", "many"], ["--in-flight", "many"]),
        (["--swarm-timeout", "soon"], ["--swarm-timeout", "soon"]),
        (["--model"], ["--model"]),
        (["--text-column"], ["--text-column"]),
        (["stray"], ["stray"]),
    ],
)
def test_a_value_of_the_wrong_type_is_named(arguments: list[str], words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_args([*command_line(LOCAL), *arguments])
    assert all(word in str(caught.value) for word in words)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("in_flight", "4"),
        ("in_flight", True),
        ("in_flight", 1.5),
        ("in_flight", None),
        ("swarm_timeout", "60"),
        ("strict", 1),
        ("strict", "yes"),
        ("model", 7),
        ("label_column", ["a"]),
        ("text_column", [1]),
        ("initial_peers", {"a": "b"}),
    ],
)
def test_a_value_of_the_wrong_type_in_the_file_names_file_and_option(tmp_path: Path, name: str, value: Any) -> None:
    path = yaml_file(tmp_path, {**LOCAL, name: value})
    with pytest.raises(ConfigError, match=rf"run\.yaml: {name} should be of type"):
        parse_args(["--config", path])


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("- dataset\n- checkpoint\n", "option: value"),
        ("just words", "option: value"),
        ("dataset: [a", "no valid YAML"),
        ("dataset: !!python/object/apply:os.getcwd []", "no valid YAML"),
    ],
)
def test_a_file_that_is_no_mapping_is_refused(tmp_path: Path, content: str, words: str) -> None:
    with pytest.raises(ConfigError, match=rf"--config .*run\.yaml.*{words}"):
        parse_args(["--config", yaml_file(tmp_path, content)])


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--config .*nowhere\.yaml: cannot be read \(No such file"):
        parse_args(["--config", str(tmp_path / "nowhere.yaml")])


def test_a_file_that_is_not_utf8_is_named(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_bytes("dataset: café".encode("latin-1"))
    with pytest.raises(ConfigError, match=r"--config .*run\.yaml: cannot be read.*utf-8"):
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


@pytest.mark.parametrize("name", ["dataset", "checkpoint"])
def test_a_missing_option_is_named(name: str) -> None:
    with pytest.raises(ConfigError, match=f"^{flag(name)} is missing"):
        EvaluationConfig(**{key: value for key, value in LOCAL.items() if key != name})


def test_no_swarm_is_a_default() -> None:
    with pytest.raises(ConfigError, match=r"No swarm was named.*--initial-peers.*--swarm embedded.*--swarm public"):
        EvaluationConfig(**REQUIRED)


@pytest.mark.parametrize("swarm", ["embedded", "public"])
def test_two_swarms_contradict_each_other(swarm: str) -> None:
    with pytest.raises(ConfigError, match=rf"--swarm {swarm} and --initial-peers"):
        EvaluationConfig(**REQUIRED, swarm=swarm, initial_peers=[PEER])


@pytest.mark.parametrize("where", [{"swarm": "public"}, {"swarm": "embedded"}, {"initial_peers": [PEER]}])
def test_a_local_run_takes_no_swarm(where: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"--backend local .*--initial-peers.*--swarm"):
        EvaluationConfig(**LOCAL, **where)


@pytest.mark.parametrize(
    "address",
    [
        PEER,
        OTHER_PEER,
        PEER.replace("/ip4/10.0.0.5", "/ip6/::1"),
        PEER.replace("/tcp/31337", "/udp/31337/quic"),
        PEER.replace("/tcp/31337", "").replace("/ip4/10.0.0.5", "/dnsaddr/bootstrap.example.org"),
    ],
)
def test_peer_addresses_of_all_kinds_are_accepted(address: str) -> None:
    assert EvaluationConfig(**REQUIRED, initial_peers=[address]).initial_peers == [address]


@pytest.mark.parametrize(
    "address", ["10.0.0.5:31337", "/ip4/10.0.0.5/tcp/31337", "/ip4/10.0.0.5/tcp/31337/p2p/short", "", PEER + "\n"]
)
def test_what_is_no_peer_address_is_quoted(address: str) -> None:
    with pytest.raises(ConfigError) as caught:
        EvaluationConfig(**REQUIRED, initial_peers=[PEER, address])
    assert repr(address) in str(caught.value)
    assert "--initial-peers" in str(caught.value)


@pytest.mark.parametrize("columns", [[], ["a", "b", "c"]])
def test_texts_are_one_column_or_two(columns: list[str]) -> None:
    with pytest.raises(ConfigError, match=rf"--text-column takes one column, or two for a pair, not {len(columns)}"):
        EvaluationConfig(**LOCAL, text_column=columns)


def test_the_label_cannot_be_the_text() -> None:
    with pytest.raises(ConfigError, match=r"--label-column and --text-column both name 'b'"):
        EvaluationConfig(**LOCAL, text_column=["a", "b"], label_column="b")


@pytest.mark.parametrize(
    ("options", "folder"),
    [
        ({**LOCAL, "output": "here/there"}, "here/there"),
        ({**LOCAL, "dataset": "data/test.csv"}, "runs/test"),
        ({**LOCAL, "dataset": "glue"}, "runs/glue"),
        ({"demo": True}, "runs/demo"),
    ],
)
def test_the_output_folder_follows_from_the_options(options: dict[str, Any], folder: str) -> None:
    assert EvaluationConfig(**options).output_folder == Path(folder)


def test_all_options_can_be_written_as_json() -> None:
    config = EvaluationConfig(**REQUIRED, initial_peers=[PEER], max_length=12)
    assert EvaluationConfig(**json.loads(json.dumps(config.to_dict()))) == config


def test_help_shows_every_option_with_its_default() -> None:
    text = " ".join(build_parser().format_help().split())
    for field in dataclasses.fields(EvaluationConfig):
        assert flag(field.name) in text
        assert field.metadata["help"] in text
    assert "(default: 1024)" in text
    assert "(default: 60)" in text
    assert "--config FILE.yaml" in text
