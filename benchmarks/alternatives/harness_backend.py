"""What people would write: the harness' Hugging Face backend around Petals' own causal model, or around a local one."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.alternatives.common import main


@dataclass(frozen=True)
class Spec:
    """What is evaluated, and how.

    Attributes:
        model: folder of the model and its tokenizer.
        tasks: names of tasks.
        include_path: folder with their files.
        limit: documents of each task.
        num_fewshot: examples before each document.
        initial_peers: addresses of the swarm; empty for a model in this process.
        dht_prefix: name under which the swarm announces the model.
        batch_size: requests in a batch.
    """

    model: str
    tasks: list[str]
    include_path: str
    limit: int
    num_fewshot: int
    initial_peers: list[str]
    dht_prefix: str
    batch_size: int


@dataclass(frozen=True)
class Result:
    """What was found.

    Attributes:
        seconds: from the first request to the last answer.
        answers: log-likelihoods of all requests, in order.
    """

    seconds: float
    answers: list[float]


def evaluate(spec: Spec, scratch_dir: Path) -> Result:
    """Runs the tasks."""
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

    model = causal_model(spec.model, spec.initial_peers, spec.dht_prefix, scratch_dir)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(spec.model)
    backend = Timed(pretrained=model, tokenizer=tokenizer, batch_size=spec.batch_size, device="cpu")
    with torch.no_grad():
        model(input_ids=torch.ones(1, 4, dtype=torch.long))  # the warm-up
    found = simple_evaluate(
        backend,
        tasks=spec.tasks,
        task_manager=TaskManager(include_path=spec.include_path, include_defaults=False),
        limit=spec.limit,
        num_fewshot=spec.num_fewshot,
        bootstrap_iters=0,
    )
    samples = [sample for task in spec.tasks for sample in found["samples"][task]]
    return Result(backend.seconds, [float(answer[0][0]) for sample in samples for answer in sample["resps"]])


def causal_model(model: str, initial_peers: list[str], dht_prefix: str, scratch_dir: Path) -> Any:
    """Loads Petals' own causal model on a swarm, or one in this process, where all cores compute it.

    Args:
        model: its folder.
        initial_peers: addresses of the swarm; empty for a model in this process.
        dht_prefix: name under which the swarm announces it.
        scratch_dir: folder for sockets.
    """
    if not initial_peers:
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(len(os.sched_getaffinity(0)))
        return AutoModelForCausalLM.from_pretrained(model)
    from dist_eval.swarm.hivemind_compat import prepare_hivemind

    prepare_hivemind(sockets=scratch_dir)
    import petals

    return petals.AutoDistributedModelForCausalLM.from_pretrained(
        model,
        initial_peers=initial_peers,
        dht_prefix=dht_prefix,
        show_route=False,
        torch_dtype=torch.float32,
        use_chunked_forward=False,  # of no effect in float32; "auto" imports what has no wheel for Python 3.12
    )


if __name__ == "__main__":
    main(evaluate, Spec)
