"""The model to evaluate, before it is loaded: its config, whether Petals can serve it, and the limits of a request."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dist_eval.errors import CheckpointError, ConfigError
from dist_eval.model.label_words import LabelWords
from dist_eval.model.language_model import CausalModel
from dist_eval.model.pretrained_classifier import PretrainedClassifier
from dist_eval.options.groups import ModelOptions
from dist_eval.petals.base_model.config import (
    default_cache_tokens,
    default_dht_prefix,
    has_sessions,
    max_positions,
    max_request_tokens,
    read_base_config,
    read_config,
    read_config_file,
    tokenizer_limit,
)
from dist_eval.petals.base_model.rope import RopeSwitch
from dist_eval.petals.base_model.weights import weight_map
from dist_eval.petals.model.checkpoint import TunedCheckpoint
from dist_eval.process.files import samples_of
from dist_eval.results.inputs import ModelSummary
from dist_eval.revisions import pinned

_LONGEST_TEXT = 1 << 20
# simultaneous texts in sessions on a run's own servers; each text has a cache on every server that it passes
_LONG_TEXTS = 2
# model types whose positions start after the padding id (`create_position_ids_from_input_ids`)
_POSITIONS_AFTER_PAD = (
    *("camembert", "data2vec-text", "esm", "ibert", "layoutlmv3", "lilt", "longformer", "luke", "markuplm", "mpnet"),
    *("roberta", "roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl", "xmod"),
)

EvalTarget = TunedCheckpoint | PretrainedClassifier | LabelWords
"""The classifier to evaluate: tuned tensors or label words for a base model, or a complete classifier."""

ModelTarget = EvalTarget | CausalModel
"""The head of a base model: a classifier's, or a language model's own."""


def read_target(checkpoint: str | None, model: str | None) -> EvalTarget:
    """Reads the evaluation target: a tuned checkpoint's folder, or without one the pretrained classifier `model`."""
    if checkpoint:
        return TunedCheckpoint.load(checkpoint)
    name = str(model)
    return PretrainedClassifier.from_config(name, read_config(name, "model", pinned("model", name)))


@dataclass(frozen=True)
class BaseModelSpec:
    """The base model's name, config and limits."""

    name: str  # folder or hub name
    config: Any  # its `transformers` config
    dht_prefix: str  # name under which a swarm announces it
    max_length: int  # maximum tokens of a text
    token_budget: int  # maximum tokens of a request
    # maximum tokens of a text in one request to a swarm; a longer text takes several, in a session. None without a
    # swarm
    request_tokens: int | None = None
    cache_tokens: int | None = None  # session tokens that a run's own servers need space for; None for their default
    adapter: str | None = None  # name of a LoRA adapter that the servers add to it, or None
    shares_prefixes: bool = True  # whether all texts have the same rotary embeddings, so that they can share prefixes
    is_cut_by_tokenizer: bool = False  # whether `max_length` is the tokenizer's, and the model has more positions

    @classmethod
    def read(cls, options: ModelOptions, target: ModelTarget, *, with_gradients: bool = False) -> BaseModelSpec:
        """Reads the base model and checks, before anything is sent, that it fits the checkpoint and the options.

        A complete model is its own base. Gradients need texts that fit into one request.
        """
        if not isinstance(target, TunedCheckpoint):
            name, base = target.name, target.config
        else:
            name = options.model or target.base_model or ""
            if not name:
                raise ConfigError(f"--model is missing, and the checkpoint {target.folder} names no base model.")
            try:
                base = read_base_config(name, pinned("model", name))
            except CheckpointError as error:
                if options.model:
                    raise
                advice = f"The checkpoint {target.folder} names this base model: give yours with --model."
                raise CheckpointError(f"{str(error).rstrip('.')}. {advice}") from error
            target.require_base(name, base)
        if Path(name).is_dir():  # for a hub model, this would download files
            weight_map(name)
        accepted = None if options.backend == "local" else options.server_max_tokens or max_request_tokens(base)
        max_length = _max_length(options.max_length, target, base, accepted, can_be_longer=not with_gradients)
        limit = (None if options.max_length else _tokenizer_limit(name, target)) or max_length
        is_cut, max_length = limit < max_length, min(limit, max_length)
        longest = max_length + target.extra_tokens
        in_sessions = accepted is not None and longest > accepted
        return cls(
            name=name,
            config=base,
            dht_prefix=options.dht_prefix or default_dht_prefix(name, base, options.revision),
            max_length=max_length,
            request_tokens=accepted,
            cache_tokens=max(_LONG_TEXTS * longest, default_cache_tokens(base)) if in_sessions else None,
            token_budget=min(options.token_budget, accepted or options.token_budget),
            adapter=_adapter(options, target),
            is_cut_by_tokenizer=is_cut,
            shares_prefixes=not RopeSwitch(base).kind(longest),
        )

    def identity(self) -> dict[str, str]:
        """Returns the values that distinguish it from other base models, by names for error messages."""
        options = {"--adapter": self.adapter, "--revision": self.revision}
        if self.cache_tokens:  # the limit decides which texts are sent in sessions, and in which chunks
            options["--server-max-tokens"] = str(self.request_tokens)
        return {"base model": self.digest(), **{name: value for name, value in options.items() if value}}

    @property
    def revision(self) -> str | None:
        """The hub commit that it is read from; None for the newest one, and for a folder."""
        return pinned("model", self.name)

    def digest(self) -> str:
        """Returns a hash of the base model, without an adapter.

        It covers the config, except its path and the version that wrote it, and for a folder evenly spaced samples of
        the weights.
        """
        values = read_config_file(self.name, self.revision)
        for name in ("_name_or_path", "transformers_version", "torch_dtype", "dtype"):
            values.pop(name, None)
        digest = hashlib.sha256(json.dumps(values, sort_keys=True, default=str).encode())
        for path in sorted(Path(self.name).glob("*.safetensors")):
            digest.update(os.fsencode(f"{path.name} "))
            for sample in samples_of(path):
                digest.update(sample)
        return digest.hexdigest()

    def summary(self, target: EvalTarget) -> ModelSummary:
        """Returns the section `model` of `results.json`."""
        return ModelSummary(
            base=self.name,
            base_is_path=Path(self.name).is_dir(),
            checkpoint=str(target.folder) if isinstance(target, TunedCheckpoint) else None,
            tuning_mode=target.tuning_mode,
            pre_seq_len=target.pre_seq_len,
            num_labels=target.num_labels,
            adapter=self.adapter,
            weights_digest=target.digest(),
            prompt=target.summary() if isinstance(target, LabelWords) else None,
        )


def _adapter(options: ModelOptions, target: ModelTarget) -> str | None:
    """Returns the LoRA adapter of the options, or the one that the checkpoint was tuned with."""
    named = target.adapter if isinstance(target, TunedCheckpoint) else None
    adapter = options.adapter or named
    if named and adapter != named:
        raise CheckpointError(
            f"The checkpoint {target.folder} was tuned with the adapter {named!r}: leave out --adapter {adapter}."
        )
    if adapter and options.backend == "local":
        raise ConfigError(
            f"--backend local cannot use the adapter {adapter!r}: only servers of a swarm add adapters to a model."
        )
    return adapter


def tokenizer_place(base: str, target: ModelTarget) -> str:
    """Returns the folder or hub model whose tokenizer is used: the checkpoint's own or the base model's."""
    folder = target.folder
    return str(folder) if folder is not None and (folder / "tokenizer_config.json").exists() else base


def _tokenizer_limit(base: str, target: ModelTarget) -> int | None:
    """Returns the length to which a classifier's tokenizer cuts texts; None for prompts, limited only by positions."""
    if not isinstance(target, TunedCheckpoint | PretrainedClassifier):
        return None
    place = tokenizer_place(base, target)
    return tokenizer_limit(place, pinned("model", place))


def _kind_of_tokens(target: ModelTarget) -> str:
    return "tokens of label words" if isinstance(target, LabelWords) else "prompt tokens"


def _max_length(asked: int | None, target: ModelTarget, base: Any, accepted: int | None, *, can_be_longer: bool) -> int:
    is_longer = bool(asked and accepted and asked + target.extra_tokens > accepted)
    # with several requests, the first one would not know that other rotary embeddings apply to the whole text
    is_switching = RopeSwitch(base).kind((asked or 0) + target.extra_tokens) > 0
    in_session = is_longer and can_be_longer and has_sessions(base) and not is_switching
    limits = [(accepted, "servers accept in one request")] if accepted and not in_session else []
    if positions := max_positions(base):
        before_text = (base.pad_token_id or 0) + 1 if base.model_type in _POSITIONS_AFTER_PAD else 0
        limits.append((positions - before_text, "the base model has positions for"))
    if not limits:
        return asked or _LONGEST_TEXT
    limit, what = min(limits)
    longest = limit - target.extra_tokens
    if longest < 1:
        raise CheckpointError(
            f"{target.extra_tokens} {_kind_of_tokens(target)} leave no room for a text in the {limit} tokens that "
            + what
            + (f": the checkpoint {target.folder} is for another base model." if target.folder else ".")
        )
    if (asked or 1) > longest:
        also = f" and {target.extra_tokens} {_kind_of_tokens(target)} are" if target.extra_tokens > 0 else " is"
        raise ConfigError(
            f"--max-length {asked}{also} more than the {limit} tokens that {what}"
            + (", and texts with long rotary embeddings (longrope) take one" if is_switching and is_longer else "")
            + f": give --max-length of at most {longest}."
        )
    return asked or longest
