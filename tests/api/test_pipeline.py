"""`eval_batch`: micro-batches through a model or a swarm's stages, weighted by samples."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Launcher
from torch import nn

from dist_eval import PetalsPipeline
from dist_eval.errors import ConfigError, DataError

WORKERS = Path(__file__).parents[1] / "workers"
sys.path.insert(0, str(WORKERS))
from pipeline_worker import micro_batches, model  # noqa: E402

CROSS_ENTROPY = nn.CrossEntropyLoss()


def joint_loss(ranks: int) -> float:
    pairs = [pair for rank in range(ranks) for pair in micro_batches(rank)]
    with torch.no_grad():
        logits = model().eval()(torch.cat([x for x, _ in pairs]))
    return CROSS_ENTROPY(logits, torch.cat([y for _, y in pairs])).item()


def test_ranks_are_replicas_and_their_average_is_that_over_all_samples(launcher: Launcher, tmp_path: Path) -> None:
    result = launcher.run(str(WORKERS / "pipeline_worker.py"), str(tmp_path), ranks=3)
    assert result.returncode == 0, result.stderr
    ranks = [json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in range(3)]
    assert len({known["loss"] for known in ranks}) == 1
    assert ranks[0]["loss"] == pytest.approx(joint_loss(3), rel=1e-6)
    assert [known["rows"] for known in ranks] == [9, 3, 0]
    assert [len(known["each"]) for known in ranks] == [3, 1, 0]
    assert all(known["ended"] == "no rank has another micro-batch" for known in ranks)
    assert ranks[1]["failure"] == "ValueError: no more data"
    assert "Rank 1 failed: ValueError: no more data" in ranks[0]["failure"]
    assert all(known["untouched"] for known in ranks)


def pipeline_of(loss_fn: Any = CROSS_ENTROPY, **options: Any) -> PetalsPipeline:
    return PetalsPipeline(model(), loss_fn, **options)


def test_a_ragged_last_micro_batch_counts_as_much_as_its_samples() -> None:
    loss = pipeline_of(micro_batches=3).eval_batch(iter(micro_batches(0)))
    assert loss.dtype == torch.float32 and loss.ndim == 0
    assert loss.item() == pytest.approx(joint_loss(1), rel=1e-6)


def test_an_empty_micro_batch_does_not_count() -> None:
    empty = tuple(part[:0] for part in micro_batches(0)[0])
    loss = pipeline_of(micro_batches=4).eval_batch(iter([empty, *micro_batches(0)]))
    assert loss.item() == pytest.approx(joint_loss(1), rel=1e-6)


def test_logits_of_all_micro_batches_come_in_order() -> None:
    _, logits = pipeline_of(micro_batches=3).eval_batch(iter(micro_batches(0)), return_logits=True)
    with torch.no_grad():
        assert torch.allclose(logits, model().eval()(torch.cat([x for x, _ in micro_batches(0)])))


def test_it_takes_the_given_number_of_micro_batches() -> None:
    iterator = iter(micro_batches(0))
    losses = pipeline_of().eval_batch(iterator, reduce_output=None, num_micro_batches=2)
    assert len(losses) == 2
    assert len(next(iterator)[1]) == 1, "the third is still there"


def test_several_outputs_and_several_losses() -> None:
    class Two(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return x, 2 * x

    def losses(outputs: tuple[torch.Tensor, torch.Tensor], labels: torch.Tensor) -> list[torch.Tensor]:
        return [outputs[0].mean(), outputs[1].mean()]

    pipeline = PetalsPipeline(Two(), losses, micro_batches=3)
    (first, second), outputs = pipeline.eval_batch(iter(micro_batches(0)), return_logits=True)
    everything = torch.cat([x for x, _ in micro_batches(0)])
    assert torch.equal(outputs[0], everything) and torch.equal(outputs[1], 2 * everything)
    assert first.item() == pytest.approx(everything.mean().item(), rel=1e-5)
    assert second.item() == pytest.approx(2 * everything.mean().item(), rel=1e-5)


def test_without_a_loss_the_outputs_are_reduced() -> None:
    same = [(torch.full((2, 5), value), torch.zeros(2)) for value in (1.0, 3.0)]
    pipeline = PetalsPipeline(nn.Identity(), micro_batches=2)
    assert torch.equal(pipeline.eval_batch(iter(same)), torch.full((2, 5), 2.0))
    kept = PetalsPipeline(nn.Identity(), CROSS_ENTROPY, micro_batches=3)
    outputs = kept.eval_batch(iter(micro_batches(0)), compute_loss=False, reduce_output=None)
    assert [tuple(one.shape) for one in outputs] == [(4, 5), (4, 5), (1, 5)]
    with pytest.raises(ConfigError, match=r"shapes \[1, 5\], \[4, 5\] cannot be averaged"):
        kept.eval_batch(iter(micro_batches(0)), compute_loss=False)


def test_a_count_is_averaged_as_a_number() -> None:
    def hits(outputs: torch.Tensor, labels: dict[str, torch.Tensor]) -> int:
        return len(labels["y"]) // 2

    data = [(torch.ones(size, 5), {"y": torch.zeros(size), "z": torch.zeros(1)}) for size in (4, 2)]
    assert pipeline_of(hits, micro_batches=2).eval_batch(iter(data)).item() == pytest.approx((2 * 4 + 1 * 2) / 6)


def test_the_mode_is_as_before_after_an_error() -> None:
    def fails(outputs: Any, labels: Any) -> Any:
        raise ZeroDivisionError

    pipeline = pipeline_of(fails)
    pipeline.module.train()
    pipeline.module[1].eval()
    with pytest.raises(ZeroDivisionError):
        pipeline.eval_batch(iter(micro_batches(0)))
    assert torch.is_grad_enabled()
    assert [module.training for module in pipeline.module] == [True, False, True, True]


def test_impossible_options_and_micro_batches_are_named() -> None:
    with pytest.raises(ConfigError, match="'avg' or None, not 'sum'"):
        pipeline_of().eval_batch(iter([]), reduce_output="sum")
    with pytest.raises(ConfigError, match="at least one micro-batch, not 0"):
        pipeline_of().eval_batch(iter([]), num_micro_batches=0)
    with pytest.raises(ConfigError, match="at least 1, not 0"):
        pipeline_of(micro_batches=0)
    with pytest.raises(ConfigError, match="takes an iterator, not a list"):
        pipeline_of().eval_batch(micro_batches(0))  # type: ignore[arg-type]
    with pytest.raises(DataError, match="one row per sample"):
        pipeline_of(lambda *_: 1.0).eval_batch(iter([(torch.ones(2, 5), torch.tensor(1))]))
    with pytest.raises(DataError, match="but a Tensor came"):
        pipeline_of().eval_batch(iter([torch.ones(3)]))
    with pytest.raises(StopIteration):
        pipeline_of().eval_batch(iter([]))
