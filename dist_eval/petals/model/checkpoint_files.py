"""Reads the files of a tuned checkpoint; errors name the file, and the key or tensor."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from dist_eval.errors import CheckpointError, one_line
from dist_eval.petals.base_model.config import ADAPTER_CONFIG
from dist_eval.petals.base_model.problem_types import require_plausible_width
from dist_eval.petals.base_model.weights import INDEX_FILE, WEIGHTS_FILE, read_index
from dist_eval.process.parsing import read_json

CONFIG_FILE = "config.json"
HEAD = "score.weight"
PROMPTS = "prompt_embeddings.weight"
DEEP_PROMPTS = "intermediate_prompt_embeddings.weight"
_TUNED = {HEAD, "score.bias", PROMPTS, DEEP_PROMPTS}

ADAPTER_TENSOR = re.compile(r"\b(lora|ia3|hada|lokr|b?oft|vera|vblora|fourierft|hra|bone|shira|c3a)_")
"""Matches names of tensors that PEFT's adapters add to a base model's layers."""

MERGE = (
    "Merge it into its base model with peft (merge_and_unload), save the whole with save_pretrained, and evaluate that "
    "with --backend local --model FOLDER"
)
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
FIELD_TYPES = {  # of `config.json`
    "model_type": str,
    "hidden_size": int,
    "num_hidden_layers": int,
    "pre_seq_len": int,
    "num_labels": int,
    "id2label": dict,
    "base_model_name_or_path": str,
    "base_model_fingerprint": str,
    "active_adapter": str,
}


def read_config(folder: Path) -> dict[str, Any]:
    """Reads the fields of `config.json`, with today's names, of the right types, and those that are required."""
    if not folder.is_dir():
        is_hub_name = _HUB_NAME.fullmatch(str(folder))
        advice = f" If it is a name on a hub: `hf download {folder} --local-dir FOLDER`." if is_hub_name else ""
        raise CheckpointError(f"The checkpoint folder {folder} does not exist.{advice}")
    path = folder / CONFIG_FILE
    if (folder / ADAPTER_CONFIG).is_file():
        raise _adapter_error(folder)
    try:
        config = read_json(path)
    except FileNotFoundError as error:
        inside = [str(found.parent) for found in sorted(folder.glob(f"*/{CONFIG_FILE}"))[:3]]
        advice = f" Name one of the checkpoints in it: {', '.join(inside)}." if inside else ""
        raise CheckpointError(f"The checkpoint {folder} has no {CONFIG_FILE}.{advice}") from error
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read: {one_line(error)}") from error
    if not isinstance(config, dict):
        raise CheckpointError(f"{path} should hold a JSON object.")
    require_plausible_width(config, str(path))
    # Bloom's configs use older names of these fields
    config.setdefault("hidden_size", config.get("n_embed"))
    config.setdefault("num_hidden_layers", config.get("n_layer"))
    for key in ("model_type", "hidden_size", "num_hidden_layers"):
        if config.get(key) is None:
            raise CheckpointError(f"{path} lacks {key!r}, which determines the base model that the checkpoint is for.")
    for key, kind in FIELD_TYPES.items():
        value = config.get(key)
        if value is not None and (not isinstance(value, kind) or isinstance(value, bool)):
            raise CheckpointError(f"{path}: {key} should be of type {kind.__name__}, not {value!r:.80}.")
    return config


def _adapter_error(folder: Path) -> CheckpointError:
    try:
        config = dict(read_json(folder / ADAPTER_CONFIG))
    except (OSError, ValueError, TypeError):
        config = {}
    kind, base = config.get("peft_type", "PEFT"), config.get("base_model_name_or_path")
    return CheckpointError(
        f"{folder} holds an adapter ({kind}) of PEFT{f' for {base}' if base else ''}, not a checkpoint with a head and "
        f"prompts. {MERGE}; or name it with --adapter where the swarm's servers hold it."
    )


def read_tensors(folder: Path) -> dict[str, torch.Tensor]:
    """Reads the tuned tensors by name, without the model's prefix, from one or several files."""
    from safetensors import SafetensorError, safe_open

    index, single = folder / INDEX_FILE, folder / WEIGHTS_FILE
    files = sorted({*read_index(index).values()}) if index.is_file() and not single.is_file() else [WEIGHTS_FILE]
    tensors: dict[str, torch.Tensor] = {}
    for path in (folder / name for name in files):
        if not path.is_file():
            pickles = [p.name for p in folder.iterdir() if p.suffix in (".bin", ".pt", ".pth", ".pkl", ".ckpt")]
            raise CheckpointError(
                f"The checkpoint {folder} has no {path.name}."
                + (f" {pickles[0]} is a pickle, which could run code and is not read." if pickles else "")
            )
        try:
            with safe_open(path, framework="pt", device="cpu") as file:
                for name in file.keys():  # noqa: SIM118 (no mapping)
                    short = ".".join(name.split(".")[-2:])
                    if short in tensors:
                        raise CheckpointError(f"The checkpoint {folder} holds more than one {short!r}.")
                    if short in _TUNED or ADAPTER_TENSOR.search(name):
                        tensors[short if short in _TUNED else name] = file.get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{path} is damaged or not a safetensors file: {one_line(error)}") from error
    return tensors


def require_all_used(tensors: Mapping[str, torch.Tensor], mode: str | None, folder: Path) -> None:
    """Raises an error if a tuned tensor would be ignored, which would give the results of another model."""
    used = {None: {HEAD}, "ptune": {HEAD, PROMPTS}, "deep_ptune": {HEAD, PROMPTS, DEEP_PROMPTS}}[mode]
    for name in tensors:
        if name not in used:
            why = "dist_eval cannot use it" if name not in (PROMPTS, DEEP_PROMPTS) else (
                f"tuning_mode {mode or 'none'} in {CONFIG_FILE} does not use it"
            )  # fmt: skip
            raise CheckpointError(f"The checkpoint {folder} holds the tuned tensor {name!r}, but {why}.")


def take(
    tensors: Mapping[str, torch.Tensor], name: str, shape: tuple[int, ...], folder: Path, config: Mapping[str, Any]
) -> torch.Tensor:
    """Returns a tuned tensor as float32; it must exist, have this shape, and be finite."""
    found = tensors.get(name)
    if found is None:
        what = {PROMPTS: "no prompts", DEEP_PROMPTS: "no deep prompts"}[name]
        raise CheckpointError(
            f"The checkpoint {folder} has {what}: it lacks {name!r}, which tuning_mode {config['tuning_mode']} needs."
        )
    if tuple(found.shape) != shape:
        raise CheckpointError(
            f"{folder / WEIGHTS_FILE}: {name} has shape {list(found.shape)}, but {CONFIG_FILE} asks for {list(shape)}."
        )
    if not torch.isfinite(found).all():
        raise CheckpointError(f"{folder / WEIGHTS_FILE}: {name} holds values that are not finite.")
    return found.to(torch.float32)
