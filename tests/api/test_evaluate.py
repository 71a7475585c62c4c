"""`evaluate(model, eval_dataloader)` on one process and under torchrun."""

from __future__ import annotations

import copy
import json
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from conftest import Launcher
from sklearn.metrics import accuracy_score, f1_score, log_loss, precision_score, recall_score
from torch import nn
from torch.utils.data import DataLoader

import dist_eval
from dist_eval import evaluate
from dist_eval.errors import ConfigError, DataError, ModelOutputError
from dist_eval.model.user_model import fingerprint_of

WORKERS = Path(__file__).parents[1] / "workers"
sys.path.insert(0, str(WORKERS))
from loop_worker import Bag, Texts, result_of  # noqa: E402


def test_all_ranks_get_the_figures_that_one_process_gets(launcher: Launcher, tmp_path: Path) -> None:
    result = launcher.run(str(WORKERS / "loop_worker.py"), str(tmp_path), ranks=2)
    assert result.returncode == 0, result.stderr
    ranks = [json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in range(2)]
    alone, few = (result_of(Bag(), DataLoader(texts, 5)) for texts in (Texts(), Texts(1)))
    for known in ranks:
        for way in ("plain", "again", "distributed", "epoch 0", "epoch 1", "data parallel"):
            assert known[way].keys() == alone.keys()
            assert known[way]["predictions"] == alone["predictions"]
            for name, value in known[way].items():
                assert value == pytest.approx(alone[name], rel=1e-6), (way, name)
        assert known["plain"] == known["again"] == alone, "to the last bit"
        assert known["few"]["examples"] == 1
        assert known["few"]["predictions"] == few["predictions"]
        assert known["modes"] == [True, True, False, True]
        assert "'labels' is missing in a list" in known["tuples"]
    failures = [known["failure"] for known in ranks]
    assert failures.count("RuntimeError: the model broke") == 1
    assert sum("failed: RuntimeError: the model broke" in failure for failure in failures) == 1
    assert [known["ranks"] for known in ranks] == [2, 2]


class Table(nn.Module):
    """Answers with logits by the first token."""

    def __init__(self, logits: torch.Tensor) -> None:
        super().__init__()
        self.logits = nn.Parameter(logits)

    def forward(self, input_ids: torch.Tensor) -> Mapping[str, torch.Tensor]:
        return {"logits": self.logits[input_ids[:, 0]]}


def batches_of(labels: torch.Tensor, size: int) -> list[dict[str, torch.Tensor]]:
    ids = torch.arange(len(labels)).unsqueeze(1)
    return [{"input_ids": i, "labels": y} for i, y in zip(ids.split(size), labels.split(size), strict=True)]


def test_the_figures_are_those_of_scikit_learn_over_all_examples() -> None:
    generator = torch.Generator().manual_seed(2)
    logits, labels = torch.randn(50, 4, generator=generator), torch.randint(0, 4, (50,), generator=generator)
    result = evaluate(Table(logits), batches_of(labels, 8))
    predicted, probabilities = logits.argmax(1), logits.double().softmax(1)
    assert result["examples"] == 50
    assert result["accuracy"] == accuracy_score(labels, predicted)
    for average in ("macro", "weighted"):
        for name, figure in (("f1", f1_score), ("precision", precision_score), ("recall", recall_score)):
            assert result[f"{name}_{average}"] == pytest.approx(figure(labels, predicted, average=average))
    assert result["loss"] == pytest.approx(log_loss(labels, probabilities))
    assert "predictions" not in result
    assert (result["f1"], result["recall"]) == (result["f1_weighted"], result["recall_weighted"])


def test_a_figure_that_the_data_leave_undefined_is_nan() -> None:
    result = evaluate(Table(torch.tensor([[1.0, 0.0]])), batches_of(torch.tensor([0]), 1))
    assert math.isnan(result["roc_auc"])
    assert result["accuracy"] == 1.0


@pytest.mark.parametrize(
    ("logits", "labels", "error", "message"),
    [
        ([[0.0, 1.0]] * 2, [1, 2], DataError, "Example 1 .* label 2, is outside the 2 classes"),
        ([[0.0, 1.0]] * 2, [1, -100], DataError, "Example 1 .* label -100, is outside the 2 classes"),
        ([[0.0, 1.0], [0.0, math.nan]], [1, 1], ModelOutputError, "Example 1 .* not finite"),
        ([[0.0, 1.0]] * 2, [0.5, 1.0], DataError, "labels of a batch are torch.float32"),
        ([[0.0, 1.0]], [], DataError, "yields no example"),
        ([[[0.0, 1.0]]], [0], ModelOutputError, r"shape \[1, 1, 2\] instead of \[1, num_labels\]"),
    ],
)
def test_what_cannot_be_evaluated_is_one_clear_error(
    logits: Any, labels: list[Any], error: type[Exception], message: str
) -> None:
    model = Table(torch.tensor(logits)).train()
    with pytest.raises(error, match=message):
        evaluate(model, batches_of(torch.tensor(labels), 2) if labels else [])
    assert model.training and torch.is_grad_enabled()


def test_an_output_without_logits_is_named() -> None:
    class Mute(nn.Module):
        def forward(self, input_ids: torch.Tensor) -> SimpleNamespace:
            return SimpleNamespace(scores=input_ids)

    with pytest.raises(ModelOutputError, match="a SimpleNamespace without logits"):
        evaluate(Mute(), batches_of(torch.tensor([0]), 1))


def test_what_the_model_does_not_take_stays_out() -> None:
    batches = [{**batch, "text": ["a"], "idx": torch.tensor([7])} for batch in batches_of(torch.tensor([0, 1]), 1)]
    assert evaluate(Table(torch.eye(2)), batches)["accuracy"] == 1.0


@pytest.mark.parametrize("side", ["right", "left"])
def test_a_classifier_of_hugging_face_is_given_its_mask(side: str) -> None:
    model = small_classifier()
    positions = torch.arange(9).expand(10, -1)
    batch = {name: torch.stack([text[name] for text in texts(side=side)]) for name in ("input_ids", "attention_mask")}
    with torch.no_grad():
        model.classifier.bias -= model.eval()(**batch, position_ids=positions).logits.mean(0)  # no class for all texts
        expected = model(**batch, position_ids=positions).logits.argmax(1)
    result = evaluate(model, DataLoader(texts(side=side), 4), return_predictions=True)
    assert result["predictions"].tolist() == expected.tolist()
    assert len({*expected.tolist()}) > 1


class Merging(nn.Module):
    """Changes its weight when its mode changes, as LoRA layers that merge themselves do."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = 1.0

    def train(self, mode: bool = True) -> Merging:
        if mode != self.training:
            self.weight += -1.0 if mode else 1.0
        return super().train(mode)


def test_a_module_that_acts_on_its_mode_sees_both_changes() -> None:
    model = Table(torch.eye(2))
    model.merging = Merging()
    evaluate(model, batches_of(torch.tensor([0, 1]), 1))
    assert model.merging.weight == 1.0 and model.merging.training


def test_wrappers_are_looked_through_and_sharded_models_refused() -> None:
    class FSDPTable(Table):
        pass

    compiled = nn.Module()
    compiled._orig_mod = Table(torch.eye(2))
    assert evaluate(compiled, batches_of(torch.tensor([0, 1]), 1))["accuracy"] == 1.0
    with pytest.raises(ConfigError, match="sharded over the ranks"):
        evaluate(FSDPTable(torch.eye(2)), batches_of(torch.tensor([0, 1]), 1))


def test_it_is_a_public_name() -> None:
    assert dist_eval.evaluate is evaluate


def texts(rows: int = 10, pad: int = 0, side: str = "right") -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(4)
    found = []
    for row in range(rows):
        length = 3 + row % 5
        ids = torch.randint(1, 100, (length,), generator=generator)
        padding = torch.full((9 - length,), pad)
        parts = [(ids, torch.ones(length, dtype=torch.int64)), (padding, torch.zeros(9 - length, dtype=torch.int64))]
        parts = parts if side == "right" else parts[::-1]
        found.append(
            {
                "input_ids": torch.cat([part for part, _ in parts]),
                "attention_mask": torch.cat([mask for _, mask in parts]),
                "labels": torch.tensor(row % 3),
            }
        )
    return found


def small_classifier() -> nn.Module:
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    return BertForSequenceClassification(BertConfig(vocab_size=100, num_labels=3, initializer_range=1.0, **sizes))


def the_familiar_loop(model: nn.Module) -> list[int]:
    model.eval()
    with torch.no_grad():
        batches = DataLoader(texts(), 4)
        return [int(row) for batch in batches for row in model(**batch).logits.argmax(1)]


class Counting(nn.Module):
    """Keeps something in the state dict that is no tensor."""

    def get_extra_state(self) -> Any:
        return {"calls": 3, "scales": [torch.ones(2), "x"], "other": object()}

    def set_extra_state(self, state: Any) -> None:
        pass


def quantized(model: nn.Module, tmp_path: Path) -> nn.Module:
    return torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)


def with_extra_state(model: nn.Module, tmp_path: Path) -> nn.Module:
    model.counting = Counting()
    return model


def offloaded(model: nn.Module, tmp_path: Path) -> nn.Module:
    from accelerate import cpu_offload, disk_offload

    disk_offload(model.bert, tmp_path, execution_device="cpu")
    cpu_offload(model.classifier, execution_device="cpu")
    assert any(parameter.is_meta for parameter in model.parameters())
    return model


def with_a_lora_adapter(model: nn.Module, tmp_path: Path) -> nn.Module:
    from peft import LoraConfig, get_peft_model

    return get_peft_model(model, LoraConfig(task_type="SEQ_CLS", init_lora_weights=False))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("changed", [quantized, with_extra_state, offloaded, with_a_lora_adapter])
def test_a_model_that_the_familiar_loop_takes_is_taken(changed: Any, tmp_path: Path) -> None:
    model = changed(small_classifier(), tmp_path)
    rows = [{**text, "text": "a text", "idx": torch.tensor(row)} for row, text in enumerate(texts())]
    result = evaluate(model, DataLoader(rows, 4), return_predictions=True)
    assert result["predictions"].tolist() == the_familiar_loop(model)
    assert len(set(the_familiar_loop(model))) > 1


def test_a_module_around_another_one_is_given_all_tensors() -> None:
    class Pooled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Table(torch.eye(2))

        def forward(self, **inputs: Any) -> Mapping[str, torch.Tensor]:
            assert inputs.keys() == {"input_ids", "attention_mask"}
            return self.inner(inputs["input_ids"] * inputs["attention_mask"])  # type: ignore[no-any-return]

    mask = torch.zeros(1, 1, dtype=torch.int64)
    batches = [{**batch, "attention_mask": mask} for batch in batches_of(torch.tensor([0, 0]), 1)]
    assert evaluate(Pooled(), batches)["accuracy"] == 1.0


def test_a_forward_that_takes_any_name_is_given_tensors_only() -> None:
    class TakesAny(Table):
        def forward(self, input_ids: torch.Tensor, **others: Any) -> Mapping[str, torch.Tensor]:
            assert others.keys() == {"idx"}
            return super().forward(input_ids)

    batches = [{**batch, "text": ["a"], "idx": torch.tensor([7])} for batch in batches_of(torch.tensor([0, 1]), 1)]
    assert evaluate(TakesAny(torch.eye(2)), batches)["accuracy"] == 1.0


@pytest.mark.parametrize("changed", [quantized, with_extra_state, offloaded])
def test_weights_that_differ_between_ranks_differ_in_the_fingerprint(changed: Any, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    model = small_classifier()
    other = copy.deepcopy(model)
    assert fingerprint_of(changed(copy.deepcopy(model), tmp_path / "a")) == fingerprint_of(
        changed(copy.deepcopy(model), tmp_path / "b")
    )
    with torch.no_grad():
        other.bert.encoder.layer[1].output.dense.weight.add_(1.0)
    differs = fingerprint_of(changed(model, tmp_path / "a")) != fingerprint_of(changed(other, tmp_path / "b"))
    assert differs is (changed is not offloaded)  # whose weights are not at hand
