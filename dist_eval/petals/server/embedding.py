"""Embeds token ids on the server of a model's first block, with the same bits as its clients.

The table stays in its file, in its own dtype: a request reads only the rows of its ids. All other computation is
transformers' own, in float32.
"""

from __future__ import annotations

import threading

import torch

from dist_eval.petals.base_model.architecture import Architecture, embed_rows
from dist_eval.petals.base_model.embedding import after_prompts, last_layer_outputs, load_without_layers
from dist_eval.petals.base_model.weights import ModelWeights


class Embedder:
    """Computes the inputs of a model's first block, if its `Architecture.has_lookup` is true."""

    def __init__(self, architecture: Architecture, weights: ModelWeights, revision: str | None) -> None:
        self._architecture = architecture
        (self._table,) = weights.tensors(f"{architecture.embeddings}.").values()
        self._model = load_without_layers(weights.name, architecture, revision)
        self._words = self._model.get_submodule(architecture.embeddings)
        self._one_at_a_time = threading.Lock()

    @torch.no_grad()  # not inference mode, because deep prompts are added in place
    def embedded(self, ids: torch.Tensor, prompts: torch.Tensor) -> torch.Tensor:
        """Computes the inputs, float32 of shape [batch, pre_seq_len + length, hidden].

        `ids` are int64 of shape [batch, length]; soft `prompts` have shape [pre_seq_len, hidden], or are empty. Raises
        a `ValueError` if they do not fit the model.
        """
        if ids.dtype != torch.int64 or ids.ndim != 2:
            raise ValueError(f"Received token ids as {ids.dtype} of {ids.ndim} dimensions")
        if ids.numel() and not 0 <= int(ids.min()) <= int(ids.max()) < len(self._table):
            raise ValueError(f"Received token ids that the model does not have: it knows {len(self._table)}")
        rows = self._table[ids.flatten()].to(torch.float32)
        words = embed_rows(self._words, rows).unflatten(0, ids.shape)
        if prompts.numel():
            if prompts.ndim != 2 or prompts.shape[1] != words.shape[-1]:
                raise ValueError(f"Received soft prompts of shape {list(prompts.shape)}")
            words = after_prompts(words, prompts)
        with self._one_at_a_time:
            return last_layer_outputs(self._model, self._architecture, words)


def table_bytes(architecture: Architecture, weights: ModelWeights) -> int:
    """Returns the bytes of a model's token embeddings, in their stored dtype."""
    return sum(tensor.nbytes for tensor in weights.tensors(f"{architecture.embeddings}.").values())
