"""A tuned checkpoint on disk: the classification head and the soft prompts, without the base model.

The folder follows the Hugging Face convention: `config.json`, `model.safetensors` with only the tuned tensors under
their names in Petals, and the tokenizer. It never contains peer addresses. An export of a whole Petals model
(`save_pretrained`) can also be read; its other tensors are ignored.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from dist_eval.errors import CheckpointError
from dist_eval.petals.base_model.config_keys import require_same_base
from dist_eval.petals.base_model.problem_types import SINGLE_LABEL, Problem, class_names, problem_from
from dist_eval.petals.base_model.weights import WEIGHTS_FILE
from dist_eval.petals.model.checkpoint_files import (
    CONFIG_FILE,
    DEEP_PROMPTS,
    FIELD_TYPES,
    HEAD,
    PROMPTS,
    read_config,
    read_tensors,
    require_all_used,
    take,
)
from dist_eval.process.files import BY_UMASK, write_atomically

# Prefixes of the names of prompts in Petals' models, by default "model."
_PREFIXES = {"bloom": "transformer.", "falcon": "transformer."}
_ADAPTER = "active_adapter"  # the field of a Petals model's config that names the LoRA adapter in use
ARCHITECTURE = ("model_type", "hidden_size", "num_hidden_layers", "vocab_size")
_OWN_FIELDS = {
    *FIELD_TYPES,
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
        config = read_config(folder)
        tensors = read_tensors(folder)
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
        require_all_used(tensors, mode, folder)
        head = take(tensors, HEAD, (len(names), hidden), folder, config)
        prompts = take(tensors, PROMPTS, (length, hidden), folder, config) if mode else None
        deep = take(tensors, DEEP_PROMPTS, (length, layers * hidden), folder, config) if mode == "deep_ptune" else None
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
