"""A mixin for all swarm models: closing them, and saving their tuned tensors."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from dist_eval.errors import ConfigError
from dist_eval.petals.model.loading import TUNED, base_fingerprint
from dist_eval.petals.model.tuned import tuned_tensors_of

if TYPE_CHECKING:
    from dist_eval.petals.model.connection import OpenConnection

Self = TypeVar("Self", bound="SwarmModel")


class SwarmModel:
    """A mixin before a family's class.

    Attributes:
        connection: the connection to the swarm.
    """

    if TYPE_CHECKING:  # transformers evaluates the annotations of its classes
        connection: OpenConnection
        swarm_base: Any

    def close(self) -> None:
        """Leaves the swarm and ends its helper processes."""
        self.connection.close()

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def save_pretrained(
        self, save_directory: str | os.PathLike[str], is_main_process: bool = True, **kwargs: Any
    ) -> None:
        """Writes the tuned tensors as a checkpoint, which `checkpoint=` and `dist-eval run --checkpoint` read.

        Args:
            save_directory: a folder, which is created if it does not exist.
            is_main_process: whether this process writes, in programs with several processes.
            **kwargs: other options of transformers: `push_to_hub` and a `state_dict` with other tuned tensors are
                refused, the rest has no effect.

        Raises:
            ConfigError: the model has no tuned tensors; or another head, changed embeddings of tokens, or other tensors
                that require gradients, which a checkpoint would lose.
            OSError: the folder cannot be written.
        """
        if kwargs.get("push_to_hub"):
            raise ConfigError("push_to_hub is not supported for a model on a swarm: upload the folder yourself.")
        self._require_own(kwargs.get("state_dict") or {})
        trained = [name for name, one in self.named_parameters() if one.requires_grad]  # type: ignore[attr-defined]
        if others := [name for name in trained if not name.endswith(TUNED)]:
            raise ConfigError(
                f"A checkpoint has only prompts and a classifier's head, not {', '.join(others[:3])}, which requires "
                "gradients: save that with torch.save. If it was not trained, call requires_grad_(False) on it."
            )
        tuned = tuned_tensors_of(self)
        if not self.swarm_base.has_loaded_words():
            raise ConfigError(
                "The embeddings of tokens differ from the base model's, and a checkpoint does not contain them: save "
                "them with torch.save."
            )
        if not tuned.num_labels and tuned.prompts is None:
            raise ConfigError("The model has no tuned tensors to save: open it with tuning_mode and pre_seq_len.")
        path = next(path for path, module in self.named_modules() if module is self.swarm_base)  # type: ignore[attr-defined]
        if is_main_process:
            found = dataclasses.replace(tuned, base_fingerprint=fingerprint_of_base(self.swarm_base))
            found.save(os.fspath(save_directory), f"{path}." if path else "")

    def _require_own(self, state: Mapping[str, torch.Tensor]) -> None:
        """Refuses tuned tensors that are not the model's; wrappers add prefixes to their names."""
        own = self.state_dict()  # type: ignore[attr-defined]
        for name, tensor in state.items():
            plain = name.replace("_orig_mod.", "").removeprefix("module.")
            if plain.endswith(TUNED) and plain in own and not torch.equal(tensor.to(own[plain]), own[plain]):
                raise ConfigError(f"state_dict has another {name} than the model: load it into the model first.")


def fingerprint_of_base(base: Any) -> str | None:
    """Returns the hash of a base model's weights (see `base_fingerprint`); None if they were rounded."""
    words = base.get_input_embeddings()
    return base_fingerprint(words, base.swarm_final_norm) if words.weight.dtype == torch.float32 else None
