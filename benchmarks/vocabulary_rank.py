"""The program of each rank of `benchmarks.vocabulary`.

torchrun --nproc_per_node=2 -m benchmarks.vocabulary_rank WAY MODEL POSITIONS FOLDER
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist
from transformers import AutoConfig

from dist_eval.model.output_embedding import OutputEmbedding
from dist_eval.process.lifetime import die_with_parent

_SAMPLING_SECONDS = 0.002


Score = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def mapped(model: Path) -> Score:
    """The evaluator's way."""
    output = OutputEmbedding(str(model), AutoConfig.from_pretrained(model))
    return lambda hidden, tokens: output.log_likelihoods(hidden, torch.arange(len(tokens)), tokens)[0]


def loaded(model: Path) -> Score:
    """That of a model with a language-model head, as Petals' client loads and uses it."""
    from safetensors.torch import load_file

    head = load_file(model / "model.safetensors")["lm_head.weight"].to(torch.float32)
    return lambda hidden, tokens: torch.log_softmax(hidden @ head.T, dim=1)[torch.arange(len(tokens)), tokens]


WAYS: dict[str, Callable[[Path], Score]] = {"mapped": mapped, "loaded": loaded}


def main() -> None:
    """Runs one rank."""
    die_with_parent()
    way, model, positions, folder = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    config, random = AutoConfig.from_pretrained(model), torch.Generator().manual_seed(dist.get_rank())
    hidden = torch.randn(positions, config.hidden_size, generator=random) / config.hidden_size**0.5
    tokens = torch.randint(0, config.vocab_size, (positions,), generator=random)
    before = _memory("smaps_rollup", "Pss")
    dist.barrier()
    start = time.perf_counter()
    with _peak_of_private_memory() as growth:
        score = WAYS[way](model)
        found = score(hidden, tokens)
    seconds = time.perf_counter() - start
    dist.barrier()  # all ranks hold their embedding now
    shared = _memory("smaps_rollup", "Pss") - before
    dist.barrier()
    del score
    result = {"seconds": seconds, "private": max(growth), "shared": shared, "log_likelihoods": found.tolist()}
    (folder / f"rank-{dist.get_rank()}.json").write_text(json.dumps(result), encoding="utf-8")
    dist.destroy_process_group()


@contextmanager
def _peak_of_private_memory() -> Iterator[list[int]]:
    """Yields a list of samples of what the memory of this process alone has grown by, in bytes."""
    before, growth, over = _memory("status", "RssAnon"), [0], threading.Event()

    def watch() -> None:
        while not over.wait(_SAMPLING_SECONDS):
            growth.append(_memory("status", "RssAnon") - before)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield growth
    finally:
        over.set()
        watcher.join()


def _memory(file: str, field: str) -> int:
    for line in Path("/proc/self", file).read_text(encoding="ascii").splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise KeyError(field)


if __name__ == "__main__":
    main()
