"""The options of `dist-eval harness`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dist_eval.arguments.commandline import parse_args
from dist_eval.arguments.fields import flag
from dist_eval.errors import ConfigError
from dist_eval.options.harness import HARNESS, HarnessConfig

LOCAL: dict[str, Any] = {"model": "base", "backend": "local"}


def test_tasks_are_separated_by_commas_or_spaces() -> None:
    config = parse_args(["--tasks", "a,b", "my/c.yaml", "--model", "base", "--backend", "local"], HARNESS)
    assert config.tasks == ["a", "b", "my/c.yaml"]
    assert str(config.output_folder) == "runs/a-b-c"


def parsed(*words: str) -> HarnessConfig:
    return parse_args(["--tasks", "a", "--model", "base", "--backend", "local", *words], HARNESS)


@pytest.mark.parametrize(
    "words",
    [
        ["temperature=0,max_gen_toks=64"],
        ["temperature=0.7", "do_sample=True", 'until=["a,b", "=c"]'],
        ['{"temperature": 0.7, "until": ["\\n"]}'],
        ["a=none,b='x',c=1e-3,d=-1", "e={'x': [1, 2]},a=2"],
    ],
)
def test_settings_are_read_as_by_the_harness(words: list[str]) -> None:
    cli = pytest.importorskip("lm_eval._cli.harness", reason="the extra `harness` is not installed")
    for name in ("gen_kwargs", "metadata"):
        theirs = cli.HarnessCLI()._parser.parse_args(["run", "--tasks", "a", f"--{name}", *words])
        assert getattr(parsed("--" + name.replace("_", "-"), *words), name) == getattr(theirs, name)


def test_mappings_can_be_given_repeatedly_and_in_files(tmp_path: Path) -> None:
    pytest.importorskip("lm_eval", reason="the extra `harness` is not installed")
    assert parsed("--gen-kwargs", "a=1,b=2", "--gen_kwargs", "b=3").gen_kwargs == {"a": 1, "b": 3}
    samples, file = {"a": [7, 3, 7], "b": [0]}, tmp_path / "samples.json"
    file.write_text(json.dumps(samples))
    assert parsed("--samples", str(file)).samples == parsed("--samples", json.dumps(samples)).samples
    assert parsed("--samples", str(file)).samples == {"a": [3, 7], "b": [0]}
    (tmp_path / "run.yaml").write_text(f"gen_kwargs: {{a: 1}}\nmetadata: 'x=1,y=[2,3]'\nsamples: {file}\n")
    config = parsed("--config", str(tmp_path / "run.yaml"))
    assert (config.gen_kwargs, config.metadata, config.samples["a"]) == ({"a": 1}, {"x": 1, "y": [2, 3]}, [3, 7])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--gen-kwargs", "temperature"], "--gen-kwargs must be a mapping (expected `key=value`, got 'temperature')"),
        (["--gen-kwargs", "{'a': 1}"], "--gen-kwargs must be a mapping (not JSON: Expecting property"),
        (["--gen-kwargs", "a=inf"], "--gen-kwargs cannot be written as JSON: "),
        (["--metadata", "a={1, 2}"], "--metadata cannot be written as JSON: "),
        (
            ["--samples", "nowhere.json"],
            "--samples must be a mapping (nowhere.json: not JSON, and cannot be read (No such file",
        ),
        (["--samples", "{'a': [1]}"], "--samples must be a mapping (not JSON: "),
    ],
)
def test_wrong_mappings_are_one_sentence(words: list[str], message: str) -> None:
    pytest.importorskip("lm_eval", reason="the extra `harness` is not installed")
    with pytest.raises(ConfigError) as caught:
        parsed(*words)
    assert str(caught.value).startswith(message) and "\n" not in str(caught.value)


def test_only_what_is_given_and_changes_results_is_added_to_a_fingerprint() -> None:
    always = {"--num-fewshot": "None", "--limit": "None", "--apply-chat-template": "False"}
    assert (
        parsed().of_results() == parsed("--confirm-run-unsafe-code", "--no-fewshot-as-multiturn").of_results() == always
    )
    given = {"gen_kwargs": {"a": 1}, "metadata": {"b": 2}, "samples": {"a": [0]}, "system_instruction": "Be brief."}
    thinking = {"think_end_token": "9", "enable_thinking": False}
    config = HarnessConfig(tasks=["a"], **LOCAL, **given, **thinking)
    assert set(config.of_results()) - set(always) == {flag(name) for name in {**given, **thinking}}
    assert (config.think_end, config.model_args) == (
        9,
        {"pretrained": "base", "think_end_token": 9, "enable_thinking": False},
    )


OF_INSPECT = {  # checked with inspect_ai 0.3.285, which is not installed
    *("--temperature", "--max-tokens", "--top-p", "--system-message", "--sample-id", "--epochs"),
    *("--max-connections", "--timeout", "--log-dir"),
}


SETTINGS = {"--max-gen-toks", "--do-sample", "--top-k", "--until"}  # of --gen-kwargs


@pytest.mark.parametrize(
    "words",
    [["--batch_size", "auto"], ["--max_gen_toks", "8"], ["--device=cuda"], ["--log-samples"], ["--epochs", "2"]],
)
def test_options_of_the_harness_that_mean_nothing_here_say_so(words: list[str]) -> None:
    cli = pytest.importorskip("lm_eval._cli.harness", reason="the extra `harness` is not installed")
    theirs = cli.HarnessCLI()._subparsers.choices["run"]._option_string_actions
    named = HARNESS.foreign.keys() - OF_INSPECT - SETTINGS
    assert {name[2:].replace("-", "_") for name in named} <= {name[2:] for name in theirs}
    with pytest.raises(ConfigError, match=rf"^There is no option {words[0].partition('=')[0]}: "):
        parsed(*words)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": None}, "--model is missing: the language model to evaluate."),
        ({"tasks": [","]}, "--tasks is missing"),
        ({"limit": 0.0}, "--limit must be a whole number, or a share between 0 and 1, not 0."),
        ({"max_length": 1}, "--max-length must be at least 2, for a context and a continuation, not 1."),
        ({"backend": "petals"}, "You did not name a swarm."),
        ({"samples": {"a": [1]}, "limit": 3.0}, "--samples and --limit cannot be combined"),
        ({"samples": {"a": []}}, "--samples: a should have a list of numbers of documents, from 0, not []."),
        ({"samples": {"a": [-1]}}, "--samples: a should have a list of numbers of documents, from 0, not [-1]."),
        ({"metadata": {1: 2}}, "--metadata {1: 2} has a key that is not text"),
        ({"fewshot_as_multiturn": True}, "--fewshot-as-multiturn needs --apply-chat-"),
        ({"apply_chat_template": True, "enable_thinking": True}, "--enable-thinking needs --think-end-token"),
    ],
)
def test_wrong_options_are_one_sentence(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        HarnessConfig(**{"tasks": ["a"], **LOCAL, **changes})
    assert str(caught.value).startswith(message)


def test_numbers_of_newer_yaml_within_mappings_are_numbers(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("gen-kwargs: {temperature: 9e-1, until: ['1e5', x]}\nmetadata: {a: [1e3]}\n")
    config = parsed("--config", str(tmp_path / "run.yaml"))
    assert config.gen_kwargs == {"temperature": 0.9, "until": ["1e5", "x"]}
    assert config.metadata == {"a": [1000.0]}
