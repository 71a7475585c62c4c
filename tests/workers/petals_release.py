"""What runs with Petals' release, in the environment `benchmarks/petals-2.2`: a server of it, and its client.

python petals_release.py SOCKETS [options of petals.cli.run_server]     a server
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))
from benchmarks.alternatives.petals_models import import_petals, load_classifier


def classify(
    scratch_dir: Path,
    *,
    model: str,
    checkpoint: str,
    initial_peers: list[str],
    dht_prefix: str,
    texts: list[list[int]],
    save_to: str,
) -> dict[str, Any]:
    """Returns the logits of texts and the gradients of all prompts by Petals' client, as a user's loop tunes them.

    The model is saved to a folder, as Petals' users save what they have tuned.
    """
    import torch

    torch.set_num_threads(1)
    classifier = load_classifier(model, checkpoint, initial_peers, dht_prefix, scratch_dir)
    classifier.save_pretrained(save_to, safe_serialization=True)
    classifier.config.pad_token_id = None  # single texts: the last token is the right one
    logits = torch.cat([classifier(input_ids=torch.tensor([text])).logits for text in texts])
    logits.square().sum().backward()
    base, config = classifier.transformer, classifier.config
    deep = base.intermediate_prompt_embeddings.weight.grad
    deep = deep.view(len(deep), config.num_hidden_layers, config.hidden_size).permute(1, 0, 2)
    gradients = torch.cat([base.prompt_embeddings.weight.grad.flatten(), deep.flatten()])
    return {"logits": logits.tolist(), "gradients": gradients.tolist()}


def serve() -> None:
    """Runs a server until it is stopped."""
    from dist_eval.process.lifetime import die_with_parent, helpers_die_with_us

    die_with_parent()
    import_petals(Path(sys.argv.pop(1)))
    from petals.cli import run_server

    run_server.validate_version = lambda: None  # it asks a package index, without a time limit
    with helpers_die_with_us():
        run_server.main()


if __name__ == "__main__":
    serve()
