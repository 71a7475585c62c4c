"""`evaluate` and `eval_batch` with models on a swarm."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Launcher

from dist_eval import AutoDistributedModelForSequenceClassification, PrivateSwarm, TunedCheckpoint, demo, evaluate
from dist_eval.api import in_flight
from dist_eval.errors import DataError
from dist_eval.model.classifier import load_locally

WORKERS = Path(__file__).parents[1] / "workers"
sys.path.insert(0, str(WORKERS))
from swarm_model_worker import ROWS, batches  # noqa: E402


@pytest.fixture(scope="module")
def model(demo_swarm: PrivateSwarm) -> Iterator[Any]:
    with AutoDistributedModelForSequenceClassification.from_pretrained(
        demo.BASE_MODEL, initial_peers=demo_swarm.initial_peers, checkpoint=demo.CHECKPOINT
    ) as model:
        yield model


@pytest.fixture(scope="module")
def expected() -> torch.Tensor:
    """Logits of the same classifier in this process."""
    local = load_locally(str(demo.BASE_MODEL), TunedCheckpoint.load(demo.CHECKPOINT))
    return torch.cat([local.logits(b["input_ids"], b["attention_mask"].sum(dim=1)) for b in batches(16)])


def test_ranks_get_what_one_process_gets_and_leave_nothing(
    demo_swarm: PrivateSwarm, expected: torch.Tensor, launcher: Launcher, tmp_path: Path
) -> None:
    worker = str(WORKERS / "swarm_model_worker.py")
    done = launcher.run(worker, str(tmp_path), *demo_swarm.initial_peers, ranks=2)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    ranks = [json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in range(2)]
    assert ranks[0] == ranks[1]
    labels = torch.cat([batch["labels"] for batch in batches(16)])
    loss = torch.nn.functional.cross_entropy(expected, labels).item()
    for side in ("right", "left"):
        assert ranks[0][side]["predictions"] == expected.argmax(dim=1).tolist()
        assert ranks[0][side]["loss"] == pytest.approx(loss, abs=1e-6)
    assert ranks[0]["loss"] == pytest.approx(loss, abs=1e-6)
    assert not launcher.leftovers()


def test_texts_of_several_batches_are_packed_and_in_flight(
    model: Any, expected: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, together, ask = list[int](), threading.Event(), in_flight.checked_answers

    def waiting(*args: Any) -> np.ndarray:
        begun.append(len(args[1]))
        if len(begun) > 1:
            together.set()
        assert together.wait(60)  # for a second one, while the first one is there
        return ask(*args)

    monkeypatch.setattr(in_flight, "checked_answers", waiting)
    model.train()
    result = evaluate(model, batches(3), return_predictions=True)
    assert result["predictions"].tolist() == expected.argmax(dim=1).tolist()
    assert model.training and torch.is_grad_enabled()
    assert sum(begun) == ROWS and len(begun) < ROWS // 3  # texts of several batches share requests


def test_the_examples_of_a_batch_without_an_answer_are_named(model: Any) -> None:
    def with_an_empty_text() -> Iterator[dict[str, torch.Tensor]]:
        for number, batch in enumerate(batches(16)):
            mask = batch["attention_mask"]
            yield {**batch, "attention_mask": mask.index_fill(0, torch.tensor([2]), 0) if number == 1 else mask}

    with pytest.raises(DataError, match="Examples 16 to 31: Row 2 of a batch has no token"):
        evaluate(model, with_an_empty_text())
