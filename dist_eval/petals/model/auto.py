"""The public names of swarm models: transformers' own classes whose layers a swarm computes."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Mapping, Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import torch

from dist_eval.errors import CheckpointError, ConfigError
from dist_eval.petals.base_model.architecture import Architecture
from dist_eval.petals.base_model.config import default_dht_prefix, max_request_tokens, read_base_config
from dist_eval.petals.base_model.config_keys import has_effect
from dist_eval.petals.base_model.problem_types import class_names
from dist_eval.petals.base_model.weights import file_of
from dist_eval.petals.client.peers import require_peer_addresses
from dist_eval.petals.client.transport import COMPRESSIONS
from dist_eval.petals.model.base import base_class
from dist_eval.petals.model.checkpoint import TunedCheckpoint
from dist_eval.petals.model.classes import causal_class, classifier_class
from dist_eval.petals.model.connection import OpenConnection
from dist_eval.petals.model.loading import load_client_model
from dist_eval.petals.model.model import fingerprint_of_base
from dist_eval.petals.model.prompts import require_mode
from dist_eval.petals.model.tuned import put_tuned_tensors
from dist_eval.revisions import resolve_commit

_PUBLIC = "public"

# Options of Petals' client that have no counterpart here
_OF_PETALS = (
    *("use_server_to_server", "show_route", "connect_timeout", "update_period", "min_backoff", "max_backoff"),
    *("ban_timeout", "max_pinged", "ping_timeout", "daemon_startup_timeout", "low_cpu_mem_usage"),
    *("use_chunked_forward", "chunked_forward_step"),
)

_OF_HEAD = ("num_labels", "id2label", "label2id", "problem_type")


class _Auto:
    """Base of the three public classes."""

    _has_head = False  # whether it has a head that can be tuned

    def __init__(self) -> None:
        raise ConfigError(f"Open {type(self).__name__} with {type(self).__name__}.from_pretrained(MODEL, ...).")

    @staticmethod
    def _class_of(architecture: Architecture) -> Any:
        raise NotImplementedError

    @classmethod
    def from_pretrained(
        cls,
        model: str | Path,
        *,
        initial_peers: str | Sequence[str] | None = None,
        checkpoint: str | Path | None = None,
        dht_prefix: str | None = None,
        adapter: str | None = None,
        revision: str | None = None,
        tuning_mode: str | None = None,
        pre_seq_len: int = 0,
        dtype: str | torch.dtype = torch.float32,
        timeout: float = 120.0,
        request_timeout: float = 60.0,
        max_retries: int | None = 4,
        compression: str = "none",
        allowed_servers: Sequence[Any] | None = None,
        blocked_servers: Sequence[Any] | None = None,
        **settings: Any,
    ) -> Any:
        """Opens a model of the family's own class in transformers, whose layers a swarm computes.

        It loads embeddings, norm and head, and joins the swarm. The swarm is left by `model.close()`, at the end of the
        context if the model is used as one, when the model is garbage-collected, or at exit. Only prompts and a new
        head have gradients. Call it after forks, in the process that uses the model.

        Args:
            model: folder or hub name of the base model, in safetensors.
            initial_peers: addresses of the swarm's peers, or "public" for Petals' public swarm.
            checkpoint: folder of a tuned checkpoint, as written by `dist-eval tune` or `save_pretrained`; its prompts
                and head are loaded.
            dht_prefix: name under which the swarm announces the model; by default follows Petals' rule for names.
            adapter: a LoRA adapter that servers must have and apply.
            revision: branch, tag or commit of a model on a hub; by default the newest.
            tuning_mode: "ptune" for soft prompts before each text, "deep_ptune" for additional ones before each layer.
            pre_seq_len: number of soft prompts.
            dtype: dtype of embeddings, norm and head. Servers have their own.
            timeout: seconds to wait for the swarm, and for servers of all blocks.
            request_timeout: seconds to wait for a server's answer.
            max_retries: how often each part of a request is repeated after its first attempt.
            compression: compression of activations: "none" is exact, "float16" changes the result a little.
            allowed_servers: the only servers to use, as peer ids; by default all.
            blocked_servers: servers not to use.
            **settings: fields of the model's config, such as `num_labels`, `id2label`, `problem_type` and
                `pad_token_id`. `active_adapter` and `torch_dtype` are other names of `adapter` and `dtype`. Other
                options of Petals' client are accepted and have no effect.

        Returns:
            The model, in eval mode, on the CPU.

        Raises:
            CheckpointError: the base model or checkpoint cannot be read, or they do not match.
            ConfigError: an option is unknown, missing, or contradicts another one.
            SwarmError: the swarm does not answer or lacks blocks.
        """
        _require_numbers(timeout=timeout, request_timeout=request_timeout)
        _require_numbers(Integral, max_retries=4 if max_retries is None else max_retries, pre_seq_len=pre_seq_len)
        if compression not in COMPRESSIONS:
            raise ConfigError(f"from_pretrained: compression must be {' or '.join(COMPRESSIONS)}, not {compression!r}.")
        name, adapter = str(model), settings.pop("active_adapter", adapter)
        settings = _with_names(settings)
        dtype = _dtype(settings.pop("torch_dtype", dtype))
        addresses = _addresses(initial_peers)
        commit = resolve_commit("model", name, revision) if revision and not Path(name).is_dir() else None
        base_config = read_base_config(name, commit)
        tuned = None if checkpoint is None else TunedCheckpoint.load(str(checkpoint), needs_head=cls._has_head)
        if tuned is not None:
            tuned.require_base(name, base_config)
            if tuned.num_labels and not cls._has_head:
                raise CheckpointError(
                    f"The checkpoint {checkpoint} has a classification head: open it with "
                    "AutoDistributedModelForSequenceClassification."
                )
            given = {**settings, "tuning_mode": tuning_mode, "pre_seq_len": pre_seq_len or None}
            _require_no_other(given, adapter, tuned)
            settings = {**settings, **tuned.model_settings()}
            tuning_mode, pre_seq_len = settings.pop("tuning_mode"), settings.pop("pre_seq_len")
            adapter = settings.pop("active_adapter", adapter)
        require_mode(tuning_mode, pre_seq_len)
        own = {"tuning_mode": tuning_mode, "pre_seq_len": pre_seq_len, "active_adapter": adapter}
        config = _config(base_config, settings, own)
        architecture = Architecture(config, name)
        loaded = load_client_model(cls._class_of(architecture), architecture, name, commit, dtype)
        if loaded.can_generate():
            _read_generation_config(loaded, name, commit)
        base = loaded.swarm_base
        if tuned is not None:
            tuned.require_base(name, base_config, fingerprint_of_base(base))
            put_tuned_tensors(tuned, loaded)
        opened = OpenConnection(
            addresses,
            dht_prefix or default_dht_prefix(name, base_config, revision),
            config,
            adapter=adapter,
            timeout=timeout,
            request_timeout=request_timeout,
            max_retries=4 if max_retries is None else max_retries,
            compression=compression,
            allowed_servers=allowed_servers,
            blocked_servers=blocked_servers or (),
        )
        base.connect(opened.requests, request_tokens=max_request_tokens(config), require_open=opened.require_open)
        loaded.connection = opened
        # all copies of the model share its blocks; at exit the connection is closed in another way
        weakref.finalize(base.swarm_blocks, opened.close_when_collected).atexit = False
        return loaded


class AutoDistributedModel(_Auto):
    """Opens a base model without a head, of transformers' own class, whose layers a swarm computes."""

    @staticmethod
    def _class_of(architecture: Architecture) -> Any:
        return base_class(architecture)


class AutoDistributedModelForCausalLM(_Auto):
    """Opens a language model, of transformers' own class, whose layers a swarm computes.

    Its `generate` is that of transformers. `inference_session` opens a session that several calls of `generate`
    continue.
    """

    @staticmethod
    def _class_of(architecture: Architecture) -> Any:
        return causal_class(architecture)


class AutoDistributedModelForSequenceClassification(_Auto):
    """Opens a sequence classifier, of transformers' own class, whose layers a swarm computes.

    A text is classified at its last token according to the mask, so padding may be on either side.
    """

    _has_head = True

    @staticmethod
    def _class_of(architecture: Architecture) -> Any:
        return classifier_class(architecture)


def _require_numbers(*kinds: type, **given: Any) -> None:
    """Requires numbers of at least 0, of any kind by default."""
    for name, value in given.items():
        is_number = isinstance(value, kinds or (Real,)) and not isinstance(value, bool)
        if not is_number or not value >= 0:
            what = "a whole number" if kinds else "a number"
            raise ConfigError(f"from_pretrained: {name} must be {what} of at least 0, not {value!r:.80}.")


def _dtype(named: str | torch.dtype) -> torch.dtype:
    found = getattr(torch, named.removeprefix("torch."), None) if isinstance(named, str) else named
    if named == "auto":
        return torch.float32
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        raise ConfigError(f"dtype must be a floating point type such as torch.float32, not {named!r}.")
    return found


def _addresses(initial_peers: str | Sequence[str] | None) -> list[str]:
    """Returns the addresses of a swarm's peers. There is no default swarm, because it receives the texts."""
    if not initial_peers:
        raise ConfigError(
            'Name the swarm, to which your texts are sent: initial_peers=["/ip4/HOST/tcp/PORT/p2p/ID"], or '
            'initial_peers="public" for Petals\' public one.'
        )
    if initial_peers == _PUBLIC:
        from dist_eval.petals.client.client import public_peers

        return public_peers()
    addresses = [initial_peers] if isinstance(initial_peers, str) else [*map(str, initial_peers)]
    require_peer_addresses(addresses)
    return addresses


def _read_generation_config(model: Any, name: str, revision: str | None) -> None:
    """Loads a language model's own settings of `generate`, if it has a file of them."""
    from transformers import GenerationConfig

    if file_of(name, "generation_config.json", revision):
        model.generation_config = GenerationConfig.from_pretrained(name, revision=revision or "main")


def _with_names(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Completes settings that name the classes by number, which may be text as in JSON."""
    if not settings.get("id2label"):
        return dict(settings)
    given, count = settings["id2label"], settings.get("num_labels")
    if not isinstance(given, Mapping):
        raise ConfigError(f"from_pretrained: id2label must map numbers to names of classes, not {given!r:.80}.")
    names = class_names(given, len(given) if count is None else count, "from_pretrained")
    numbers = settings.get("label2id", {name: number for number, name in enumerate(names)})
    return {**settings, "id2label": dict(enumerate(names)), "num_labels": len(names), "label2id": numbers}


def _require_no_other(given: Mapping[str, Any], adapter: str | None, tuned: TunedCheckpoint) -> None:
    """Checks that no settings are given besides a checkpoint that has others."""
    own = tuned.model_settings()
    for name, value in {**given, "active_adapter": adapter}.items():
        if value is not None and name in own and value != own[name]:
            raise ConfigError(
                f"from_pretrained: {name} is {value!r:.80}, but {own[name]!r:.80} in the checkpoint {tuned.folder}: "
                f"leave out {name}."
            )


def _config(base: Any, settings: Mapping[str, Any], own: Mapping[str, Any]) -> Any:
    """Returns a copy of a base model's config with changed settings and those of a swarm model."""
    config = copy.deepcopy(base)
    settings = {name: value for name, value in settings.items() if name not in _OF_PETALS}
    if unknown := [name for name in settings if not hasattr(config, name)]:
        raise ConfigError(f"from_pretrained: models of this type have no setting {', '.join(unknown)}.")
    changed = [name for name, value in settings.items() if value != getattr(config, name)]
    if changed := [name for name in changed if name not in _OF_HEAD and has_effect(name)]:
        raise ConfigError(
            f"from_pretrained: {', '.join(changed)} cannot be set, because servers compute the layers with the model's "
            "own settings. Leave it out."
        )
    for name, value in {**settings, **own}.items():
        setattr(config, name, value)
    return config
