"""The order of the examples, initial values, and updates: their sums over ranks, and the state after a failure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from samples import tokenized_digits
from torch.nn.functional import cross_entropy

from dist_eval import demo
from dist_eval.distributed.collectives import process_group
from dist_eval.distributed.rank_store import RankStore, Topology
from dist_eval.errors import ModelOutputError
from dist_eval.inference.in_flight import Window
from dist_eval.model.classifier import Classifier, load_locally
from dist_eval.options.tuning import TuningConfig
from dist_eval.petals.base_model.config import read_base_config
from dist_eval.petals.model.checkpoint import TunedCheckpoint
from dist_eval.tuning import trainer as trainer_module
from dist_eval.tuning.trainer import Trainer, empty_checkpoint, global_batches, initial_parameters, snapshot

NAMES = ["a", "b", "c"]


def config_for(**options: Any) -> TuningConfig:
    return TuningConfig(model=str(demo.BASE_MODEL), dataset="train.csv", backend="local", pre_seq_len=4, **options)


def first_checkpoint(config: TuningConfig) -> TunedCheckpoint:
    empty = empty_checkpoint(config, read_base_config(str(config.model)), NAMES, base_model=config.model)
    words = load_locally(str(config.model), empty).backbone.word_embeddings.weight
    return initial_parameters(empty, words, config.seed)


@pytest.fixture
def make_trainer(tmp_path: Path) -> Any:
    data = tokenized_digits(tmp_path, rows=12, classes=len(NAMES))
    topology = Topology()

    def make(updates: int = 4, budget: int = 64, **options: Any) -> Trainer:
        config = config_for(**options)
        classifier = load_locally(str(config.model), first_checkpoint(config))
        device = torch.device("cpu")
        return Trainer(
            config, classifier, data, topology, updates=updates, token_budget=budget, window=Window(2), device=device
        )

    with process_group(topology, RankStore(topology, "trainer"), 60.0):
        yield make


@settings(max_examples=60)
@given(examples=st.integers(1, 300), size=st.integers(1, 64), seed=st.integers(0, 2**31), epoch=st.integers(0, 50))
def test_every_epoch_deals_each_example_once(examples: int, size: int, seed: int, epoch: int) -> None:
    batches = global_batches(examples, size, seed=seed, epoch=epoch)
    assert sorted(np.concatenate(batches).tolist()) == list(range(examples))
    assert {len(batch) for batch in batches[:-1]} <= {size}
    again = global_batches(examples, size, seed=seed, epoch=epoch)
    assert all(np.array_equal(one, other) for one, other in zip(batches, again, strict=True))


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    orders = {tuple(global_batches(50, 50, seed=seed, epoch=epoch)[0]) for seed in range(3) for epoch in range(3)}
    assert len(orders) == 9


@pytest.mark.parametrize("mode", ["ptune", "deep_ptune"])
def test_prompts_begin_as_words_and_deep_prompts_at_zero(mode: str) -> None:
    config = config_for(tuning_mode=mode)
    tuned = first_checkpoint(config)
    words = load_locally(str(config.model), tuned).backbone.word_embeddings.weight
    assert tuned.prompts is not None
    assert all((words == prompt).all(dim=1).any() for prompt in tuned.prompts)
    assert (tuned.tuning_mode, tuned.pre_seq_len, tuned.num_labels) == (mode, 4, 3)
    if mode == "deep_ptune":
        assert tuned.deep_prompts is not None and tuned.deep_prompts.shape == (4, 4, 96)
        assert not tuned.deep_prompts.any()
    assert first_checkpoint(config).digest() == tuned.digest()
    assert first_checkpoint(replace(config, seed=1)).digest() != tuned.digest()


def by_hand(config: TuningConfig, trainer: Trainer, rows: np.ndarray, updates: int) -> TunedCheckpoint:
    """The same updates as a loop without our parts: one text at a time, torch's own backward."""
    tuned = first_checkpoint(config)
    tensors = [tensor.clone().requires_grad_() for tensor in (tuned.head, tuned.prompts, tuned.deep_prompts)]  # type: ignore[union-attr]
    scratch_dir = replace(tuned, head=tensors[0], prompts=tensors[1], deep_prompts=tensors[2])
    classifier = Classifier(load_locally(str(config.model), scratch_dir).backbone, scratch_dir)
    optimizer = torch.optim.AdamW(tensors, lr=config.learning_rate, weight_decay=config.weight_decay)
    for update in range(updates):
        optimizer.param_groups[0]["lr"] = config.learning_rate * (updates - update) / updates
        for row in rows:
            ids, lengths = map(torch.from_numpy, trainer._data.padded(np.array([row])))
            label = torch.tensor([int(trainer._data.labels[row])])
            (cross_entropy(classifier.scores(ids, lengths), label) / len(rows)).backward()
        torch.nn.utils.clip_grad_norm_(tensors, config.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad()
    return snapshot(scratch_dir)


def assert_close(one: TunedCheckpoint, other: TunedCheckpoint) -> None:
    for name in ("head", "prompts", "deep_prompts"):
        torch.testing.assert_close(getattr(one, name), getattr(other, name), rtol=1e-4, atol=1e-5)


def test_updates_are_those_of_a_plain_loop(make_trainer: Callable[..., Trainer]) -> None:
    options = {"warmup": 0.0, "weight_decay": 0.1, "max_grad_norm": 0.05}
    trainer, rows = make_trainer(updates=3, **options), np.arange(12)
    losses = [trainer.update(rows).loss_sum for _ in range(3)]
    assert losses == sorted(losses, reverse=True)
    assert_close(snapshot(trainer.tuned), by_hand(config_for(**options), trainer, rows, 3))


def test_going_on_from_a_state_gives_the_same_bits(make_trainer: Callable[..., Trainer]) -> None:
    rows = [np.arange(12), np.arange(5), np.arange(3, 9), np.arange(7)]
    undisturbed = make_trainer()
    for one in rows:
        undisturbed.update(one)
    first, second = make_trainer(), make_trainer()
    for one in rows[:2]:
        first.update(one)
    second.restore(*first.state())
    assert second.learning_rate == first.learning_rate
    for one in rows[2:]:
        second.update(one)
    assert snapshot(second.tuned).digest() == snapshot(undisturbed.tuned).digest()


@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_mixed_precision_learns_much_the_same(precision: str, make_trainer: Callable[..., Trainer]) -> None:
    exact, mixed = make_trainer(updates=8), make_trainer(updates=8, precision=precision)
    ours, theirs = ([trainer.update(np.arange(12)).loss_sum for _ in range(8)] for trainer in (exact, mixed))
    assert theirs[0] == pytest.approx(ours[0], rel=0.02)
    assert theirs != ours
    assert ours[-1] < 0.9 * ours[0] and theirs[-1] < 0.9 * theirs[0]


def test_a_gradient_that_is_not_finite_is_an_error(make_trainer: Callable[..., Trainer]) -> None:
    trainer = make_trainer()
    with torch.no_grad():
        trainer.tuned.head[0, 0] = torch.inf
    with pytest.raises(ModelOutputError, match="not finite: try a lower --learning-rate"):
        trainer.update(np.arange(12))


@pytest.mark.parametrize("budget", [64, 4096])
def test_a_scale_that_is_too_large_loses_no_update(budget: int, make_trainer: Callable[..., Trainer]) -> None:
    exact, scaled = make_trainer(updates=3, budget=budget), make_trainer(updates=3, precision="float16", budget=budget)
    scaled._scaler = torch.amp.GradScaler("cpu", init_scale=2.0**19)
    for _ in range(3):  # a dropped one would change the learning rate, and the tensors by as much
        ours, theirs = exact.update(np.arange(12)), scaled.update(np.arange(12))
        assert theirs.loss_sum == pytest.approx(ours.loss_sum, rel=0.02)
        assert scaled.learning_rate == exact.learning_rate
    assert scaled._scaler.get_scale() < 2.0**19


def test_a_stop_does_not_wait_for_a_scale_that_fits(make_trainer: Callable[..., Trainer]) -> None:
    trainer = make_trainer(precision="float16")
    trainer._scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24)
    before = snapshot(trainer.tuned).digest()
    update = trainer.update(np.arange(12), stopping=lambda: True)
    assert (update.is_applied, update.is_last) == (False, True)
    assert trainer._scaler.get_scale() == 2.0**23 and snapshot(trainer.tuned).digest() == before


def test_no_scale_makes_a_gradient_finite_that_is_not(
    make_trainer: Callable[..., Trainer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer_module, "_MOST_SCALES", 3)
    trainer = make_trainer(precision="float16")
    with torch.no_grad():
        trainer.tuned.head[0, 0] = torch.inf
    before = snapshot(trainer.tuned).digest()
    with pytest.raises(ModelOutputError, match="or --precision float32"):
        trainer.update(np.arange(12))
    assert snapshot(trainer.tuned).digest() == before


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_it_computes_much_the_same(tmp_path: Path, make_trainer: Callable[..., Trainer]) -> None:
    exact, topology, config = make_trainer(), Topology(), config_for()
    data = tokenized_digits(tmp_path, rows=12, classes=len(NAMES))
    classifier = load_locally(str(config.model), first_checkpoint(config))
    device = torch.device("cuda")
    there = Trainer(config, classifier, data, topology, updates=4, token_budget=64, window=Window(2), device=device)
    ours, theirs = exact.update(np.arange(12)), there.update(np.arange(12))
    assert theirs.loss_sum == pytest.approx(ours.loss_sum, rel=0.02)
    ids, lengths = map(torch.from_numpy, data.padded(np.arange(3)))
    assert Classifier(classifier.backbone, snapshot(there.tuned)).logits(ids, lengths).device.type == "cpu"
