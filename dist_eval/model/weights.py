"""Weights of Hugging Face models: safetensors only, and all of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import nn

from dist_eval.errors import CheckpointError, first_line


def load_pretrained(
    model_class: Any, name: str, *, what: str, may_lack: tuple[str, ...] = (), draws_rest: bool = False, **kwargs: Any
) -> Any:
    """Loads a model in float32 and eval mode.

    Args:
        model_class: has `from_pretrained`.
        name: folder or hub name.
        what: what messages call it.
        may_lack: names of modules that need no weights.
        draws_rest: draw what they have at random, in order to be trained; otherwise it is undefined.
        **kwargs: for `from_pretrained`.

    Raises:
        CheckpointError: weights are missing, of the wrong shape, or a pickle.
    """
    try:
        with _no_pickle(), _unsaid(), nullcontext() if draws_rest else _no_initial_weights():
            model, info = model_class.from_pretrained(
                name, torch_dtype=torch.float32, use_safetensors=True, output_loading_info=True, **kwargs
            )
    except Exception as error:
        raise CheckpointError(
            f"The weights of {what[0].lower() + what[1:]} cannot be loaded (only safetensors are read): "
            f"{first_line(error)}"
        ) from error
    missing = [key for key in info["missing_keys"] if not {*key.split(".")} & {*may_lack}]
    if missing or info["mismatched_keys"]:
        raise CheckpointError(
            f"{what} lacks weights for {', '.join(map(str, (missing or info['mismatched_keys'])[:5]))}."
        )
    return model.eval()


@contextmanager
def _unsaid() -> Iterator[None]:
    """Keeps transformers from telling which weights are missing: whoever loads knows, or is told by an error."""
    from transformers.utils import logging

    level = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)


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


@contextmanager
def _no_initial_weights() -> Iterator[None]:
    """Spares drawing weights at random that are loaded next.

    Petals draws them on the meta device, for which torch 2.15 imports its symbolic shapes: more than a second.
    """
    layers: tuple[Any, ...] = (nn.Embedding, nn.Linear)
    originals = [layer.reset_parameters for layer in layers]
    for layer in layers:
        layer.reset_parameters = lambda self: None
    try:
        yield
    finally:
        for layer, original in zip(layers, originals, strict=True):
            layer.reset_parameters = original
