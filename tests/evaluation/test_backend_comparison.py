"""The swarm's logits compared with local ones: equal where both are right, and every change is reported."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Launcher, results_of
from samples import tokenized_digits

from dist_eval import demo
from dist_eval.data.answers import BatchOutcome, logits_columns
from dist_eval.data.dataset import TokenizedDataset
from dist_eval.data.plan import Plan, plan_batches
from dist_eval.evaluation.backend_comparison import Comparison, compare_backends
from dist_eval.inference.forward import checked_answers
from dist_eval.runs.journal import Journal
from dist_eval.swarm.private import PrivateSwarm
from dist_eval.swarm.router import Routing

CLASSES = 3


class Local:
    """Answers by length and first token, as different for different texts."""

    columns, retries = logits_columns(CLASSES), 0

    def answer(self, input_ids: torch.Tensor, lengths: torch.Tensor, routing: Any = None) -> dict[str, torch.Tensor]:
        waves = [torch.sin(lengths * (number + 1.0) + input_ids[:, 1]) for number in range(CLASSES)]
        return {"logits": torch.stack(waves, dim=1)}

    def exclude(self, servers: Any) -> None:
        raise AssertionError("there are none")


def journaled(folder: Path, data: TokenizedDataset, plan: Plan, change: Any = lambda rows, logits: {}) -> Journal:
    """What a swarm with other answers would have left behind."""
    journal = Journal(folder, plan.sizes, Local.columns)
    for number in range(len(plan)):
        rows = plan.batch(number)
        answers = checked_answers(Local(), *map(torch.from_numpy, data.padded(rows)), Routing())
        failed = change(rows, answers["logits"])
        journal.append(BatchOutcome(number, answers, failed=failed))
    return journal


@pytest.mark.parametrize("rows", [1, 40])
def test_every_changed_prediction_is_reported_once(rows: int, tmp_path: Path) -> None:
    data = tokenized_digits(tmp_path, rows, CLASSES)
    plan = plan_batches(data.lengths, token_budget=30)
    turned = {0, 7, 8, 31}

    def change(index: np.ndarray, logits: np.ndarray) -> dict[int, str]:
        for row, position in enumerate(index):
            if position in turned:
                logits[row, logits[row].argmax()] -= 5
        return {row: "no answer" for row, position in enumerate(index) if position == 31}

    journal = journaled(tmp_path, data, plan, change)
    parts = [compare_backends(Local(), data, plan, journal, np.arange(rank, len(plan), 3)) for rank in range(3)]
    found = Comparison.merged(parts)
    assert (found.compared, found.left) == (rows - (rows > 31), 0)
    assert found.changed is not None
    indices = [change.index for change in found.changed]
    assert indices == sorted(indices)
    for one in found.changed:
        assert one.index in turned - {31}
        for answer in (one.swarm, one.local):
            assert answer.prediction == int(np.argmax(answer.logits))
        assert one.swarm.prediction != one.local.prediction
    assert found.largest_difference == pytest.approx(
        max(np.abs(np.subtract(one.swarm.logits, one.local.logits)).max() for one in found.changed)
    )
    comparison = found.summary(tmp_path)
    assert (comparison.changed, comparison.file) == (len(indices), None)


def test_many_changes_go_to_a_file(tmp_path: Path) -> None:
    data = tokenized_digits(tmp_path, 60, CLASSES)
    plan = plan_batches(data.lengths, token_budget=50)
    negated = journaled(tmp_path, data, plan, lambda rows, logits: np.negative(logits, out=logits) is None or {})
    comparison = compare_backends(Local(), data, plan, negated, np.arange(len(plan))).summary(tmp_path)
    lines = [json.loads(line) for line in (tmp_path / str(comparison.file)).read_text().splitlines()]
    assert comparison.changed == len(lines) == 60
    assert lines[:20] == [example.to_json() for example in comparison.examples]


def test_a_run_that_is_to_stop_stops(tmp_path: Path) -> None:
    data = tokenized_digits(tmp_path, 20, CLASSES)
    plan = plan_batches(data.lengths, token_budget=30)
    asked = SimpleNamespace(times=0)

    def stopping() -> bool:
        asked.times += 1
        return asked.times > 2

    found = compare_backends(Local(), data, plan, journaled(tmp_path, data, plan), np.arange(len(plan)), stopping)
    assert found.left == len(plan) - 2


def test_a_swarm_and_the_local_model_agree_also_when_asked_afterwards(
    demo_swarm: PrivateSwarm, launcher: Launcher, tmp_path: Path
) -> None:
    lines = demo.TEST_DATA.read_text().splitlines()
    data = tmp_path / "data.csv"
    data.write_text("\n".join(lines[:90]) + "\n")
    options = [
        *("-m", "dist_eval", "--model", str(demo.BASE_MODEL), "--checkpoint", str(demo.CHECKPOINT)),
        *("--dataset", str(data), "--initial-peers", *demo_swarm.initial_peers, "--output", str(tmp_path / "out")),
    ]
    first = launcher.run(*options, ranks=2)
    assert first.returncode == 0, first.stderr
    before = results_of(tmp_path / "out")
    assert before["backends"] is None
    second = launcher.run(*options, "--compare-backends", ranks=2)
    assert second.returncode == 0, second.stderr
    results = results_of(tmp_path / "out")
    assert (results["backends"]["compared"], results["backends"]["changed"]) == (89, 0)
    assert results["backends"]["largest_difference"] < 1e-4
    assert "over 89 examples; no predictions changed" in second.stdout
    assert results["metrics"] == before["metrics"]
    assert [work["samples"] for work in results["ranks"]] == [0, 0], "sent again"
    assert not launcher.leftovers()
