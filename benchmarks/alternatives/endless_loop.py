"""Another client of a swarm: a loop over one batch that never ends, with one request at a time.

It prints the time when each batch is finished, in seconds since 1970.
"""

from __future__ import annotations

import time
from pathlib import Path

import torch

from benchmarks.alternatives.common import Spec, classify, main, swarm_model, tokenized


def evaluate(spec: Spec, scratch_dir: Path) -> None:
    """Classifies the dataset in one batch, again and again."""
    rows, _ = tokenized(spec)
    input_ids, mask = (torch.stack([row[name] for row in rows]) for name in ("input_ids", "attention_mask"))
    with swarm_model(spec) as model, torch.no_grad():
        while True:
            classify(model, input_ids, mask)
            print(time.time(), flush=True)


if __name__ == "__main__":
    main(evaluate)
