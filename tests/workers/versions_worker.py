"""Prints what the installed Petals computes for tiny models: their logits and gradients, or why it refuses.

versions_worker.py FOLDER            models in subfolders of FOLDER, computed in this process
versions_worker.py FOLDER PEER...    the same on a swarm that announces them under the names of their folders
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from dist_eval.distributed.rank_store import Topology
from dist_eval.errors import EvaluationError
from dist_eval.model.backends import load_on_host
from dist_eval.model.base_model_spec import BaseModelSpec
from dist_eval.model.checkpoint import TunedCheckpoint
from dist_eval.model.classifier import Classifier, load_on_swarm
from dist_eval.options.groups import ModelOptions
from dist_eval.process.lifetime import helpers_die_with_us, temporary_files_in, workspace
from dist_eval.process.logging_setup import silence_libraries

sys.path.insert(0, str(Path(__file__).parents[1]))
from tiny_models import VOCABULARY, random_checkpoint

Load = Callable[[BaseModelSpec, TunedCheckpoint], Classifier]


def here(base: BaseModelSpec, tuned: TunedCheckpoint) -> Classifier:
    classifier = load_on_host(base, tuned, Topology())
    assert isinstance(classifier, Classifier)
    return classifier


@contextmanager
def swarm(peers: list[str]) -> Iterator[Load]:
    with workspace() as folder, temporary_files_in(folder), helpers_die_with_us():
        from dist_eval.swarm.hivemind_compat import prepare_hivemind

        prepare_hivemind(sockets=folder)
        from dist_eval.swarm.client import join_swarm, leave_swarm
        from dist_eval.swarm.coverage import wait_until_covered

        dht = join_swarm(peers, 60)

        def load(base: BaseModelSpec, tuned: TunedCheckpoint) -> Classifier:
            prefix = base.dht_prefix
            wait_until_covered(dht, prefix, base.config.num_hidden_layers, 1, config=base.config)
            return load_on_swarm(base.name, tuned, dht, dht_prefix=prefix, request_timeout=60, max_retries=3)

        yield load
        leave_swarm(dht)


def computed(load: Load, model: Path) -> dict[str, Any] | str:
    try:
        architecture = json.loads((model / "config.json").read_text())
        tuned = random_checkpoint("deep_ptune", model_type=architecture["model_type"])
        base = BaseModelSpec.of(ModelOptions(model=str(model)), tuned)
        leaves = {name: getattr(tuned, name).requires_grad_() for name in ("prompts", "deep_prompts")}
        backbone = load(base, tuned).backbone
        generator = torch.Generator().manual_seed(1)
        ids, lengths = torch.randint(0, VOCABULARY, (4, 60), generator=generator), torch.tensor([60, 33, 8, 1])
        logits = Classifier(backbone, tuned).logits(ids, lengths)
        scores = Classifier(backbone, replace(tuned, **leaves)).scores(ids, lengths)
        gradients = torch.autograd.grad(scores.square().sum(), list(leaves.values()))
        return {"logits": logits.tolist(), "gradients": torch.cat([part.flatten() for part in gradients]).tolist()}
    except EvaluationError as error:
        return str(error)


def main() -> None:
    silence_libraries()
    torch.set_num_threads(1)
    folder, peers = Path(sys.argv[1]), sys.argv[2:]
    models = sorted(path for path in folder.iterdir() if path.is_dir())
    if peers:
        with swarm(peers) as load:
            answers = {model.name: computed(load, model) for model in models}
    else:
        answers = {model.name: computed(here, model) for model in models}
    print(json.dumps(answers))


if __name__ == "__main__":
    main()
