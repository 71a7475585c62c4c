"""A common script: Petals' own `model.generate` in several threads, one prompt each."""

from __future__ import annotations

import gc
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from benchmarks.alternatives.common import causal_model


def generate(
    scratch_dir: Path,
    *,
    model: str,
    prompts: list[str],
    new_tokens: int,
    in_flight: int,
    initial_peers: list[str],
    dht_prefix: str,
) -> dict[str, Any]:
    """Generates the text after each prompt; without peers by a model in this process."""
    from transformers import PreTrainedTokenizerFast

    language_model = causal_model(model, initial_peers, dht_prefix, scratch_dir)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(model)

    def text_after(prompt: str) -> str:
        ids = tokenizer(prompt, return_tensors="pt")["input_ids"]
        with torch.inference_mode():
            generated = language_model.generate(
                ids, max_new_tokens=new_tokens, min_new_tokens=new_tokens, do_sample=False
            )
        return str(tokenizer.decode(generated[0, ids.shape[1] :], skip_special_tokens=True))

    text_after(prompts[0])  # the warm-up
    gc.disable()  # Petals' session, collected in the event loop's thread, closes itself there and waits for ever
    start = time.perf_counter()
    with ThreadPoolExecutor(in_flight) as pool:
        texts = list(pool.map(text_after, prompts))
    return {"seconds": time.perf_counter() - start, "answers": texts}
