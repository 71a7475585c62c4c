"""Copies the tuned tensors of a swarm model out and in, and saves them layer by layer.

On disk each layer is a separate safetensors file, so a model can load only some of them. Layer 0 contains the prompts
before the text, layers 1 to n the deep prompts of the n blocks, and layer n + 1 the head. Each file's metadata contain
its layer and the number of blocks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dist_eval.errors import CheckpointError, ConfigError, one_line
from dist_eval.petals.base_model.problem_types import class_names, problem_from
from dist_eval.petals.model.checkpoint import ARCHITECTURE, TunedCheckpoint
from dist_eval.petals.model.checkpoint_files import HEAD, PROMPTS
from dist_eval.process.files import BY_UMASK, write_atomically

_DEEP = "deep_prompts"
_NAME = "layer_{:02d}-model_states.safetensors"


def tuned_tensors_of(model: Any) -> TunedCheckpoint:
    """Copies the tuned tensors out of a swarm model; without a head, the checkpoint's head has no rows."""
    config, base = model.config, model.swarm_base
    linear = _head_of(model)
    head = torch.empty(0, config.hidden_size) if linear is None else linear.weight

    def copied(tensor: torch.Tensor | None) -> Any:
        return None if tensor is None else tensor.detach().to("cpu", torch.float32, copy=True).contiguous()

    return TunedCheckpoint(
        head=copied(head),
        prompts=copied(base.soft_prompts()),
        deep_prompts=copied(base.deep_prompts()),
        label_names=class_names(config.id2label, len(head), "The model's config") if len(head) else [],
        architecture={key: getattr(config, key, None) for key in ARCHITECTURE},
        problem=problem_from(config.problem_type, len(head), "The model's config"),
        base_model=config._name_or_path or None,
        adapter=getattr(config, "active_adapter", None),
    )


def _head_of(model: Any) -> nn.Linear | None:
    """Returns a classifier's head; raises a `ConfigError` if its weight alone would not be the whole head."""
    head = getattr(model, "score", None)
    if head is not None and (not isinstance(head, nn.Linear) or head.bias is not None):
        raise ConfigError(
            "Only a linear head without a bias can be saved, because that is all a checkpoint contains, not "
            f"{' '.join(repr(head).split())}: save it with torch.save."
        )
    return head


@torch.no_grad()
def put_tuned_tensors(tuned: TunedCheckpoint, model: Any) -> None:
    """Copies tuned tensors into a swarm model with the same settings."""
    if tuned.num_labels:
        model.score.weight.copy_(tuned.head)
    model.swarm_base.put_prompts(tuned)


def save_layers(model: Any, folder: str | Path) -> list[Path]:
    """Writes the tuned tensors of a swarm model, one file per layer.

    Args:
        model: a model of `AutoDistributedModelForSequenceClassification`.
        folder: created if it does not exist.

    Returns:
        The files, by layer; layers without tuned tensors have none.
    """
    from safetensors.torch import save

    folder, blocks = Path(folder), model.config.num_hidden_layers
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for layer in range(blocks + 2):
        tensors = {name: view.detach().to("cpu", copy=True).contiguous() for name, view in _tensors_of(model, layer)}
        if tensors:
            path = folder / _NAME.format(layer)
            content = save(tensors, metadata={"layer": str(layer), "blocks": str(blocks)})
            write_atomically(path, content, BY_UMASK)
            written.append(path)
    return written


def load_layers(model: Any, folder: str | Path, layers: Collection[int] | None = None) -> list[int]:
    """Loads tuned tensors into a swarm model, in place.

    Args:
        model: a model of `AutoDistributedModelForSequenceClassification`.
        folder: a folder written by `save_layers`.
        layers: the layers to load; by default all of the model's.

    Returns:
        The layers that were loaded.

    Raises:
        CheckpointError: a file is missing or damaged, or was made for another model. The model is then unchanged.
    """
    from safetensors import SafetensorError, safe_open

    folder, blocks = Path(folder), model.config.num_hidden_layers
    wanted = sorted(set(range(blocks + 2) if layers is None else layers))
    if wanted and not 0 <= wanted[0] <= wanted[-1] <= blocks + 1:
        raise CheckpointError(f"The model has the layers 0 to {blocks + 1}, not {wanted[0]} to {wanted[-1]}.")
    read: list[tuple[int, torch.Tensor, torch.Tensor]] = []
    for layer in wanted:
        path = folder / _NAME.format(layer)
        for name, view in _tensors_of(model, layer):
            try:
                with safe_open(path, framework="pt", device="cpu") as file:
                    made_for = (file.metadata() or {}).get("blocks")
                    tensor = file.get_tensor(name)
            except FileNotFoundError as error:
                raise CheckpointError(f"{folder} has no {path.name} for layer {layer} of the model.") from error
            except (SafetensorError, OSError) as error:
                raise CheckpointError(f"{path} is damaged, or lacks {name!r}: {one_line(error)}") from error
            if made_for != str(blocks) and (layers is None or layer == blocks + 1):
                raise CheckpointError(f"{path} was made for a model of {made_for} blocks; this one has {blocks}.")
            if tensor.shape != view.shape:
                raise CheckpointError(
                    f"{path}: {name} has shape {list(tensor.shape)}, but the model's is {list(view.shape)}."
                )
            read.append((layer, view, tensor))
    with torch.no_grad():
        for _, view, tensor in read:
            view.copy_(tensor)
    return sorted({layer for layer, _, _ in read})


def _tensors_of(model: Any, layer: int) -> Iterator[tuple[str, torch.Tensor]]:
    config, base = model.config, model.swarm_base
    blocks, hidden = config.num_hidden_layers, config.hidden_size
    if layer == 0 and config.tuning_mode:
        yield PROMPTS, base.prompt_embeddings.weight
    elif 1 <= layer <= blocks and config.tuning_mode == "deep_ptune":
        yield _DEEP, base.intermediate_prompt_embeddings.weight[:, (layer - 1) * hidden : layer * hidden]
    elif layer == blocks + 1 and (head := _head_of(model)) is not None:
        yield HEAD, head.weight
