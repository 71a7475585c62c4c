"""Base model + tuned tensors → a classifier: token ids → logits. The base runs on a swarm, or in this process.

Both backends share everything but the transformer blocks. Two things differ from the familiar way, on purpose:

- Padding stands on the right and no attention mask is sent (Petals refuses one): attention is causal, so padding
  cannot reach real tokens. The last real token is found by the text's true length, never by the pad id.
- Prompts are sent once per request, as a batch of 1 that servers broadcast, instead of once per example.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import nn

from dist_eval.base import first_line
from dist_eval.checkpoint import TunedCheckpoint, fingerprint
from dist_eval.errors import CheckpointError, ModelOutputError

if TYPE_CHECKING:
    from dist_eval.swarm.requests import SwarmRequests

_FINGERPRINT_ROWS = 64
_PETALS_CLASS = {
    "llama": "DistributedLlamaModel",
    "bloom": "DistributedBloomModel",
    "falcon": "DistributedFalconModel",
}
_LEFT_IN_BASE = ("score", "lm_head", "prompt_embeddings", "intermediate_prompt_embeddings")


class Backbone(Protocol):
    """A base model without a head."""

    def hidden_states(
        self, input_ids: torch.Tensor, prompts: torch.Tensor | None, deep_prompts: torch.Tensor | None
    ) -> torch.Tensor:
        """Runs the base model.

        Args:
            input_ids: int64 of shape [batch, length].
            prompts: float32 of shape [pre_seq_len, hidden], or None.
            deep_prompts: float32 of shape [blocks, pre_seq_len, hidden], or None.

        Returns:
            Outputs of the last block before the final norm, of shape [batch, pre_seq_len + length, hidden].
        """
        ...

    @property
    def final_norm(self) -> nn.Module:
        """The norm after the last block."""
        ...

    @property
    def word_embeddings(self) -> nn.Embedding:
        """The embeddings of the vocabulary."""
        ...

    def traffic(self) -> dict[str, Any] | None:
        """Returns what was sent to a swarm so far, for `results.json`; None without a swarm."""
        ...

    @property
    def retries(self) -> int:
        """Requests that had to be repeated so far."""
        ...

    def close(self) -> None:
        """Lets go of connections and processes."""
        ...


class Classifier:
    """A base model with a tuned head and prompts.

    Args:
        backbone: where the base model runs.
        tuned: the head and the prompts.
    """

    def __init__(self, backbone: Backbone, tuned: TunedCheckpoint) -> None:
        self.backbone, self.tuned = backbone, tuned

    @property
    def num_labels(self) -> int:
        """Width of the head."""
        return self.tuned.num_labels

    @property
    def retries(self) -> int:
        """Requests that had to be repeated so far."""
        return self.backbone.retries

    @torch.no_grad()
    def logits(self, input_ids: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """Classifies a batch.

        Args:
            input_ids: int64 of shape [batch, length], padded on the right with any id.
            lengths: number of real tokens of each text, at least 1, int64 of shape [batch].

        Returns:
            Logits, float32 of shape [batch, num_labels], on the CPU.

        Raises:
            ModelOutputError: the outputs have a wrong shape or are not finite.
        """
        tuned = self.tuned
        hidden = self.backbone.hidden_states(input_ids, tuned.prompts, tuned.deep_prompts)
        expected = (input_ids.shape[0], tuned.pre_seq_len + input_ids.shape[1], tuned.head.shape[1])
        if tuple(hidden.shape) != expected:
            raise ModelOutputError(f"The model answered with shape {list(hidden.shape)} instead of {list(expected)}.")
        rows = torch.arange(len(lengths))
        last = hidden[rows, tuned.pre_seq_len + lengths - 1]
        logits = self.backbone.final_norm(last).to(torch.float32).cpu() @ tuned.head.T
        finite = torch.isfinite(logits).all(dim=1)
        if not finite.all():
            count = int((~finite).sum())
            raise ModelOutputError(
                f"The model answered with values that are not finite for {count} of {len(rows)} texts."
            )
        return logits

    def close(self) -> None:
        """Lets go of connections and processes."""
        self.backbone.close()


class SwarmBackbone:
    """A base model whose blocks a swarm hosts; embeddings and final norm are local.

    Args:
        model: a Petals `Distributed*Model`.
        dht: the DHT node it uses.
        requests: the way to the swarm.
    """

    def __init__(self, model: Any, dht: Any, requests: SwarmRequests) -> None:
        self.model, self.dht, self.requests = model, dht, requests

    @property
    def final_norm(self) -> nn.Module:
        """The norm after the last block."""
        return self.model.ln_f

    @property
    def word_embeddings(self) -> nn.Embedding:
        """The embeddings of the vocabulary."""
        return self.model.word_embeddings

    def hidden_states(
        self, input_ids: torch.Tensor, prompts: torch.Tensor | None, deep_prompts: torch.Tensor | None
    ) -> torch.Tensor:
        """See `Backbone.hidden_states`."""
        embeddings = _prompted(self.word_embeddings(input_ids), prompts)
        return self.requests.forward(self.model.word_embeddings_layernorm(embeddings), deep_prompts)

    def traffic(self) -> dict[str, Any]:
        """See `Backbone.traffic`."""
        return self.requests.facts()

    @property
    def retries(self) -> int:
        """See `Backbone.retries`."""
        return self.requests.retries

    def close(self) -> None:
        """Stops the routing thread, then leaves the swarm."""
        from dist_eval.swarm.client import leave_swarm

        leave_swarm(self.dht, self.model.h.sequence_manager)


class LocalBackbone:
    """A base model that runs in this process.

    Args:
        model: a Hugging Face base model (`LlamaModel`, `BloomModel`, `FalconModel`).
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        self.blocks: nn.ModuleList = model.layers if hasattr(model, "layers") else model.h
        norm_name = "norm" if hasattr(model, "norm") else "ln_f"
        self._norm = getattr(model, norm_name)
        self._one_at_a_time = threading.Lock()  # the hooks below belong to the module, not to a call
        # the final norm is applied to the pooled token only; it acts on each token by itself
        setattr(model, norm_name, nn.Identity())

    @property
    def final_norm(self) -> nn.Module:
        """The norm after the last block."""
        return self._norm

    @property
    def word_embeddings(self) -> nn.Embedding:
        """The embeddings of the vocabulary."""
        return self.model.get_input_embeddings()

    def hidden_states(
        self, input_ids: torch.Tensor, prompts: torch.Tensor | None, deep_prompts: torch.Tensor | None
    ) -> torch.Tensor:
        """See `Backbone.hidden_states`; differentiable in the prompts."""
        embeddings = _prompted(self.word_embeddings(input_ids), prompts)
        with self._one_at_a_time, ExitStack() as hooks:
            for block, prompt in zip(self.blocks, deep_prompts if deep_prompts is not None else (), strict=False):
                hooks.callback(block.register_forward_pre_hook(_adding(prompt), with_kwargs=True).remove)
            return self.model(inputs_embeds=embeddings, use_cache=False).last_hidden_state

    def traffic(self) -> dict[str, Any] | None:
        """See `Backbone.traffic`: there is none."""
        return None

    @property
    def retries(self) -> int:
        """See `Backbone.retries`: there are none."""
        return 0

    def close(self) -> None:
        """Does nothing: there is nothing to let go of."""


def _prompted(embeddings: torch.Tensor, prompts: torch.Tensor | None) -> torch.Tensor:
    if prompts is None:
        return embeddings
    return torch.cat([prompts.to(embeddings.dtype).expand(len(embeddings), -1, -1), embeddings], dim=1)


def _adding(deep_prompt: torch.Tensor) -> Callable[..., Any]:
    length = deep_prompt.shape[0]

    def hook(
        module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        hidden = args[0]
        prompted = hidden[:, :length] + deep_prompt.to(hidden.dtype)
        return (torch.cat([prompted, hidden[:, length:]], dim=1), *args[1:]), kwargs

    return hook


def load_on_swarm(
    model: str,
    tuned: TunedCheckpoint,
    dht: Any,
    *,
    dht_prefix: str,
    request_timeout: float,
    max_retries: int,
    compression: str = "none",
    seed: int = 0,
) -> Classifier:
    """Builds a classifier whose blocks a swarm hosts; only embeddings and final norm are loaded here.

    Args:
        model: folder or hub name of the base model.
        tuned: the tuned checkpoint.
        dht: a running `hivemind.DHT` (see `dist_eval.swarm.client.join_swarm`).
        dht_prefix: name under which the swarm announces the blocks.
        request_timeout: seconds to wait for a server's answer.
        max_retries: attempts for each part of a request.
        compression: how activations are packed (see `dist_eval.swarm.requests`).
        seed: of the choice between equal servers; different on each rank.

    Returns:
        The classifier. Close it before the process group.

    Raises:
        CheckpointError: weights are missing, pickled, or others than the checkpoint was tuned on.
        SwarmError: a block has no server any more.
    """
    import petals

    from dist_eval.swarm.requests import SwarmRequests

    settings = {
        "initial_peers": [],  # the node has joined already; without a value Petals would name the public swarm
        "dht_prefix": dht_prefix,
        "request_timeout": request_timeout,
        "max_retries": max_retries,
        "update_period": 15,
        "max_backoff": 5,
        "show_route": False,
    }
    config = petals.AutoDistributedConfig.from_pretrained(model, **settings)
    config.tuning_mode = None  # prompts are ours to add: as a part of the model they would be random if not loaded
    # the class by name: Petals' automatic one tries to copy the DHT node
    remote_class = getattr(petals, _PETALS_CLASS[config.model_type])
    remote = _load_base(remote_class, model, config=config, dht=dht)
    requests = SwarmRequests(
        remote.h.sequence_manager,
        request_timeout=request_timeout,
        max_retries=max_retries,
        compression=compression,
        seed=seed,
    )
    requests.start()
    return _assemble(model, SwarmBackbone(remote, dht, requests), remote.config, tuned)


def load_locally(model: str, tuned: TunedCheckpoint) -> Classifier:
    """Builds a classifier that runs in this process.

    Args:
        model: folder or hub name of the base model.
        tuned: the tuned checkpoint.

    Returns:
        The classifier.

    Raises:
        CheckpointError: weights are missing, pickled, or others than the checkpoint was tuned on.
    """
    from transformers import AutoModel

    base = _load_base(AutoModel, model, trust_remote_code=False)
    return _assemble(model, LocalBackbone(base), base.config, tuned)


def base_fingerprint(backbone: Backbone) -> str:
    """Hashes what every client of a base model holds locally: its final norm and 64 evenly spaced embeddings."""
    weight = backbone.word_embeddings.weight
    rows = torch.linspace(0, weight.shape[0] - 1, min(_FINGERPRINT_ROWS, weight.shape[0])).long()
    return fingerprint([weight[rows], *backbone.final_norm.state_dict().values()])


def _assemble(model: str, backbone: Backbone, config: Any, tuned: TunedCheckpoint) -> Classifier:
    try:
        tuned.require_base(model, config, base_fingerprint(backbone))
    except CheckpointError:
        backbone.close()
        raise
    return Classifier(backbone, tuned)


@contextmanager
def _no_pickle() -> Iterator[None]:
    """Refuses weights that are no safetensors; transformers 4.34 takes `use_safetensors=True` as a wish only."""
    from transformers import modeling_utils

    original = modeling_utils.load_state_dict

    def load_state_dict(checkpoint_file: Any) -> Any:
        if not str(checkpoint_file).endswith(".safetensors"):
            raise CheckpointError(f"{checkpoint_file} is a pickle, which could run code")
        return original(checkpoint_file)

    modeling_utils.load_state_dict = load_state_dict
    try:
        yield
    finally:
        modeling_utils.load_state_dict = original


def _load_base(model_class: Any, model: str, **kwargs: Any) -> Any:
    try:
        with _no_pickle():
            base, info = model_class.from_pretrained(
                model, torch_dtype=torch.float32, use_safetensors=True, output_loading_info=True, **kwargs
            )
    except Exception as error:
        raise CheckpointError(
            f"The weights of the base model {model} cannot be loaded (only safetensors are read): {first_line(error)}"
        ) from error
    missing = [name for name in info["missing_keys"] if not name.startswith(_LEFT_IN_BASE)]
    if missing or info["mismatched_keys"]:
        raise CheckpointError(
            f"The base model {model} lacks weights for {', '.join(map(str, (missing or info['mismatched_keys'])[:5]))}."
        )
    return base.eval().requires_grad_(False)
