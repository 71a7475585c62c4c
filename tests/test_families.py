"""Models of today through swarms of their own: label words, generated texts, a task of the harness, and tuning."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import ForkedSwarm, results_of, run_here
from harness_tasks import make_tasks, make_tokenizer
from pyarrow import parquet
from tiny_models import LAYERS, VOCABULARY, save_tiny_models
from transformers import AutoConfig

from dist_eval.petals.base_model.architecture import Architecture
from dist_eval.petals.client.inference_session import InferenceSession
from dist_eval.petals.server.private import PrivateSwarm

FURTHER = ("qwen3_next", "qwen3", "llama31")
"""Models of the second tier; of them qwen3_next has recurrent layers, which have no sessions."""

LOCAL = ("--backend", "local")
PROMPT = ("--prompt", "Question: {question}\\nAnswer:")


@pytest.fixture(scope="module", params=("gemma3", *(pytest.param(name, marks=pytest.mark.slow) for name in FURTHER)))
def swarm(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrivateSwarm]:
    tokenizer = make_tokenizer(VOCABULARY)
    [folder] = save_tiny_models(tmp_path_factory.mktemp("models"), request.param, tokenizer=tokenizer).values()
    with ForkedSwarm(str(folder), num_blocks=LAYERS, dht_prefix=folder.name, spans=[(0, 2), (2, LAYERS)]) as swarm:
        yield swarm


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tasks(tmp_path_factory.mktemp("tasks") / "tasks")


@pytest.fixture(scope="module")
def dataset(tasks: Path) -> Path:
    rows = [json.loads(line) for line in (tasks / "test.json").read_text().splitlines()]
    path = tasks / "rows.jsonl"
    path.write_text("\n".join(json.dumps({**row, "answer": str(row["answer"])}) for row in rows))
    return path


def both(swarm: PrivateSwarm, folder: Path, *arguments: str) -> list[Path]:
    """Runs through a swarm and in this process; returns the folders."""
    found = []
    for name, options in {"swarm": ("--initial-peers", *swarm.initial_peers), "local": LOCAL}.items():
        output = folder / name
        assert run_here(*arguments, "--model", swarm.model, "--output", str(output), *options) == 0
        found.append(output)
    return found


def rows_of(output: Path) -> list[dict[str, Any]]:
    return parquet.read_table(output / "predictions.parquet").to_pylist()


def test_label_words(swarm: PrivateSwarm, dataset: Path, tmp_path: Path) -> None:
    words = ("0=river", "1=stone garden", "2=letter", "3=candle")
    further = ("--dataset", str(dataset), "--label-column", "answer", *PROMPT, "--label-words", *words)
    on_swarm, here = both(swarm, tmp_path, "-m", "dist_eval", *further)
    for one, other in zip(rows_of(on_swarm), rows_of(here), strict=True):
        assert one == {name: pytest.approx(value, abs=1e-5) for name, value in other.items()}


@pytest.mark.slow
def test_generated_texts(swarm: PrivateSwarm, dataset: Path, tmp_path: Path) -> None:
    further = ("--dataset", str(dataset), "--label-column", "ending", *PROMPT, "--generate", "--max-new-tokens", "8")
    on_swarm, here = both(swarm, tmp_path, "-m", "dist_eval", *further)
    assert rows_of(on_swarm) == rows_of(here)
    assert results_of(on_swarm)["tasks"] == results_of(here)["tasks"]


def test_a_task_of_the_harness(swarm: PrivateSwarm, tasks: Path, tmp_path: Path) -> None:
    further = ("--tasks", "words", "--include-path", str(tasks), "--bootstrap-iters", "10")
    outputs = both(swarm, tmp_path, "-m", "dist_eval.harness", *further)
    on_swarm, here = (
        [json.loads(line)["filtered_resps"] for line in next(output.glob("samples_*.jsonl")).read_text().splitlines()]
        for output in outputs
    )
    assert results_of(outputs[0])["tasks"] == results_of(outputs[1])["tasks"]
    assert [greedy for row in on_swarm for _, greedy in row] == [greedy for row in here for _, greedy in row]
    assert [float(value) for row in on_swarm for value, _ in row] == pytest.approx(
        [float(value) for row in here for value, _ in row], abs=1e-4
    )


@pytest.mark.slow
def test_texts_that_are_longer_than_a_request(
    swarm: PrivateSwarm, tasks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    limits = ("--server-max-tokens", "24", "--max-length", "150")
    task = ("--tasks", "texts", "--include-path", str(tasks), "--bootstrap-iters", "0", "--limit", "6", *limits)
    if not Architecture(AutoConfig.from_pretrained(swarm.model)).has_attention_cache:
        arguments = ("--model", swarm.model, "--initial-peers", *swarm.initial_peers, "--output", str(tmp_path / "o"))
        assert run_here("-m", "dist_eval.harness", *task, *arguments) == 1
        assert "more than the 24 tokens that servers accept in one request" in capfd.readouterr().err
        return
    lengths, pass_through = list[int](), InferenceSession.pass_through

    def noted(session: InferenceSession, hidden: torch.Tensor, *options: Any) -> torch.Tensor:
        lengths.append(hidden.shape[1])
        return pass_through(session, hidden, *options)

    monkeypatch.setattr(InferenceSession, "pass_through", noted)
    on_swarm, here = (
        [float(json.loads(line)["filtered_resps"][0]) for line in next(output.glob("samples_*.jsonl")).open()]
        for output in both(swarm, tmp_path, "-m", "dist_eval.harness", *task)
    )
    assert on_swarm == pytest.approx(here, rel=1e-5)
    assert 0 < len(lengths) < 6 and all(24 < length < 150 for length in lengths), "some are short enough"


@pytest.mark.slow
def test_tuning(swarm: PrivateSwarm, dataset: Path, tmp_path: Path) -> None:
    data = ("--dataset", str(dataset), "--text-column", "question", "--label-column", "answer")
    further = (*data, "--epochs", "2", "--batch-size", "8", "--pre-seq-len", "4")
    on_swarm, here = (
        [epoch["loss"] for epoch in json.loads((output / "tuning.json").read_text())["epochs"]]
        for output in both(swarm, tmp_path, "-m", "dist_eval.tuning", *further)
    )
    assert on_swarm == pytest.approx(here, rel=1e-4)
    assert here[1] < here[0]
