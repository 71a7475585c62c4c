"""Runs on prompts after which texts are generated: on several ranks, through a swarm, killed, and compared."""

from __future__ import annotations

import json
import random
import shutil
import signal
from functools import partial
from pathlib import Path
from subprocess import Popen
from typing import Any

import pytest
from conftest import TIMEOUT, ForkedSwarm, Launcher, results_of, run_here, wait_for
from harness_tasks import WORDS, make_tokenizer
from pyarrow import parquet
from tiny_models import LAYERS, VOCABULARY

from dist_eval.compare.__main__ import main as compare
from dist_eval.report.__main__ import main as report

ROWS, NEW_TOKENS = 40, 10
LOCAL = ("--backend", "local")


@pytest.fixture(scope="module")
def model(tiny_models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama with a tokenizer."""
    folder = tmp_path_factory.mktemp("generating") / "llama"
    shutil.copytree(tiny_models["llama"], folder)
    make_tokenizer(VOCABULARY).save_pretrained(folder)
    return folder


def questions() -> list[str]:
    draw = random.Random(0)
    return [" ".join(draw.choices(WORDS, k=draw.randint(1, 12))) for _ in range(ROWS)]


@pytest.fixture(scope="module")
def expected(model: Path) -> list[str]:
    """What transformers generates, one prompt at a time."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer, found = AutoTokenizer.from_pretrained(model), []
    theirs = AutoModelForCausalLM.from_pretrained(model)
    for question in questions():
        ids = tokenizer(f"Question: {question}\nAnswer:", return_tensors="pt")["input_ids"]
        mask = torch.ones_like(ids)
        whole = theirs.generate(ids, attention_mask=mask, max_new_tokens=NEW_TOKENS, do_sample=False, pad_token_id=0)
        found.append(tokenizer.decode(whole[0, ids.shape[1] :], skip_special_tokens=True).split("w")[0])
    return found


@pytest.fixture(scope="module")
def dataset(expected: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every second row has the right text among its references, every fourth only when normalized."""
    path = tmp_path_factory.mktemp("data") / "rows.jsonl"
    rows = []
    for number, (question, text) in enumerate(zip(questions(), expected, strict=True)):
        right = f"The {text.strip().upper()}!" if number % 4 == 0 else text
        rows.append({"question": question, "answers": ["nothing", right] if number % 2 == 0 else ["nothing"]})
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def command(model: Path, dataset: Path, output: Path, *further: str) -> list[str]:
    return [
        *("-m", "dist_eval", "--model", str(model), "--dataset", str(dataset), "--label-column", "answers"),
        *("--prompt", "Question: {question}\\nAnswer:", "--generate", "--stop", "w"),
        *("--max-new-tokens", str(NEW_TOKENS), "--output", str(output), *further),
    ]


def predictions(output: Path) -> list[dict[str, Any]]:
    return parquet.read_table(output / "predictions.parquet").to_pylist()


def test_texts_are_those_of_transformers_and_compared_with_references(
    model: Path, dataset: Path, expected: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out"
    assert run_here(*command(model, dataset, output, *LOCAL)) == 0
    out, err = capfd.readouterr()
    assert "rows/exact_match      0.5000 [0.3520, 0.6480]" in out and "Warning" not in err
    rows, results = predictions(output), results_of(output)
    assert [row["text"] for row in rows] == expected and [row["index"] for row in rows] == list(range(ROWS))
    assert [row["exact_match"] for row in rows] == [number % 2 == 0 for number in range(ROWS)]
    assert [row["exact_match_raw"] for row in rows] == [number % 4 == 2 for number in range(ROWS)]
    [task] = results["tasks"].values()
    assert {one["metric"]: one["value"] for one in task["metrics"]} == {"exact_match": 0.5, "exact_match_raw": 0.25}
    assert results["prompts"]["texts"] == ROWS == results["coverage"]["seen"]
    before = (output / "results.json").read_bytes()
    assert run_here(*command(model, dataset, output, *LOCAL)) == 0, "complete: shown again, nothing is sent"
    assert (output / "results.json").read_bytes() == before
    assert report([str(output), "--texts"]) == 0
    page = (output / "report.html").read_text(encoding="utf-8")
    missed = next(text for text in expected[1::2] if text.strip())
    assert missed.split()[0] in page and "greedy, at most 10 tokens, up to &#39;w&#39;" in page
    capfd.readouterr()
    assert run_here(*command(model, dataset, output, *LOCAL, "--stop", "win")) == 1
    assert "what differs is the decoding" in capfd.readouterr().err


def test_a_prompt_that_begins_with_the_tokenizers_own_first_token_has_it_once(
    model: Path, dataset: Path, expected: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    prompt = ("--prompt", "<s>Question: {question}\\nAnswer:")
    assert run_here(*command(model, dataset, tmp_path, *prompt, *LOCAL)) == 0
    assert [row["text"] for row in predictions(tmp_path)] == expected
    said = f"{ROWS} prompts have the tokenizer's BOS in front already, which is not doubled"
    assert results_of(tmp_path)["notices"] == [said] and f"\nnotice: {said}\n" in capfd.readouterr().out


def test_samples_depend_on_the_seed_and_runs_are_compared_by_row(
    model: Path, dataset: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    drawn = ("--temperature", "0.8", "--top-k", "20", *LOCAL)
    copy = tmp_path / "copy.jsonl"  # the same rows under another name
    copy.write_bytes(dataset.read_bytes())
    for name, seed, rows in (("a", "1", dataset), ("b", "2", copy)):
        assert run_here(*command(model, rows, tmp_path / name, *drawn, "--seed", seed)) == 0
    assert [row["text"] for row in predictions(tmp_path / "a")] != [row["text"] for row in predictions(tmp_path / "b")]
    capfd.readouterr()
    assert compare([str(tmp_path / "a"), str(tmp_path / "b")]) == 0
    assert f"{ROWS}" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("row", "options", "message"),
    [
        ({"question": "river", "answers": None}, [], "row 40 (counted from 0): the reference in column 'answers'"),
        ({"question": "river " * 40, "answers": ["a"]}, ["--strict", "--max-length", "40"], "row 40"),
        ({"question": "river", "answers": ["a"]}, ["--max-length", "10"], "leaves no room for a prompt"),
    ],
)
def test_rows_that_cannot_be_used_are_named(
    row: dict[str, Any],
    options: list[str],
    message: str,
    model: Path,
    dataset: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "rows.jsonl").write_text(dataset.read_text() + "\n" + json.dumps(row))
    assert run_here(*command(model, tmp_path / "rows.jsonl", tmp_path / "out", *LOCAL, *options)) == 1
    assert message in capfd.readouterr().err


def is_under_way(output: Path, process: Popen[str]) -> bool:
    """Returns whether a batch is in the journal, or the run has ended."""
    journal = (output / "journal").glob("*.batches")
    return process.poll() is not None or any(path.stat().st_size for path in journal)


@pytest.mark.slow
def test_texts_are_the_same_through_a_swarm_whose_server_is_killed_on_any_number_of_ranks(
    model: Path, dataset: Path, launcher: Launcher, tmp_path: Path
) -> None:
    longer = ("--max-new-tokens", "60", "--stop", "none of these")  # several batches
    assert run_here(*command(model, dataset, tmp_path / "local", *LOCAL, *longer)) == 0
    expected = (tmp_path / "local" / "predictions.parquet").read_bytes()
    spans = [(0, 2), (0, 2), (2, LAYERS)]
    with ForkedSwarm(str(model), num_blocks=LAYERS, dht_prefix="generating", spans=spans) as swarm:
        for ranks in (1, 3):
            output = tmp_path / str(ranks)
            arguments = command(model, dataset, output, *longer, "--dht-prefix", "generating")
            process = launcher.start(*arguments, "--initial-peers", *swarm.initial_peers, ranks=ranks)
            if ranks == 3:
                assert wait_for(partial(is_under_way, output, process))
                swarm.kill_server(0)
            _, err = process.communicate(timeout=TIMEOUT)
            assert process.returncode == 0, err
            assert (output / "predictions.parquet").read_bytes() == expected
            assert results_of(output)["plan"]["batches"] > 2
    assert not launcher.leftovers()


@pytest.mark.slow
def test_a_killed_run_resumes_on_another_number_of_ranks(
    model: Path, dataset: Path, expected: list[str], launcher: Launcher, tmp_path: Path
) -> None:
    rows = dataset.read_text().splitlines() * 10
    (tmp_path / "rows.jsonl").write_text("\n".join(rows))
    output = tmp_path / "out"
    arguments = command(model, tmp_path / "rows.jsonl", output, *LOCAL)
    process = launcher.start(*arguments, ranks=3)

    assert wait_for(partial(is_under_way, output, process))
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=TIMEOUT)
    assert wait_for(lambda: not launcher.processes())
    run = launcher.run(*arguments, ranks=2)
    assert run.returncode == 0, run.stderr
    assert sum(rank["resumed"] for rank in results_of(output)["ranks"]) > 0
    assert [row["text"] for row in predictions(output)] == expected * 10
    assert not launcher.leftovers()
