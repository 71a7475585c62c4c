"""Converts older exports of prompts and heads to a tuned checkpoint.

Before checkpoints existed, prompts and heads were often saved with `torch.save`: as `nn.Embedding` and `nn.Linear`
objects, as state dicts of them or of the whole model, or as several of these in a dictionary. Such files are pickles.
torch's restricted unpickler reads them without running their code: it builds tensors, containers, and, because they are
allowed here, these two kinds of modules. Only the weights of modules are used. An error names any other object.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dist_eval.errors import CheckpointError, one_line, os_reason
from dist_eval.petals.base_model.config import read_base_config
from dist_eval.petals.base_model.problem_types import default_problem
from dist_eval.petals.model.checkpoint import ARCHITECTURE, TunedCheckpoint
from dist_eval.petals.model.checkpoint_files import ADAPTER_TENSOR, DEEP_PROMPTS, HEAD, MERGE, PROMPTS

_ALLOWED: list[Any] = [nn.Embedding, nn.Linear]
# Names of tensors in exports, by their name in a checkpoint
_ROLES = {
    DEEP_PROMPTS: ("intermediate_prompt_embeddings", "deep_prompt_embeddings", "intermediate_prompts", "deep_prompts"),
    PROMPTS: ("prompt_embeddings", "prompt_embedding", "prompts", "soft_prompts"),
    HEAD: ("score", "classifier", "head"),
}

_BIAS = f"bias of {HEAD}"


def convert(
    files: Sequence[Path], model: str, label_names: Sequence[str] | None = None
) -> tuple[TunedCheckpoint, list[str]]:
    """Reads older exports; returns the checkpoint, and the names of the tensors outside it."""
    base, left = read_base_config(model), []
    found: dict[str, torch.Tensor] = {}
    for path in files:
        for name, tensor in _tensors((path.stem,), _load(path), base):
            if ADAPTER_TENSOR.search(".".join(name)):
                raise CheckpointError(
                    f"{path}: {'.'.join(name)} belongs to an adapter in the base model's layers, which a checkpoint "
                    f"cannot contain. Without it the classifier would differ. {MERGE}."
                )
            role = _role_of(name)
            if role is None:
                left.append(".".join(name))
                continue
            if role in found:
                raise CheckpointError(f"{path}: {'.'.join(name)} is a second {role}; one is needed.")
            found[role] = tensor
    return _checkpoint(found, base, model, label_names), left


def _load(path: Path) -> Any:
    try:
        with torch.serialization.safe_globals(_ALLOWED):
            return torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {os_reason(error)}.") from error
    except Exception as error:  # a damaged file can make the unpickler raise anything
        refused = re.search(r"(?:GLOBAL|Unsupported class|global) ([\w.]+)", str(error))
        if refused is None:
            raise CheckpointError(f"{path} was not written by torch.save, or is damaged: {one_line(error)}") from error
        raise CheckpointError(
            f"{path} contains an object of type {refused[1]}, which can be read only by running the file's code. Save "
            "its state_dict() with the original program, and convert that."
        ) from error


# path of a tensor: the file's name without its extension, then the keys that lead to it, split at dots
Name = tuple[str, ...]


def _tensors(name: Name, value: Any, base: Any) -> Iterator[tuple[Name, torch.Tensor]]:
    """Yields all tensors in an export; those of a module with an unknown name get the name of its role."""
    if isinstance(value, nn.Module):
        parameters = vars(value).get("_parameters")  # everything else about the module is ignored
        weight = parameters.get("weight") if isinstance(parameters, Mapping) else None
        if not isinstance(weight, torch.Tensor) or weight.ndim != 2:
            raise CheckpointError(f"{'.'.join(name)} is a {type(value).__name__} without a weight: it is damaged.")
        if _role_of(name) is None:
            name = (*name, _ROLES[_role_of_module(value, weight.shape, base)][0])
        value = parameters
    if isinstance(value, torch.Tensor):
        yield name, value.detach()
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _tensors((*name, *str(key).split(".")), item, base)
    elif isinstance(value, (list, tuple)):
        for number, item in enumerate(value):
            yield from _tensors((*name, str(number)), item, base)


def _role_of_module(module: nn.Module, shape: torch.Size, base: Any) -> str:
    if isinstance(module, nn.Linear):
        return HEAD
    return PROMPTS if shape[1] == base.hidden_size else DEEP_PROMPTS


def _role_of(name: Name) -> str | None:
    """Returns the role of a tensor by its name; the file's name counts only if the file has a single tensor."""
    own = name if len(name) == 1 or name[1:] in (("weight",), ("bias",)) else name[1:]
    for part in reversed(own):
        for role, names in _ROLES.items():
            if part in names:
                return role if name[-1] != "bias" else f"bias of {role}"
    return None


def _checkpoint(
    found: Mapping[str, torch.Tensor], base: Any, model: str, label_names: Sequence[str] | None
) -> TunedCheckpoint:
    hidden, layers = base.hidden_size, base.num_hidden_layers
    if HEAD not in found:
        raise CheckpointError(
            "The tensors include no head. Name tensors, or a file with a single tensor, by their roles: "
            + "; ".join(" or ".join(names) for names in _ROLES.values())
            + "."
        )
    if _BIAS in found and found[_BIAS].any():
        raise CheckpointError("The head has a bias, which heads of models on Petals cannot have.")
    if DEEP_PROMPTS in found and PROMPTS not in found:
        raise CheckpointError("There are deep prompts, but no prompts before the text: also give their file.")
    length = len(found.get(PROMPTS, ()))
    shapes = {HEAD: (len(found[HEAD]), hidden), PROMPTS: (length, hidden), DEEP_PROMPTS: (length, layers * hidden)}
    tensors = {name: tensor.to(torch.float32) for name, tensor in found.items() if name != _BIAS}
    for name, tensor in tensors.items():
        if tuple(tensor.shape) != shapes[name]:
            raise CheckpointError(
                f"{name} has shape {list(tensor.shape)}, but {model} needs {list(shapes[name])}. Name the base model "
                "that it was tuned for."
            )
        if not torch.isfinite(tensor).all():
            raise CheckpointError(f"{name} contains values that are not finite.")
    names = list(label_names) if label_names else [f"LABEL_{number}" for number in range(len(tensors[HEAD]))]
    if len(names) != len(tensors[HEAD]):
        raise CheckpointError(f"The head has {len(tensors[HEAD])} classes, but --label-names gives {len(names)} names.")
    deep = tensors.get(DEEP_PROMPTS)
    return TunedCheckpoint(
        head=tensors[HEAD],
        prompts=tensors.get(PROMPTS),
        deep_prompts=None if deep is None else deep.view(length, layers, hidden).permute(1, 0, 2).contiguous(),
        label_names=names,
        architecture={name: getattr(base, name) for name in ARCHITECTURE},
        base_model=model,
        problem=default_problem(len(tensors[HEAD])),
    )
