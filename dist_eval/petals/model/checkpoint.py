"""A tuned checkpoint on disk: the classification head and the soft prompts, without the base model.

The folder follows the Hugging Face convention: `config.json`, `model.safetensors` with only the tuned tensors under
their names in Petals, and the tokenizer. It never contains peer addresses. An export of a whole Petals model
(`save_pretrained`) can also be read; its other tensors are ignored.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from dist_eval.errors import CheckpointError, one_line
from dist_eval.petals.base_model.config import ADAPTER_CONFIG
from dist_eval.petals.base_model.config_keys import require_same_base
from dist_eval.petals.base_model.problem_types import (
    SINGLE_LABEL,
    Problem,
    class_names,
    problem_from,
    require_plausible_width,
)
from dist_eval.petals.base_model.weights import INDEX_FILE, WEIGHTS_FILE, read_index
from dist_eval.process.files import BY_UMASK, write_atomically
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
_FIELD_TYPES = {
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
# Prefixes of the names of prompts in Petals' models, by default "model."
_PREFIXES = {"bloom": "transformer.", "falcon": "transformer."}
_ADAPTER = "active_adapter"  # The field of a Petals model's config that names the LoRA adapter in use
ARCHITECTURE = ("model_type", "hidden_size", "num_hidden_layers", "vocab_size")
_OWN_FIELDS = {
    *_FIELD_TYPES,
    *("tuning_mode", "problem_type", "label2id", "use_chunked_forward", "chunked_forward_step"),
    # options of Petals' client
    *("initial_peers", "dht_prefix", "daemon_startup_timeout", "show_route", "allowed_servers", "blocked_servers"),
    *("use_server_to_server", "connect_timeout", "request_timeout", "update_period", "max_retries", "min_backoff"),
    *("max_backoff", "ban_timeout", "max_pinged", "ping_timeout"),
}


@dataclass(frozen=True)
class TunedCheckpoint:
    """The tuned tensors, with their base model and problem type.

    Attributes:
        head: weight of the classification head, shape [num_labels, hidden].
        prompts: prompt embeddings before the text, shape [pre_seq_len, hidden], or None.
        deep_prompts: added to the prompts' positions before each block, shape
            [num_hidden_layers, pre_seq_len, hidden], or None.
        label_names: name of each class.
        architecture: fields of the base model's config that must match.
        problem: kind of labels that the head predicts.
        base_model: name or path of the base model, or None.
        base_fingerprint: hash of the base model's weights (see `base_fingerprint`), or None.
        adapter: name of the LoRA adapter that the swarm's servers applied to the base model, or None.
        folder: folder it was loaded from.
        config: content of its `config.json`, which describes the base model.
        forwards_per_text: forwards per text, always one.
        outputs_per_text: positions per text whose outputs are needed, always one.
    """

    head: torch.Tensor
    prompts: torch.Tensor | None
    deep_prompts: torch.Tensor | None
    label_names: list[str]
    architecture: dict[str, Any]
    problem: Problem = SINGLE_LABEL
    base_model: str | None = None
    base_fingerprint: str | None = None
    adapter: str | None = None
    folder: Path | None = None
    config: Mapping[str, Any] = field(default_factory=dict)

    forwards_per_text = outputs_per_text = 1

    @property
    def tuning_mode(self) -> str | None:
        """`None` (head only), "ptune" or "deep_ptune", as in Petals' config."""
        if self.prompts is None:
            return None
        return "ptune" if self.deep_prompts is None else "deep_ptune"

    @property
    def pre_seq_len(self) -> int:
        """Number of prompt tokens."""
        return 0 if self.prompts is None else self.prompts.shape[0]

    @property
    def extra_tokens(self) -> int:
        """Tokens of a forward in addition to the text: the prompts."""
        return self.pre_seq_len

    @property
    def num_labels(self) -> int:
        """Width of the head."""
        return self.head.shape[0]

    def digest(self) -> str:
        """Returns a hash of the tuned tensors, equal on all ranks that loaded the same ones."""
        return fingerprint(t for t in (self.head, self.prompts, self.deep_prompts) if t is not None)

    @classmethod
    def load(cls, folder: str | Path, *, needs_head: bool = True) -> TunedCheckpoint:
        """Loads a checkpoint and checks that it is complete and consistent.

        Args:
            folder: a folder with `config.json` and `model.safetensors`.
            needs_head: whether a head is required. Otherwise a missing head is replaced by one without rows.

        Returns:
            The checkpoint, tensors in float32 on the CPU.

        Raises:
            CheckpointError: a file or tensor is missing, damaged, or of the wrong shape.
        """
        folder = Path(folder)
        config = _read_config(folder)
        tensors = _read_tensors(folder)
        mode = config.get("tuning_mode")
        mode = None if mode in (None, "none", "") else mode
        if mode not in (None, "ptune", "deep_ptune"):
            raise CheckpointError(f"{folder / CONFIG_FILE}: tuning_mode {mode!r} is none of none, ptune, deep_ptune.")
        hidden, layers = config["hidden_size"], config["num_hidden_layers"]
        length = config.get("pre_seq_len") or 0
        if mode and length < 1:
            raise CheckpointError(f"{folder / CONFIG_FILE}: tuning_mode {mode} needs pre_seq_len of at least 1.")
        has_head = HEAD in tensors
        if not has_head and (needs_head or not mode):
            raise CheckpointError(f"The checkpoint {folder} has no classification head: it lacks {HEAD!r}.")
        tensors.setdefault(HEAD, torch.empty(0, hidden))
        named = config.get("id2label")
        width = tensors[HEAD].shape[0] if tensors[HEAD].ndim else 0
        count = config.get("num_labels") or (len(named) if named else width)  # transformers does not write defaults
        names = class_names(named, count, str(folder / CONFIG_FILE)) if has_head else []
        _require_all_used(tensors, mode, folder)
        head = _take(tensors, HEAD, (len(names), hidden), folder, config)
        prompts = _take(tensors, PROMPTS, (length, hidden), folder, config) if mode else None
        deep = _take(tensors, DEEP_PROMPTS, (length, layers * hidden), folder, config) if mode == "deep_ptune" else None
        return cls(
            head=head,
            prompts=prompts,
            deep_prompts=None if deep is None else deep.view(length, layers, hidden).permute(1, 0, 2).contiguous(),
            label_names=names,
            architecture={key: config.get(key) for key in ARCHITECTURE},
            problem=problem_from(config.get("problem_type"), len(names), str(folder / CONFIG_FILE)),
            base_model=config.get("base_model_name_or_path"),
            base_fingerprint=config.get("base_model_fingerprint"),
            adapter=config.get(_ADAPTER),
            folder=folder,
            config=config,
        )

    def model_settings(self) -> dict[str, Any]:
        """Returns the fields of a Petals model's config that follow from the tuned tensors and the adapter."""
        head = {
            "num_labels": self.num_labels,
            "problem_type": self.problem.name,
            "id2label": dict(enumerate(self.label_names)),
            "label2id": {name: i for i, name in enumerate(self.label_names)},
        }
        return {
            "tuning_mode": self.tuning_mode,
            "pre_seq_len": self.pre_seq_len,
            **(head if self.num_labels else {}),
            **({_ADAPTER: self.adapter} if self.adapter else {}),
        }

    def save(self, folder: str | Path, prefix: str | None = None) -> None:
        """Writes `config.json` and `model.safetensors`; the tokenizer is saved separately.

        Args:
            folder: created if it does not exist.
            prefix: prefix of the names of prompts; by default that of Petals' models.

        Raises:
            OSError: it cannot be written.
        """
        from safetensors.torch import save

        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        prefix = _PREFIXES.get(self.architecture["model_type"], "model.") if prefix is None else prefix
        tensors = {HEAD: self.head} if self.num_labels else {}
        if self.prompts is not None:
            tensors[prefix + PROMPTS] = self.prompts
        if self.deep_prompts is not None:
            layers, length, hidden = self.deep_prompts.shape
            tensors[prefix + DEEP_PROMPTS] = self.deep_prompts.permute(1, 0, 2).reshape(length, layers * hidden)
        tensors = {name: tensor.detach().to("cpu", torch.float32).contiguous() for name, tensor in tensors.items()}
        write_atomically(folder / WEIGHTS_FILE, save(tensors, metadata={"format": "pt"}), BY_UMASK)
        config = {
            **self.architecture,
            "base_model_name_or_path": self.base_model,
            "base_model_fingerprint": self.base_fingerprint,
            **self.model_settings(),
        }
        (folder / CONFIG_FILE).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")

    def require_base(self, model: str, config: Any, base_fingerprint: str | None = None) -> None:
        """Checks that this checkpoint was made for a base model.

        Args:
            model: name of the base model, for the message.
            config: its config.
            base_fingerprint: hash of its weights, once they are loaded.

        Raises:
            CheckpointError: the checkpoint was made for another family, size, or set of weights.
        """
        remedy = "Give the base model that it was tuned on" + (f": {self.base_model}." if self.base_model else ".")
        for key, expected in self.architecture.items():
            actual = getattr(config, key, None)
            if expected is not None and actual != expected:
                raise CheckpointError(
                    f"The checkpoint {self.folder} was tuned for a base model with {key} {expected}, "
                    f"but {model} has {actual}. {remedy}"
                )
        require_same_base(self.config, config, f"{self.folder}/{CONFIG_FILE}", _OWN_FIELDS)
        if base_fingerprint and self.base_fingerprint and base_fingerprint != self.base_fingerprint:
            raise CheckpointError(
                f"The checkpoint {self.folder} was tuned on other weights than those of {model} "
                f"(same architecture, other fingerprint). {remedy}"
            )


def fingerprint(tensors: Any) -> str:
    """Hashes the values of tensors as float32 (SHA-256, hexadecimal), whatever their dtype."""
    digest = hashlib.sha256()
    for tensor in tensors:
        values = tensor.detach().to("cpu", torch.float32).contiguous()
        digest.update(str(tuple(values.shape)).encode())
        digest.update(values.numpy().tobytes())
    return digest.hexdigest()


def _read_config(folder: Path) -> dict[str, Any]:
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
        raise CheckpointError(f"The checkpoint {folder} has no {CONFIG_FILE}.") from error
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
    for key, kind in _FIELD_TYPES.items():
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


def _read_tensors(folder: Path) -> dict[str, torch.Tensor]:
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


def _require_all_used(tensors: Mapping[str, torch.Tensor], mode: str | None, folder: Path) -> None:
    """Raises an error if a tuned tensor would be ignored, which would give the results of another model."""
    used = {None: {HEAD}, "ptune": {HEAD, PROMPTS}, "deep_ptune": {HEAD, PROMPTS, DEEP_PROMPTS}}[mode]
    for name in tensors:
        if name not in used:
            why = "dist_eval cannot use it" if name not in (PROMPTS, DEEP_PROMPTS) else (
                f"tuning_mode {mode or 'none'} in {CONFIG_FILE} does not use it"
            )  # fmt: skip
            raise CheckpointError(f"The checkpoint {folder} holds the tuned tensor {name!r}, but {why}.")


def _take(
    tensors: Mapping[str, torch.Tensor], name: str, shape: tuple[int, ...], folder: Path, config: Mapping[str, Any]
) -> torch.Tensor:
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
