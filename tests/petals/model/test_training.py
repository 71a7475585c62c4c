"""Training with the usual tools: PEFT's prompts, and `Trainer`."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from dist_eval import AutoDistributedModelForSequenceClassification, PrivateSwarm, TunedCheckpoint

from .conftest import both, padded, texts


def test_prompts_of_peft_learn_as_with_the_model_in_this_process(family_swarms: dict[str, PrivateSwarm]) -> None:
    peft = pytest.importorskip("peft")
    ids, mask = padded(texts(), "right")
    found = []
    with both(family_swarms["llama"]) as models:
        for model in models:
            torch.manual_seed(0)
            config = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4)
            prompted = peft.get_peft_model(model, config).eval()
            loss = prompted(input_ids=ids, attention_mask=mask, labels=ids.masked_fill(mask == 0, -100)).loss
            loss.backward()
            [gradient] = [parameter.grad for parameter in prompted.parameters() if parameter.requires_grad]
            options = {"max_new_tokens": 3, "pad_token_id": 0, "use_cache": False}
            found.append((loss, gradient, prompted.generate(input_ids=ids[:1], attention_mask=mask[:1], **options)))
    torch.testing.assert_close(*(loss for loss, *_ in found))
    torch.testing.assert_close(*(gradient for _, gradient, _ in found), atol=1e-6, rtol=1e-5)
    assert torch.equal(*(generated for *_, generated in found))


def test_a_trainer_saves_and_reloads_the_best_prompts(family_swarms: dict[str, PrivateSwarm], tmp_path: Path) -> None:
    from transformers import Trainer, TrainingArguments

    rows = [{"input_ids": row, "labels": number % 3} for number, row in enumerate(texts() * 4)]

    def collate(part: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
        ids, mask = padded([row["input_ids"] for row in part], "right")
        return {"input_ids": ids, "attention_mask": mask, "labels": torch.tensor([row["labels"] for row in part])}

    settings = {"tuning_mode": "deep_ptune", "pre_seq_len": 3, "num_labels": 3}
    with both(family_swarms["llama"], AutoDistributedModelForSequenceClassification, **settings) as (model, _):
        arguments = TrainingArguments(
            str(tmp_path),
            max_steps=3,
            learning_rate=1.0,
            per_device_train_batch_size=4,
            eval_strategy="steps",
            save_strategy="steps",
            eval_steps=1,
            save_steps=1,
            load_best_model_at_end=True,
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
        )
        trainer = Trainer(model, arguments, train_dataset=rows, eval_dataset=rows, data_collator=collate)  # type: ignore[arg-type]
        trainer.train()
        best = TunedCheckpoint.load(str(trainer.state.best_model_checkpoint))
        assert torch.equal(model.score.weight, best.head)
        assert torch.equal(model.swarm_base.soft_prompts(), best.prompts)
        assert torch.equal(model.swarm_base.deep_prompts(), best.deep_prompts)
        assert len({TunedCheckpoint.load(folder).digest() for folder in tmp_path.glob("checkpoint-*")}) == 3
        assert trainer.predict(rows[:5]).predictions.shape == (5, 3)  # type: ignore[arg-type, union-attr]
