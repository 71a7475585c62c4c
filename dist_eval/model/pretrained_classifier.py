"""A complete pretrained sequence classifier, with its head, in this process.

Supports any model that `transformers` loads with `AutoModelForSequenceClassification`: encoders (BERT, RoBERTa,
DeBERTa), decoders with a head (Llama, GPT-2), encoder-decoders (BART). Families differ in how they handle padding, find
the last token and count positions. So nothing is padded: the texts of a batch go through the model in groups of equal
length. A plan sorts texts by length, so the groups are nearly as large as the batches. If a head cannot take several
texts at once, each goes alone: BART's and T5's need the same number of end tokens in each text, most decoders' a
padding id.

A text gets the inputs that its tokenizer makes for it alone, including token types and mask, and a model that has not
seen another text, because some models change while they compute. BigBird, for example, disables its sparse attention
permanently at the first text that is too short for it.
"""

from __future__ import annotations

import hashlib
import inspect
import os
import threading
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from dist_eval.data.answers import logits_columns
from dist_eval.data.token_file import ANY_TYPE, ids_and_types
from dist_eval.errors import CheckpointError, ModelOutputError, one_line
from dist_eval.inference.models import AnsweringModel, SendOptions
from dist_eval.petals.base_model.problem_types import Problem, class_names, problem_from
from dist_eval.petals.base_model.weights import load_pretrained
from dist_eval.petals.client.routes import RouteRecord
from dist_eval.process.files import chunks_of
from dist_eval.revisions import pinned
from dist_eval.tables import format_count

_LANGUAGE_MODELS = ("ForCausalLM", "LMHeadModel")
_HEADLESS = (
    "To evaluate a language model, give --prompt with --label-words or --generate; --checkpoint names a tuned head."
)


@dataclass(frozen=True)
class PretrainedClassifier:
    """A classifier before it is loaded, with the attributes of `TunedCheckpoint` that apply."""

    name: str  # folder or hub name
    config: Any  # its `transformers` config
    label_names: list[str]  # name of each class, label or output
    problem: Problem  # the kind of labels that the head predicts

    tuning_mode = None
    pre_seq_len = extra_tokens = 0
    forwards_per_text = outputs_per_text = 1

    @classmethod
    def from_config(cls, name: str, config: Any) -> PretrainedClassifier:
        """Reads a model's config; raises `CheckpointError` if transformers has no classifier of its type."""
        from transformers import AutoModelForSequenceClassification

        for architecture in config.architectures or ():  # before labels are read
            if architecture.endswith(_LANGUAGE_MODELS):
                raise CheckpointError(f"{name} is a {architecture}, which has no head for classes. {_HEADLESS}")
        if type(config) not in AutoModelForSequenceClassification._model_mapping:
            raise CheckpointError(
                f"{name} is of type {config.model_type!r}, for which transformers has no sequence classifier."
            )
        where = f"{name}/config.json"
        names = class_names(config.id2label, config.num_labels, where)
        return cls(name, config, names, problem_from(config.problem_type, len(names), where))

    @property
    def folder(self) -> Path | None:
        """The model's folder, with its tokenizer; None for a hub model."""
        return Path(self.name) if Path(self.name).is_dir() else None

    @property
    def num_labels(self) -> int:
        return len(self.label_names)

    @property
    def token_types(self) -> int:
        """Number of token types that the model knows; 0 if it takes none."""
        from transformers import AutoModelForSequenceClassification

        kind: Any = AutoModelForSequenceClassification._model_mapping[type(self.config)]
        if "token_type_ids" not in inspect.signature(kind.forward).parameters:
            return 0
        known = getattr(self.config, "type_vocab_size", None)
        return ANY_TYPE if known is None else int(known)

    def digest(self) -> str:
        """Returns a hash of all weights in a folder, or of the revision of a hub model."""
        return self._digest

    @cached_property
    def _digest(self) -> str:
        # all weights: two models may differ only in their head
        digest = hashlib.sha256(str(getattr(self.config, "_commit_hash", None)).encode())
        for path in sorted(Path(self.name).glob("*.safetensors")):
            digest.update(os.fsencode(path.name))
            for chunk in chunks_of(path):
                digest.update(chunk)
        return digest.hexdigest()


class FullClassifier(AnsweringModel):
    """A loaded `PretrainedClassifier`."""

    def __init__(self, model: Any, device: torch.device) -> None:
        self._model, self._device = model.to(device), device
        self.columns = logits_columns(self.num_labels)
        self._one_at_a_time = threading.Lock()  # some families cache values for the last length
        self._takes = inspect.signature(model.forward).parameters
        parts = (part for module in model.modules() for part in (vars(module), module._modules, module._buffers))
        self._initial = [(part, dict(part)) for part in parts]

    @property
    def num_labels(self) -> int:
        return int(self._model.config.num_labels)

    def _answer(
        self, input_ids: torch.Tensor, lengths: torch.Tensor, options: SendOptions, record: RouteRecord
    ) -> dict[str, torch.Tensor]:
        logits = torch.empty(len(lengths), self.num_labels)
        for length in sorted(set(lengths.tolist())):
            rows = (lengths == length).nonzero().squeeze(1)
            logits[rows] = self._of_equal_length(input_ids[rows, :length].to(self._device)).cpu()
        return {"logits": logits}

    def _of_equal_length(self, tokens: torch.Tensor) -> torch.Tensor:
        if len(tokens) > 1:
            try:
                return self._of_texts(tokens)
            except ModelOutputError:  # the answer to a text does not depend on the others
                return torch.cat([self._of_texts(text) for text in tokens.split(1)])
        return self._of_texts(tokens)

    def _of_texts(self, tokens: torch.Tensor) -> torch.Tensor:
        input_ids, types = ids_and_types(tokens)
        others = {"attention_mask": torch.ones_like(input_ids), "token_type_ids": types}
        others = {name: value for name, value in others.items() if name in self._takes and value is not None}
        try:
            with self._one_at_a_time, torch.random.fork_rng([self._device] if self._device.type == "cuda" else []):
                torch.manual_seed(0)  # for families that draw at random, such as Reformer
                for part, before in self._initial:
                    part.clear()
                    part.update(before)
                logits = self._model(input_ids=input_ids, **others).logits
        except (RuntimeError, IndexError, ValueError, AssertionError) as error:
            raise ModelOutputError(
                f"The model failed on {format_count(len(input_ids), 'text')} of "
                f"{format_count(input_ids.shape[1], 'token')}: {one_line(error)}"
            ) from error
        if tuple(logits.shape) != (len(input_ids), self.num_labels):
            raise ModelOutputError(
                f"The model answered with shape {list(logits.shape)} instead of {[len(input_ids), self.num_labels]}."
            )
        return logits.to(torch.float32)


def load_full_model(full: PretrainedClassifier, device: torch.device) -> FullClassifier:
    """Loads a classifier."""
    from transformers import AutoModelForSequenceClassification

    what = f"The classifier {full.name}"
    model = load_pretrained(
        AutoModelForSequenceClassification,
        full.name,
        what=what,
        headless=_HEADLESS,
        config=full.config,
        revision=pinned("model", full.name),
        trust_remote_code=False,
    )
    return FullClassifier(model, device)


def local_device(local_rank: int) -> torch.device:
    """Returns the device of a rank's model: a GPU of its host, round-robin, or else the CPU."""
    gpus = torch.cuda.device_count()
    return torch.device("cuda", local_rank % gpus) if gpus else torch.device("cpu")
