"""Base model + tuned tensors → a classifier: token ids → logits. The base runs on a swarm, or in this process.

Both backends share everything but the transformer blocks. Two things differ from the usual way, on purpose:

- Padding is on the right and no attention mask is sent (Petals refuses one): attention is causal, so padding cannot
  affect real tokens. The last real token is found by the text's true length, never by the pad id.
- Prompts are sent once per request, as a batch of 1 that servers broadcast, instead of once per example.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from dist_eval.data.answers import AnswerColumns, logits_columns
from dist_eval.model.backbone import Backbone, ModelOnBackbone
from dist_eval.model.checkpoint import TunedCheckpoint, fingerprint
from dist_eval.model.local_backbone import LocalBackbone
from dist_eval.model.swarm_backbone import SwarmBackbone
from dist_eval.model.tuned_model import tuned_tensors_of
from dist_eval.model.weights import load_pretrained
from dist_eval.process.patching import patched
from dist_eval.swarm.petals_version import local_model_settings, reading_newer_configs, require_servable
from dist_eval.swarm.router import Router, Routing

if TYPE_CHECKING:
    from dist_eval.swarm.requests import SwarmRequests

_FINGERPRINT_ROWS = 64
_PETALS_CLASS = {
    "llama": "DistributedLlamaModel",
    "bloom": "DistributedBloomModel",
    "falcon": "DistributedFalconModel",
    "mixtral": "DistributedMixtralModel",
}
_NOT_IN_BASE = ("score", "lm_head", "prompt_embeddings", "intermediate_prompt_embeddings")


class Classifier(ModelOnBackbone):
    """A base model with a tuned head and prompts.

    Args:
        backbone: where the base model runs.
        tuned: the head and the prompts.
    """

    def __init__(self, backbone: Backbone, tuned: TunedCheckpoint) -> None:
        super().__init__(backbone, tuned.head.shape[1], tuned.prompts, tuned.deep_prompts)
        self.tuned = tuned

    @property
    def num_labels(self) -> int:
        """Width of the head."""
        return self.tuned.num_labels

    @property
    def columns(self) -> AnswerColumns:
        """Columns of the answer to a text."""
        return logits_columns(self.num_labels)

    def answer(
        self, input_ids: torch.Tensor, lengths: torch.Tensor, routing: Routing | None = None
    ) -> dict[str, torch.Tensor]:
        """Computes the columns for a batch (see `logits`)."""
        return {"logits": self.logits(input_ids, lengths, routing)}

    @torch.no_grad()
    def logits(self, input_ids: torch.Tensor, lengths: torch.Tensor, routing: Routing | None = None) -> torch.Tensor:
        """Classifies a batch.

        Args:
            input_ids: int64 of shape [batch, length], padded on the right with any id.
            lengths: number of real tokens of each text, at least 1, int64 of shape [batch].
            routing: records the route through a swarm.

        Returns:
            Logits, float32 of shape [batch, num_labels], on the CPU; not checked for finite values.

        Raises:
            ModelOutputError: the outputs have the wrong shape.
        """
        return self.scores(input_ids, lengths, routing).to("cpu", torch.float32)

    def scores(self, input_ids: torch.Tensor, lengths: torch.Tensor, routing: Routing | None = None) -> torch.Tensor:
        """Does the same for training: differentiable in the tuned tensors.

        Returns:
            Logits, of shape [batch, num_labels], on the head's device; float32 without autocast.

        Raises:
            ModelOutputError: the outputs have the wrong shape.
        """
        tuned = self.tuned
        hidden = self.hidden_states(input_ids, routing)
        rows = torch.arange(len(lengths), device=hidden.device)
        last = hidden[rows, tuned.pre_seq_len + lengths.to(hidden.device) - 1]
        return self.backbone.final_norm(last).to(tuned.head) @ tuned.head.T


def load_swarm_backbone(
    model: str,
    dht: Any,
    *,
    dht_prefix: str,
    request_timeout: float,
    max_retries: int,
    adapter: str | None = None,
    **options: Any,
) -> SwarmBackbone:
    """Loads a base model whose blocks a swarm hosts; only embeddings and final norm are loaded in this process.

    Args:
        model: folder or hub name of the base model.
        dht: a running `hivemind.DHT` (see `dist_eval.swarm.client.join_swarm`).
        dht_prefix: name under which the swarm announces the blocks.
        request_timeout: seconds to wait for a server's answer.
        max_retries: attempts for each part of a request.
        adapter: name of a LoRA adapter: only servers that hold it are asked, and they add it.
        **options: further arguments of `dist_eval.swarm.requests.SwarmRequests`, such as `router` and `compression`.

    Returns:
        The base model. Close it before the process group.

    Raises:
        CheckpointError: weights are missing or pickled.
        SwarmError: a block has no server any more.
    """
    import petals

    from dist_eval.swarm.requests import SwarmRequests

    settings = {
        "initial_peers": [],  # the node has joined already; the default is the public swarm
        "dht_prefix": dht_prefix,
        "request_timeout": request_timeout,
        "max_retries": max_retries,
        "active_adapter": adapter,
        "update_period": 15,
        "max_backoff": 5,
        "show_route": False,
    }
    with reading_newer_configs():
        config = petals.AutoDistributedConfig.from_pretrained(model, **settings)
    config.tuning_mode = None  # we add the prompts: as a part of the model they would be random if not loaded
    # the class by name: Petals' auto class tries to copy the DHT node
    remote_class = getattr(petals, _PETALS_CLASS[config.model_type])
    remote = _load_base(remote_class, model, config=config, dht=dht)
    requests = SwarmRequests(
        remote.h.sequence_manager, request_timeout=request_timeout, max_retries=max_retries, **options
    )
    requests.start()
    return SwarmBackbone(remote, dht, requests)


def load_local_backbone(model: str, device: torch.device | None = None) -> LocalBackbone:
    """Loads a base model that runs in this process.

    Args:
        model: folder or hub name of the base model.
        device: of the base model, by default the CPU.

    Raises:
        CheckpointError: weights are missing or pickled.
    """
    from transformers import AutoModel

    base = _load_base(AutoModel, model, trust_remote_code=False, **local_model_settings())
    return LocalBackbone(base.to(device or torch.device("cpu")))


def load_on_swarm(model: str, tuned: TunedCheckpoint, dht: Any, **settings: Any) -> Classifier:
    """Builds a classifier whose blocks a swarm hosts.

    Args:
        model: folder or hub name of the base model.
        tuned: the tuned checkpoint.
        dht: a running `hivemind.DHT`.
        **settings: further arguments of `load_swarm_backbone`.

    Returns:
        The classifier. Close it before the process group.

    Raises:
        CheckpointError: weights are missing, pickled, or not those that the checkpoint was tuned on.
        SwarmError: a block has no server any more.
    """
    return with_tuned_head(load_swarm_backbone(model, dht, **settings), model, tuned)


def load_locally(model: str, tuned: TunedCheckpoint, device: torch.device | None = None) -> Classifier:
    """Builds a classifier that runs in this process.

    Args:
        model: folder or hub name of the base model.
        tuned: the tuned checkpoint.
        device: of the base model, by default the CPU.

    Returns:
        The classifier.

    Raises:
        CheckpointError: weights are missing, pickled, or not those that the checkpoint was tuned on.
    """
    return with_tuned_head(load_local_backbone(model, device), model, tuned)


def with_tuned_head(backbone: Backbone, model: str, tuned: TunedCheckpoint) -> Classifier:
    """Puts the tuned head and prompts on a base model.

    Args:
        backbone: the base model.
        model: its folder or hub name.
        tuned: the tuned checkpoint.

    Raises:
        CheckpointError: the checkpoint was tuned on other weights.
    """
    found = base_fingerprint(backbone.word_embeddings, backbone.final_norm)
    tuned.require_base(model, backbone.model.config, found)
    return Classifier(backbone, tuned)


def classifier_of(model: Any, requests: SwarmRequests | None = None, *, seed: int = 0) -> Classifier:
    """Builds a classifier from a loaded Petals model, with a copy of its current tuned tensors.

    Args:
        model: a Petals `Distributed*ForSequenceClassification`.
        requests: those of an earlier classifier of this model, if any.
        seed: of the choice between equal servers; different on each rank.

    Returns:
        The classifier. Do not close it: the model owns the DHT node.

    Raises:
        CheckpointError: the installed version of Petals cannot serve it.
        SwarmError: a block has no server.
    """
    from dist_eval.options.groups import SwarmOptions
    from dist_eval.swarm.requests import SwarmRequests

    base, config = model.transformer, model.config
    require_servable(config._name_or_path or "this model", config)
    if requests is None:
        requests = SwarmRequests(
            base.h.sequence_manager,
            request_timeout=config.request_timeout,
            max_retries=config.max_retries or SwarmOptions.max_retries,
            router=Router(seed),
        )
        requests.start()
    return Classifier(SwarmBackbone(base, base.h.sequence_manager.dht, requests), tuned_tensors_of(model))


def load_petals_classifier(model: str, dht: Any, *, dht_prefix: str, **settings: Any) -> Any:
    """Loads Petals' classifier with random prompts and a random head, for tuning.

    Args:
        model: folder or hub name of the base model.
        dht: a running `hivemind.DHT`.
        dht_prefix: name under which the swarm announces the blocks.
        **settings: other fields of its config, such as `tuning_mode`, `pre_seq_len` and `num_labels`.

    Returns:
        A Petals `Distributed*ForSequenceClassification`, float32 on the CPU.

    Raises:
        CheckpointError: weights are missing or pickled.
    """
    import petals

    settings = {"initial_peers": [], "dht_prefix": dht_prefix, "show_route": False, **settings}
    with reading_newer_configs():
        config = petals.AutoDistributedConfig.from_pretrained(model, **settings)
    name = _PETALS_CLASS[config.model_type]
    base_class = getattr(petals, name)
    # the classifiers have no argument to pass an existing DHT node on to their base model
    with patched(base_class, "__init__", functools.partialmethod(base_class.__init__, dht=dht)):
        kind = getattr(petals, name.replace("Model", "ForSequenceClassification"))
        what = f"The base model {model}"
        return load_pretrained(kind, model, what=what, optional=_NOT_IN_BASE, random_init=True, config=config)


def base_fingerprint(word_embeddings: nn.Embedding, final_norm: nn.Module) -> str:
    """Hashes what every client of a base model holds locally: its final norm and 64 evenly spaced embeddings."""
    weight = word_embeddings.weight
    rows = torch.linspace(0, weight.shape[0] - 1, min(_FINGERPRINT_ROWS, weight.shape[0])).long()
    return fingerprint([weight[rows], *final_norm.state_dict().values()])


def _load_base(model_class: Any, model: str, **kwargs: Any) -> Any:
    base = load_pretrained(model_class, model, what=f"The base model {model}", optional=_NOT_IN_BASE, **kwargs)
    return base.requires_grad_(False)
