"""A common script: the harness' Hugging Face backend around Petals' own causal model or a local one."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.alternatives.common import causal_model


def run_tasks(
    scratch_dir: Path,
    *,
    model: str,
    tasks: list[str],
    include_path: str,
    limit: int,
    num_fewshot: int,
    initial_peers: list[str],
    dht_prefix: str,
    batch_size: int,
) -> dict[str, Any]:
    """Returns the log-likelihoods of all requests of some tasks, and the seconds that they took."""
    from lm_eval.evaluator import simple_evaluate
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager
    from transformers import PreTrainedTokenizerFast

    class Timed(HFLM):  # type: ignore[misc]
        seconds = 0.0

        def loglikelihood(self, requests: list[Any], disable_tqdm: bool = False) -> Any:
            start = time.perf_counter()
            answers = super().loglikelihood(requests, disable_tqdm)
            self.seconds += time.perf_counter() - start
            return answers

    language_model = causal_model(model, initial_peers, dht_prefix, scratch_dir)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(model)
    backend = Timed(pretrained=language_model, tokenizer=tokenizer, batch_size=batch_size, device="cpu")
    with torch.no_grad():
        language_model(input_ids=torch.ones(1, 4, dtype=torch.long))  # the warm-up
    evaluated = simple_evaluate(
        backend,
        tasks=tasks,
        task_manager=TaskManager(include_path=include_path, include_defaults=False),
        limit=limit,
        num_fewshot=num_fewshot,
        bootstrap_iters=0,
    )
    samples = [sample for task in tasks for sample in evaluated["samples"][task]]
    answers = [float(answer[0][0]) for sample in samples for answer in sample["resps"]]
    return {"seconds": backend.seconds, "answers": answers}
