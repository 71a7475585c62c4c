"""Evaluators and pipelines of other libraries, beside the same model in this process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from harness_tasks import TASKS, WORDS, make_tasks, make_tokenizer
from tiny_models import VOCABULARY
from transformers import AutoModelForSequenceClassification, pipeline

from dist_eval import AutoDistributedModelForSequenceClassification, PrivateSwarm

from .conftest import both

SENTENCES = [" ".join(WORDS[:count]) for count in (5, 2, 9, 3)]


def test_pipelines(family_swarms: dict[str, PrivateSwarm]) -> None:
    tokenizer, swarm = make_tokenizer(VOCABULARY), family_swarms["llama"]
    head = {"num_labels": 3, "pad_token_id": tokenizer.pad_token_id}
    here = AutoModelForSequenceClassification.from_pretrained(swarm.model, **head)
    with both(swarm, AutoDistributedModelForSequenceClassification, **head) as (classifier, _), torch.no_grad():
        classifier.score.weight.copy_(here.score.weight)
        options: dict[str, Any] = {"tokenizer": tokenizer, "batch_size": 2}
        scores = [pipeline("text-classification", model=m, **options)(SENTENCES) for m in (classifier, here)]
    assert [found["label"] for found in scores[0]] == [expected["label"] for expected in scores[1]]
    assert [found["score"] for found in scores[0]] == pytest.approx([expected["score"] for expected in scores[1]])
    with both(swarm) as models:
        generators = [pipeline("text-generation", model=model, **options) for model in models]
        written = [generate(SENTENCES, max_new_tokens=4, do_sample=False) for generate in generators]
    assert written[0] == written[1]


@pytest.mark.slow
def test_the_evaluator_of_lm_eval(
    family_swarms: dict[str, PrivateSwarm], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lm_eval.evaluator import simple_evaluate
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    monkeypatch.setenv("DISABLE_MULTIPROC", "1")
    tasks = TaskManager(include_path=str(make_tasks(tmp_path)), include_defaults=False)
    options: dict[str, Any] = {"tasks": [*TASKS], "task_manager": tasks, "num_fewshot": 1, "bootstrap_iters": 0}
    with both(family_swarms["llama"]) as models:
        found, expected = (
            dict(simple_evaluate(HFLM(pretrained=m, tokenizer=make_tokenizer(VOCABULARY), batch_size=4), **options))
            for m in models
        )
    assert found["config"]["model"] == expected["config"]["model"]
    for name in TASKS:
        for metric, value in expected["results"][name].items():
            wanted = pytest.approx(value, rel=1e-5, nan_ok=True) if isinstance(value, float) else value
            assert found["results"][name][metric] == wanted, (name, metric)
