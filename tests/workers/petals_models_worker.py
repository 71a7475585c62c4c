"""Prints what a program with Petals' own classes of models computes on a swarm: for each model figures, or a refusal.

    petals_models_worker.py FOLDER PEER...

The models are in subfolders of FOLDER, and the swarm announces them under the names of these.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from dist_eval import PetalsPipeline, evaluate, open_petals_classifier
from dist_eval.errors import EvaluationError

sys.path.insert(0, str(Path(__file__).parents[1]))
from tiny_models import VOCABULARY, random_checkpoint


def texts() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns token ids of texts, their lengths, and labels."""
    ids = torch.randint(0, VOCABULARY, (4, 60), generator=torch.Generator().manual_seed(1))
    return ids, torch.tensor([60, 33, 8, 1]), torch.tensor([0, 1, 2, 0])


def computed(model: Path, peers: list[str]) -> dict[str, Any] | str:
    ids, lengths, labels = texts()
    mask = (torch.arange(ids.shape[1]) < lengths.unsqueeze(1)).long()
    architecture = json.loads((model / "config.json").read_text())
    with tempfile.TemporaryDirectory() as checkpoint:
        random_checkpoint("deep_ptune", model_type=architecture["model_type"]).save(checkpoint)
        try:
            with open_petals_classifier(model, peers, checkpoint=checkpoint, dht_prefix=model.name) as classifier:
                result = evaluate(classifier, [{"input_ids": ids, "attention_mask": mask, "labels": labels}])
                pipeline = PetalsPipeline(classifier, torch.nn.CrossEntropyLoss())
                _, logits = pipeline.eval_batch(iter([((ids, mask), labels)]), return_logits=True)
                gradients = gradients_of(classifier, ids, lengths)
                return {"loss": result["loss"], "logits": logits.tolist(), "gradients": gradients.tolist()}
        except EvaluationError as error:
            return str(error)


def gradients_of(classifier: Any, ids: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Computes the gradients of all prompts with Petals' own client, as a loop of a user's tunes them."""
    classifier.config.pad_token_id = None  # single texts: the last token is the right one
    rows = [classifier(input_ids=ids[row : row + 1, :end]).logits for row, end in enumerate(lengths.tolist())]
    torch.cat(rows).square().sum().backward()
    base, config = classifier.transformer, classifier.config
    deep = base.intermediate_prompt_embeddings.weight.grad
    deep = deep.view(len(deep), config.num_hidden_layers, config.hidden_size).permute(1, 0, 2)
    return torch.cat([base.prompt_embeddings.weight.grad.flatten(), deep.flatten()])


def main() -> None:
    torch.set_num_threads(1)
    folder, peers = Path(sys.argv[1]), sys.argv[2:]
    print(json.dumps({model.name: computed(model, peers) for model in sorted(folder.iterdir())}))


if __name__ == "__main__":
    main()
