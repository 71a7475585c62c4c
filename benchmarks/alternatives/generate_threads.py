"""What people would write: Petals' own `model.generate`, one prompt in each of some threads."""

from __future__ import annotations

import gc
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.alternatives.common import main
from benchmarks.alternatives.harness_backend import causal_model


@dataclass(frozen=True)
class Spec:
    """What is generated, and how.

    Attributes:
        model: folder of the model and its tokenizer.
        prompts: the prompts.
        new_tokens: tokens of each text.
        threads: prompts at a time.
        initial_peers: addresses of the swarm; empty for a model in this process.
        dht_prefix: name under which the swarm announces the model.
    """

    model: str
    prompts: list[str]
    new_tokens: int
    threads: int
    initial_peers: list[str]
    dht_prefix: str


@dataclass(frozen=True)
class Result:
    """What was found.

    Attributes:
        seconds: from the first prompt to the last text.
        texts: the text after each prompt.
    """

    seconds: float
    texts: list[str]


def evaluate(spec: Spec, scratch_dir: Path) -> Result:
    """Generates the texts."""
    from transformers import PreTrainedTokenizerFast

    model = causal_model(spec.model, spec.initial_peers, spec.dht_prefix, scratch_dir)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(spec.model)

    def text_after(prompt: str) -> str:
        ids = tokenizer(prompt, return_tensors="pt")["input_ids"]
        with torch.inference_mode():
            found = model.generate(ids, max_new_tokens=spec.new_tokens, min_new_tokens=spec.new_tokens, do_sample=False)
        return str(tokenizer.decode(found[0, ids.shape[1] :], skip_special_tokens=True))

    text_after(spec.prompts[0])  # the warm-up
    gc.disable()  # Petals' session, collected in the event loop's thread, closes itself there and waits for ever
    start = time.perf_counter()
    with ThreadPoolExecutor(spec.threads) as pool:
        texts = list(pool.map(text_after, spec.prompts))
    return Result(time.perf_counter() - start, texts)


if __name__ == "__main__":
    main(evaluate, Spec)
