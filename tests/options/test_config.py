"""Options: everything that can be checked without data or a swarm is checked on construction."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest
from samples import LOCAL, OTHER_PEER, PEER, REQUIRED

from dist_eval import demo
from dist_eval.arguments.fields import flag
from dist_eval.errors import ConfigError
from dist_eval.options.config import EvaluationConfig
from dist_eval.options.groups import MAX_TOKEN_BUDGET, DataOptions


def test_lists_are_not_shared_between_configurations() -> None:
    first, second = EvaluationConfig(**LOCAL), EvaluationConfig(**LOCAL)
    first.text_column.append("more")
    assert second.text_column == ["text"]


def test_a_token_budget_that_petals_would_split_is_refused() -> None:
    assert EvaluationConfig(**LOCAL, token_budget=MAX_TOKEN_BUDGET).token_budget == MAX_TOKEN_BUDGET
    with pytest.raises(ConfigError, match=r"--token-budget must be between 1 and 1024, not 1025"):
        EvaluationConfig(**LOCAL, token_budget=MAX_TOKEN_BUDGET + 1)


def test_a_local_run_has_no_servers_to_compare() -> None:
    with pytest.raises(ConfigError, match="--backend local uses no servers for --audit"):
        EvaluationConfig(**LOCAL, audit=0.1)


PROMPT: dict[str, Any] = {"dataset": "test.csv", "backend": "local", "model": "llama", "label_words": ["no", "yes"]}


def test_a_prompt_names_the_columns_and_may_be_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "prompt.txt").write_text("\ufeffIs {a} like {b}, or {c}? C:\\new\nAnswer:\n", "utf-8")
    config = EvaluationConfig(**PROMPT, prompt_file=str(tmp_path / "prompt.txt"))
    assert config.prompt == "Is {a} like {b}, or {c}? C:\\new\nAnswer:"
    assert config.text_column == config.select(DataOptions).text_column == ["a", "b", "c"]
    assert EvaluationConfig(**config.to_dict()) == config


UNPROMPTED = {"prompt": None, "label_words": [], "checkpoint": "tuned"}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"prompt": "{text}", "prompt_file": "prompt.txt"}, "--prompt and --prompt-file cannot be combined"),
        ({"prompt_file": "/nowhere/prompt.txt"}, "--prompt-file /nowhere/prompt.txt cannot be read: No such file"),
        ({"prompt": "{text}", "demo": True}, "--demo evaluates the embedded example, a tuned checkpoint: leave out"),
        ({"prompt": "{text}", "label_words": ["yes"]}, "--label-words names only 'yes'"),
        ({"prompt": "{text}", "few_shot": 3}, "--few-shot K and --few-shot-from FILE must be given together"),
        ({"prompt": "{text}", "checkpoint": "tuned"}, "--checkpoint and --prompt cannot be combined"),
        ({"prompt": "{text}", "label_words": []}, "--prompt and --label-words must be given together"),
        ({"prompt": "{text}{label}"}, "--prompt shows the model the labels: leave out the column 'label'."),
        (
            {"prompt": "{text}", "few_shot": 1, "few_shot_from": "test.csv"},
            "--few-shot-from test.csv is also the evaluated dataset: draw examples from other data.",
        ),
        ({**UNPROMPTED, "demo": True}, "leave out --model, or leave out --demo."),
        ({"prompt": "{text}", "model": None}, "--model is missing: the language model that --prompt is for"),
        ({"prompt": "{a} {b}", "text_column": ["c"]}, "--prompt names the columns of the texts itself"),
        ({**UNPROMPTED, "apply_chat_template": True}, "--apply-chat-template needs --prompt."),
        ({**UNPROMPTED, "system_instruction": "Be brief."}, "--system-instruction needs --prompt."),
    ],
)
def test_a_prompt_that_cannot_be_used_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)):
        EvaluationConfig(**{**PROMPT, **options})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"limit": 5, "sample": 5}, "--limit and --sample cannot be combined: give one of them."),
        ({"sample": 5, "precision": 0.1}, "--sample and --precision cannot be combined"),
        ({"stratify": True, "limit": 5}, "--stratify needs --sample or --precision."),
        ({"sample_seed": 1}, "--sample-seed needs --sample or --precision"),
        ({"length_normalization": "tokens"}, "--length-normalization needs --label-words."),
        ({"max_failed": 7}, "--max-failed needs --on-error skip."),
        ({"audit_tolerance": 0.1}, "--audit-tolerance needs --audit."),
        ({"servers": 3}, "--servers needs --swarm embedded or --demo."),
        ({"precision": 0.1, "group_column": "doc"}, "needs independent rows, so it contradicts --group-column"),
    ],
)
def test_a_selection_of_rows_that_cannot_be_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)):
        EvaluationConfig(**LOCAL, **options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"label_words": ["no", "yes"]}, "--generate and --label-words cannot be combined"),
        ({"prompt": None, "checkpoint": "tuned"}, "--generate needs a --prompt to continue"),
        ({"generate": False}, "Or give --prompt and --generate to have it write a text."),
        ({"generate": False, "label_words": ["no", "yes"], "stop": ["."]}, "--stop needs --generate"),
        ({"labels": "names"}, "--labels is for classes, but --generate writes texts"),
        ({"sample": 5, "stratify": True}, "--stratify is for classes, but --generate writes texts"),
        ({"answer_pattern": "("}, "--answer-pattern '(' is not a Python regular expression: missing )"),
        ({"generate": False, "label_words": ["no", "yes"], "answer_pattern": "."}, "--answer-pattern needs --generate"),
    ],
)
def test_texts_that_cannot_be_generated_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)):
        EvaluationConfig(**{**PROMPT, "label_words": [], "prompt": "{text}", "generate": True, **options})


@pytest.mark.parametrize("name", ["dataset", "checkpoint"])
def test_a_missing_option_is_named(name: str) -> None:
    options = {"dataset": "test.csv", "checkpoint": "tuned", "swarm": "embedded"}
    with pytest.raises(ConfigError, match=f"^{flag(name)} is missing"):
        EvaluationConfig(**{key: value for key, value in options.items() if key != name})
    with pytest.raises(ConfigError, match="--output is empty"):
        EvaluationConfig(**options, output="")


def test_without_a_checkpoint_a_model_is_evaluated_only_on_this_host() -> None:
    assert EvaluationConfig(model="bert", dataset="test.csv", backend="local").checkpoint is None
    with pytest.raises(ConfigError, match="--checkpoint is missing"):
        EvaluationConfig(model="llama", dataset="test.csv", swarm="embedded")
    with pytest.raises(ConfigError, match="--model or --checkpoint is missing"):
        EvaluationConfig(dataset="test.csv", backend="local")


def test_no_swarm_is_a_default() -> None:
    with pytest.raises(
        ConfigError, match=r"You did not name a swarm.*--initial-peers.*--swarm embedded.*--swarm public"
    ):
        EvaluationConfig(**REQUIRED)


@pytest.mark.parametrize("swarm", ["embedded", "public"])
def test_two_swarms_contradict_each_other(swarm: str) -> None:
    with pytest.raises(ConfigError, match=rf"--swarm {swarm} and --initial-peers"):
        EvaluationConfig(**REQUIRED, swarm=swarm, initial_peers=[PEER])


@pytest.mark.parametrize(
    "where", [{"swarm": "public"}, {"swarm": "embedded"}, {"initial_peers": [PEER]}, {"peers_file": "x"}]
)
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


def test_peers_can_stand_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "peers.txt"
    file.write_text(f"# the swarm\n{PEER}\n\n  {OTHER_PEER}\n")
    config = EvaluationConfig(**REQUIRED, peers_file=str(file))
    assert config.initial_peers == [PEER, OTHER_PEER]
    assert dataclasses.replace(config).initial_peers == [PEER, OTHER_PEER]
    assert EvaluationConfig(**REQUIRED, initial_peers=[OTHER_PEER], peers_file=str(file)).initial_peers == [
        OTHER_PEER,
        PEER,
    ]


@pytest.mark.parametrize(
    ("content", "words"),
    [(None, "cannot be read"), ("\n# nobody yet\n", "holds no address"), ("10.0.0.5:31337\n", "is not a peer address")],
)
def test_a_file_without_peers_is_one_clear_message(content: str | None, words: str, tmp_path: Path) -> None:
    file = tmp_path / "peers.txt"
    if content is not None:
        file.write_text(content)
    with pytest.raises(ConfigError, match=words):
        EvaluationConfig(**REQUIRED, peers_file=str(file))


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
    with pytest.raises(ConfigError, match=r"--text-column names 'a' twice"):
        EvaluationConfig(**LOCAL, text_column=["a", "a"])


def test_the_label_cannot_be_the_text() -> None:
    with pytest.raises(ConfigError, match=r"--label-column and --text-column both name 'b'"):
        EvaluationConfig(**LOCAL, text_column=["a", "b"], label_column="b")


@pytest.mark.parametrize(
    ("options", "folder"),
    [
        ({**LOCAL, "output": "here/there"}, "here/there"),
        ({**LOCAL, "dataset": "data/test.csv"}, "runs/test"),
        ({**LOCAL, "dataset": "glue"}, "runs/glue"),
        ({**LOCAL, "dataset": "data/"}, "runs/data"),
        ({**LOCAL, "dataset": "data/part-*.csv.gz"}, "runs/part"),
        ({**LOCAL, "dataset": "data/*.csv"}, "runs/data"),
        ({**LOCAL, "dataset": ["data/part-1.csv", "data/part-2.csv"]}, "runs/part"),
        ({**LOCAL, "dataset": ["data/part-1.csv"]}, "runs/part-1"),
        ({"demo": True}, "runs/demo"),
    ],
)
def test_the_output_folder_follows_from_the_options(options: dict[str, Any], folder: str) -> None:
    assert EvaluationConfig(**options).output_folder == Path(folder)


def test_the_demo_fills_in_what_it_evaluates() -> None:
    config = EvaluationConfig(demo=True)
    assert {name: getattr(config, name) for name in demo.OPTIONS} == demo.OPTIONS
    assert set(demo.OPTIONS) == {"model", "checkpoint", "dataset"}
    assert EvaluationConfig(demo=True, **demo.OPTIONS) == config


@pytest.mark.parametrize("name", demo.OPTIONS)
@pytest.mark.parametrize("value", ["mine", ""])
def test_the_demo_refuses_to_evaluate_anything_else(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=rf"^--demo .*leave out {flag(name)}, or leave out --demo\.$"):
        EvaluationConfig(demo=True, **{**demo.OPTIONS, name: value})


@pytest.mark.parametrize("where", [{"backend": "local"}, {"swarm": "embedded"}, {"initial_peers": [PEER]}])
def test_the_demo_runs_on_any_swarm_or_backend(where: dict[str, Any]) -> None:
    config = EvaluationConfig(demo=True, in_flight=2, labels="numbers", **where)
    assert {name: getattr(config, name) for name in where} == where
    assert (config.in_flight, config.labels, config.dataset) == (2, "numbers", demo.OPTIONS["dataset"])


def test_the_demo_replaces_results_only_in_its_own_folder() -> None:
    assert EvaluationConfig(demo=True).overwrite
    assert not EvaluationConfig(demo=True, output="mine").overwrite
    assert EvaluationConfig(demo=True, output="mine", overwrite=True).overwrite
    assert not EvaluationConfig(**LOCAL).overwrite


@pytest.mark.parametrize(
    "options",
    [{**REQUIRED, "initial_peers": [PEER], "max_length": 12}, {"demo": True}, {"demo": True, "output": "mine"}],
)
def test_all_options_can_be_written_as_json(options: dict[str, Any]) -> None:
    config = EvaluationConfig(**options)
    assert EvaluationConfig(**json.loads(json.dumps(config.to_dict()))) == config


def test_a_group_of_options_can_be_read_from_results() -> None:
    config = EvaluationConfig(**LOCAL, text_column=["a", "b"], split="test")
    recorded = config.recorded()
    assert DataOptions.recorded_in(recorded) == config.select(DataOptions)
    del recorded["labels"]  # as in the results of a version without this option
    assert DataOptions.recorded_in(recorded) == config.select(DataOptions)
