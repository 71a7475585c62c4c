"""Petals' own classes of models, which need its release and packages of 2023: the environment `benchmarks/petals-2.2`.

It has no dist_eval: processes in it find the modules of this repository in their current folder, and only modules that
need nothing but the standard library and hivemind can be imported there.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from dist_eval.process.lifetime import helpers_die_with_us


def import_petals(sockets: Path) -> Any:
    """Imports Petals' release on a current hivemind.

    Args:
        sockets: folder for the Unix sockets of the p2p daemon.
    """
    from dist_eval.petals.client.hivemind_compat import prepare_hivemind

    prepare_hivemind(sockets=sockets)
    import hivemind
    from hivemind.p2p import P2P
    from hivemind.utils.asyncio import anext
    from hivemind.utils.nested import nested_compare

    # what only Petals' client imports from hivemind's top level
    hivemind.P2P, hivemind.anext, hivemind.nested_compare = P2P, anext, nested_compare
    import petals

    return petals


def load_classifier(model: str, checkpoint: str, initial_peers: list[str], dht_prefix: str, scratch_dir: Path) -> Any:
    """Loads Petals' classifier on a swarm, with the tuned prompts and head of a checkpoint of dist_eval.

    Load it before a process group is opened: it forks, and the fork would inherit connections.
    """
    from safetensors.torch import load_file

    tuned = json.loads(Path(checkpoint, "config.json").read_text(encoding="utf-8"))
    settings = {name: tuned[name] for name in ("tuning_mode", "pre_seq_len", "id2label", "label2id")}
    kind = import_petals(scratch_dir).AutoDistributedModelForSequenceClassification
    classifier = _loaded(kind, model, initial_peers, dht_prefix, **settings)
    unknown = classifier.load_state_dict(load_file(Path(checkpoint, "model.safetensors")), strict=False).unexpected_keys
    if unknown:
        raise ValueError(f"Petals' classifier has no {', '.join(unknown)}.")
    return classifier.eval()


def load_language_model(model: str, initial_peers: list[str], dht_prefix: str, scratch_dir: Path) -> Any:
    """Loads Petals' causal model on a swarm."""
    kind = import_petals(scratch_dir).AutoDistributedModelForCausalLM
    # of no effect in float32; "auto" imports what has no wheel for Python 3.12
    return _loaded(kind, model, initial_peers, dht_prefix, use_chunked_forward=False)


def _loaded(kind: Any, model: str, initial_peers: list[str], dht_prefix: str, **settings: Any) -> Any:
    with helpers_die_with_us():
        return kind.from_pretrained(
            model,
            initial_peers=initial_peers,
            dht_prefix=dht_prefix,
            show_route=False,
            torch_dtype=torch.float32,
            **settings,
        )
