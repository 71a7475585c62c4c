"""Runs on tasks of the harness: beside its own Hugging Face backend, on several ranks, resumed, and on wrong input."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import TIMEOUT, Launcher, results_of, run_here, scalars_in, wait_for, wait_until_under_way, with_options
from harness_tasks import DOCUMENTS, TASKS, by_hugging_face, make_tasks, make_tokenizer
from tiny_models import VOCABULARY, save_tiny_models

from dist_eval import demo
from dist_eval.errors import SwarmError
from dist_eval.evaluation.context import RunContext
from dist_eval.petals.server.private import PrivateSwarm

pytest.importorskip("lm_eval", reason="the extra `harness` is not installed")

MODELS = ("llama", "gemma3", "qwen3", "llama31", "bloom", "falcon")

MOST_TOKENS = 24
"""That a model is sent: few enough for several windows, and for contexts that are cut."""


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tasks(tmp_path_factory.mktemp("tasks") / "tasks")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Tiny models with a tokenizer."""
    return save_tiny_models(tmp_path_factory.mktemp("models"), *MODELS, tokenizer=make_tokenizer(VOCABULARY))


def command(model: Path, tasks: Path, output: Path, *further: str) -> list[str]:
    own = [
        *("-m", "dist_eval.harness", "--tasks", ",".join(TASKS), "--include-path", str(tasks), "--num-fewshot", "2"),
        *("--model", str(model), "--max-length", str(MOST_TOKENS + 1), "--bootstrap-iters", "10"),
        *("--output", str(output)),
    ]
    return with_options(own, further)


LOCAL = ("--backend", "local")


def of_harness(output: Path) -> tuple[dict[str, Any], dict[str, list[dict[str, Any]]]]:
    """Returns the harness' own results, and its samples by task, as a run has written them."""
    [path] = output.glob("results_*.json")
    samples = {}
    for name in TASKS:
        [file] = output.glob(f"samples_{name}_*.jsonl")
        samples[name] = [json.loads(line) for line in file.read_text().splitlines()]
    return json.loads(path.read_text()), samples


def theirs_of(model: Path, tasks: Path, thinking: dict[str, Any] | None = None, **options: Any) -> dict[str, Any]:
    """Returns what the harness' own backend finds, as `command` asks for it."""
    backend = {
        "max_length": MOST_TOKENS,
        "batch_size": 1 if thinking else 4,  # in a batch, texts go on after their stop, and may end to think there
        "logits_cache": False,  # it mixes up requests with equal forwards that are split differently
        **(thinking or {}),
    }
    return by_hugging_face(model, tasks, TASKS, backend, **{"num_fewshot": 2, "bootstrap_iters": 10, **options})


def answers(samples: list[dict[str, Any]]) -> list[tuple[float, str]]:
    """Returns log-likelihood and is_greedy of all requests, in order, or 0 and the text."""
    found = []
    for sample in samples:
        for [answer] in sample["resps"]:
            is_text = "until" in str(sample["arguments"])
            value, greedy = answer if isinstance(answer, (list, tuple)) else (0, answer) if is_text else (answer, "")
            found.append((float(value), str(greedy)))
    return found


def assert_equal(found: dict[str, Any], expected: dict[str, Any]) -> None:
    """Metrics are those of the harness."""
    for metric, value in expected.items():
        assert found[metric] == (pytest.approx(value, rel=1e-5) if isinstance(value, float) else value), metric


@pytest.mark.parametrize("family", [MODELS[0], *(pytest.param(name, marks=pytest.mark.slow) for name in MODELS[1:])])
def test_it_answers_as_the_harness_own_backend(
    family: str, models: dict[str, Path], tasks: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run_here(*command(models[family], tasks, tmp_path / "out", *LOCAL)) == 0
    out, err = capfd.readouterr()
    assert re.search(r"^words/acc .* 24 +2$", out, re.MULTILINE), "documents, and few-shot examples"
    notices = [line.removeprefix("notice: ") for line in err.splitlines() if line.startswith("notice: ")]
    assert all(line.startswith("notice: ") or " evaluating: " in line for line in err.splitlines()), err
    results, (written, samples) = results_of(tmp_path / "out"), of_harness(tmp_path / "out")
    theirs = theirs_of(models[family], tasks)
    for name in TASKS:
        ours, expected = answers(samples[name]), answers(theirs["samples"][name])
        assert [greedy for _, greedy in ours] == [greedy for _, greedy in expected]
        assert [value for value, _ in ours] == pytest.approx([value for value, _ in expected], abs=1e-4)
        assert_equal(written["results"][name], theirs["results"][name])
    assert written["task_hashes"] and written["config"]["model_args"] == {"pretrained": str(models[family])}
    assert_recorded(results, written, samples)
    assert results["notices"] == notices and all(f"\nnotice: {text}\n" in out for text in notices)
    assert [name for name in TASKS if any(f"{name} says num_fewshot: 0" in text for text in notices)] == [
        name for name, task in results["tasks"].items() if task["num_fewshot"] == 0
    ]


TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}] {{ m.content }} {% endfor %}"
    "{% if enable_thinking is defined and not enable_thinking %}Answer {% endif %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
CHAT = ["--apply-chat-template", "--fewshot-as-multiturn", "--system-instruction", "river {{ stone }}"]
SETTINGS = {"max_gen_toks": 9, "until": ["thunder"]}


@pytest.mark.parametrize("is_id", [pytest.param(False, marks=pytest.mark.slow), True])
def test_it_takes_the_harness_own_arguments(
    is_id: bool, models: dict[str, Path], tasks: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    model = tmp_path / "chat"
    shutil.copytree(models["llama"], model)
    tokenizer = make_tokenizer(VOCABULARY)
    tokenizer.chat_template = {"default": "other", "short": TEMPLATE} if is_id else TEMPLATE
    tokenizer.save_pretrained(model)
    end = tokenizer.convert_tokens_to_ids("▁bridge") if is_id else "bridge"
    samples = {name: [7, 3, 20] for name in TASKS}
    given = [
        *(*CHAT, "--gen-kwargs", "max_gen_toks=9", 'until=["thunder"]', "--samples", json.dumps(samples)),
        *("--metadata", '{"lengths": [4, 8]}', "--think-end-token", str(end), "--no-enable-thinking"),
    ]
    named = {"chat_template": "short"} if is_id else {}
    given = [*(word for name in named.values() for word in ("--chat-template", name)), *given]
    assert run_here(*command(model, tasks, tmp_path / "out", *LOCAL), *given) == 0
    capfd.readouterr()
    written, ours = of_harness(tmp_path / "out")
    theirs = theirs_of(
        model,
        tasks,
        {"think_end_token": end, "enable_thinking": False, "chat_template_args": named},  # where the harness reads it
        metadata={"lengths": [4, 8]},
        apply_chat_template=True,
        fewshot_as_multiturn=True,
        system_instruction="river {{ stone }}",
        gen_kwargs=SETTINGS,
        samples={name: sorted(numbers) for name, numbers in samples.items()},
    )
    for name in TASKS:
        expected = theirs["samples"][name]
        for key in ("doc_id", "prompt_hash", "target_hash"):
            assert [sample[key] for sample in ours[name]] == [sample[key] for sample in expected], key
        assert [greedy for _, greedy in answers(ours[name])] == [greedy for _, greedy in answers(expected)]
        assert_equal(written["results"][name], theirs["results"][name])
        assert written["configs"][name]["metadata"]["lengths"] == [4, 8]
    assert [sample["doc_id"] for sample in ours["words"]] == [3, 7, 20]
    assert written["system_instruction"] == "river {{ stone }}" and written["fewshot_as_multiturn"] is True
    assert written["config"]["gen_kwargs"] == SETTINGS == results_of(tmp_path / "out")["config"]["gen_kwargs"]
    assert [sample["resps"] for sample in ours["stories"]] == 3 * [[["ad"]]], "of '... bridgead'"
    assert run_here(*command(model, tasks, tmp_path / "out", *LOCAL), *given[:-3]) == 1
    assert " the --think-end-token and the --enable-thinking. Choose another" in capfd.readouterr().err
    assert run_here(*command(model, tasks, tmp_path / "other", *LOCAL), *CHAT, "--chat-template", "long") == 1
    has = "the chat templates default, short" if is_id else "a single chat template, without a name"
    assert f"--chat-template long: the tokenizer has {has}." in capfd.readouterr().err


def assert_recorded(results: dict[str, Any], written: dict[str, Any], samples: dict[str, list[dict[str, Any]]]) -> None:
    """Our results say what the harness' own say."""
    requests, coverage = results["requests"], results["coverage"]
    assert coverage["seen"] == coverage["expected"] == requests["texts"] + DOCUMENTS > DOCUMENTS
    assert results["prompts"]["texts"] == DOCUMENTS and results["prompts"]["truncated"] > 0
    assert requests["saved"] == requests["texts"] - requests["forwards"] >= 3 * DOCUMENTS, "of one-token choices"
    assert requests["truncated"] > 0, "few-shot contexts are too long"
    assert sum(rank["samples"] for rank in results["ranks"]) == coverage["expected"]
    assert results["plan"]["real_tokens"] == sum(rank["tokens"] for rank in results["ranks"])
    for name, task in results["tasks"].items():
        assert task["documents"] == DOCUMENTS == len(samples[name])
        for metric in task["metrics"]:
            assert metric["value"] == written["results"][name][f"{metric['metric']},none"]
            interval = metric["interval"]
            if metric["metric"] == "mcc":
                assert interval["reason"] == "the metric is not a function of a mean over documents"
            elif interval["reason"] is None:
                assert interval["low"] <= metric["value"] <= interval["high"]
                assert (interval["method"] == "wilson") == metric["metric"].startswith(("acc", "exact"))


def comparable(output: Path) -> tuple[Any, ...]:
    """Returns all that must not depend on the ranks."""
    written, samples = of_harness(output)
    results = results_of(output)
    kept = ("results", "group_subtasks", "configs", "versions", "n-shot", "n-samples", "task_hashes")
    ours = ("tasks", "groups", "notices", "coverage", "requests", "prompts", "model", "plan")
    return {name: written[name] for name in kept}, samples, {name: results[name] for name in ours}


@pytest.mark.slow
def test_any_number_of_ranks_writes_the_same_through_a_swarm(
    tasks: Path, demo_swarm: PrivateSwarm, launcher: Launcher, tmp_path: Path
) -> None:
    found = []
    for ranks in (1, 2, 3):
        output = tmp_path / f"ranks-{ranks}"
        peers = ["--initial-peers", *demo_swarm.initial_peers]
        tracked = ["--tracker", "tensorboard"] if ranks == 2 else []
        run = launcher.run(*command(demo.BASE_MODEL, tasks, output, *peers, *tracked), ranks=ranks)
        assert run.returncode == 0, run.stderr
        assert "Warning" not in run.stderr
        found.append(comparable(output))
        assert len(results_of(output)["ranks"]) == ranks
    assert found[0] == found[1] == found[2]
    assert {"words/acc", "letters/acc", "stories/exact_match"} <= scalars_in(tmp_path / "ranks-2" / "logs").keys()
    assert not launcher.leftovers()


DIGITS = ("-m", "dist_eval.harness", "--tasks", "digits", "--model", str(demo.BASE_MODEL), "--token-budget", "80")


def test_the_shipped_task_says_how_good_the_embedded_example_is(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out"
    arguments = [*DIGITS, *LOCAL, "--output", str(output)]
    assert run_here(*arguments, "--limit", "100", "--tracker", "tensorboard") == 0
    assert "digits/acc" in scalars_in(output / "logs")
    results = results_of(output)
    [metric] = results["tasks"]["digits"]["metrics"]
    assert metric["value"] > 0.95 and metric["documents"] == 100
    assert (results["requests"]["texts"], results["requests"]["forwards"]) == (1000, 100)
    assert [path for path in output.rglob("*") if path.stat().st_mode & 0o077] == [], "readable only for this user"
    before = (output / "results.json").read_bytes()
    assert run_here(*arguments, "--limit", "100") == 0, "complete: shown again, nothing is sent"
    assert capfd.readouterr().out.count("\ndigits/acc ") == 2
    assert (output / "results.json").read_bytes() == before
    assert run_here(*arguments, "--limit", "100", "--confidence", "0.8") == 0
    rescored = results_of(output)
    assert rescored["tasks"]["digits"]["metrics"][0]["interval"]["confidence"] == 0.8
    assert [rank["resumed"] for rank in rescored["ranks"]] == [1000]
    assert len(list(output.glob("*digits_*.jsonl"))) == len(list(output.glob("results_*.json"))) == 1
    capfd.readouterr()
    assert run_here(*arguments, "--limit", "9") == 1
    assert "it differs in the data of the tasks and the --limit" in capfd.readouterr().err


def no_swarm(*_: Any) -> None:
    raise SwarmError("the swarm is gone")


def test_changed_code_of_a_task_scores_the_same_answers_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    tasks, output = make_tasks(tmp_path / "tasks"), tmp_path / "out"
    (tasks / "own.yaml").write_text("include: words.yaml\ntask: own\nprocess_results: !function code.score\n")
    arguments = ["-m", "dist_eval.harness", "--tasks", "own", "--include-path", str(tasks), "--limit", "7"]
    arguments += ["--model", str(demo.BASE_MODEL), *LOCAL, "--output", str(output)]
    for value in (1.0, 0.25):  # a constant is no part of the function's own text
        before = results_of(output) if output.exists() else {}
        (tasks / "code.py").write_text(f"VALUE = {value}\ndef score(doc, results):\n    return {{'acc': VALUE}}\n")
        if before:
            with monkeypatch.context() as patch:
                patch.setattr(RunContext, "load_model", no_swarm)
                assert run_here(*arguments) == 1
            assert "the swarm is gone" in capfd.readouterr().err
            assert results_of(output) == before and [*output.glob("samples_own_*.jsonl")]
        assert run_here(*arguments) == 0, capfd.readouterr().err
        results = results_of(output)
        assert [metric["value"] for metric in results["tasks"]["own"]["metrics"]] == [value]
    assert "but not their requests: the finished answers are scored again" in capfd.readouterr().err
    assert [rank["resumed"] for rank in results["ranks"]] == [results["requests"]["texts"]]
    before = (output / "results.json").read_bytes()
    assert run_here(*arguments) == 0
    assert (output / "results.json").read_bytes() == before
    (tasks / "own.yaml").write_text("include: words.yaml\ntask: own\ndoc_to_text: '{{ending}}'\n")
    assert run_here(*arguments) == 1
    assert "it differs in" in capfd.readouterr().err


@pytest.mark.slow
def test_a_killed_run_resumes_on_another_number_of_ranks_to_the_same_bytes(
    models: dict[str, Path], tasks: Path, launcher: Launcher, tmp_path: Path
) -> None:
    output, undisturbed = tmp_path / "out", tmp_path / "undisturbed"
    assert run_here(*command(models["llama"], tasks, undisturbed, *LOCAL)) == 0
    process = launcher.start(*command(models["llama"], tasks, output, *LOCAL), ranks=2)
    wait_until_under_way(output, process)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=TIMEOUT)
    assert process.returncode == -signal.SIGKILL
    assert wait_for(lambda: not launcher.processes())
    run = launcher.run(*command(models["llama"], tasks, output, *LOCAL), ranks=3)
    assert run.returncode == 0, run.stderr
    results, expected = results_of(output), results_of(undisturbed)
    assert sum(rank["resumed"] for rank in results["ranks"]) > 0 < expected["prompts"]["texts"]
    for name in ("tasks", "coverage", "requests", "prompts", "plan", "model"):
        assert results[name] == expected[name]
    for name in TASKS:
        [ours], [theirs] = (list(folder.glob(f"samples_{name}_*.jsonl")) for folder in (output, undisturbed))
        assert ours.read_bytes() == theirs.read_bytes()
    assert not launcher.leftovers()


def strange(tasks: Path, folder: Path, **changes: Any) -> Path:
    """Writes a task `strange` to a folder: `words` with changes."""
    task = json.loads((tasks / "words.yaml").read_text())
    folder.mkdir()
    (folder / "strange.yaml").write_text(json.dumps({**task, "task": "strange", **changes}))
    return folder


WRONG: dict[str, tuple[dict[str, Any], list[str], str]] = {
    "no data": (
        {"dataset_kwargs": {"data_files": {"test": "nowhere.json"}}},
        [],
        "The task strange cannot be loaded: FileNotFoundError: Unable to find",
    ),
    "strict": ({}, ["--strict"], "tokens, more than --max-length 25, and --strict forbids cutting them."),
    "chat": ({}, ["--apply-chat-template"], "--apply-chat-template: the tokenizer of"),
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_tasks_are_one_sentence(
    what: str, models: dict[str, Path], tasks: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    changes, options, message = WRONG[what]
    folder = strange(tasks, tmp_path / "tasks", **changes)
    arguments = command(models["llama"], folder, tmp_path / "out", *LOCAL, "--tasks", "strange", *options)
    assert run_here(*arguments) == 1
    out, err = capfd.readouterr()
    *progress, last = err.splitlines()
    assert message in last and not out
    assert not progress, "nothing was sent"


def test_a_metric_that_fails_ends_the_run_and_the_answers_are_scored_once_it_is_corrected(
    models: dict[str, Path], tasks: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = strange(tasks, tmp_path / "tasks", metric_list=[{"metric": "f1"}, {"metric": "acc"}])
    arguments = command(models["llama"], folder, tmp_path / "out", *LOCAL, "--tasks", "strange")
    assert run_here(*arguments) == 1
    said = capfd.readouterr().err
    assert "The harness failed on the tasks strange: ValueError: Target is multiclass" in said
    assert "All answers are in the journal" in said
    shutil.rmtree(folder)
    strange(tasks, folder, metric_list=[{"metric": "acc"}])
    assert run_here(*arguments) == 0
    results = results_of(tmp_path / "out")
    assert [rank["resumed"] for rank in results["ranks"]] == [results["coverage"]["expected"]]
    assert results["tasks"]["strange"]["metrics"][0]["value"] is not None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        pytest.param(
            *(["--tasks", "digit"], "--tasks: the harness has no task 'digit'. Did you mean digits"),
            marks=pytest.mark.slow,  # it reads all task files of the harness
        ),
        (["--include-path", "nowhere"], "--include-path nowhere: there is no such folder."),
        (["--model", "hf"], "--model hf: here it is the language model itself"),
    ],
)
def test_unknown_tasks_are_named(
    options: list[str], message: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    nobody = ("--initial-peers", f"/ip4/127.0.0.1/tcp/9/p2p/Qm{'a' * 44}")  # whom a run does not look for before
    tasks = () if "--tasks" in options else ("--tasks", "digits")
    model = () if "--model" in options else ("--model", str(demo.BASE_MODEL))
    assert (
        run_here("-m", "dist_eval.harness", *tasks, *model, *nobody, *options, "--output", str(tmp_path / "out")) == 1
    )
    assert message in capfd.readouterr().err


def test_a_model_without_a_head_is_refused(
    models: dict[str, Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    from transformers import LlamaModel

    shutil.copytree(models["llama"], tmp_path / "headless")
    LlamaModel.from_pretrained(models["llama"]).save_pretrained(tmp_path / "headless")
    capfd.readouterr()
    arguments = ["--model", str(tmp_path / "headless"), "--output", str(tmp_path / "out")]
    assert run_here(*DIGITS[:4], *arguments, *LOCAL) == 1
    assert "headless has no language-model head: its weights lack 'lm_head.weight'" in capfd.readouterr().err


def test_an_error_behind_the_harness_is_not_taken_for_one_of_its_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("of our own")

    monkeypatch.setattr("dist_eval.harness.runner.answer", fail)
    assert run_here(*DIGITS, *LOCAL, "--limit", "3", "--output", str(tmp_path / "out")) == 1
    err = capfd.readouterr().err
    assert "ZeroDivisionError: of our own" in err and "The harness failed" not in err


@pytest.fixture(autouse=True)
def _environment() -> Iterator[None]:
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)
