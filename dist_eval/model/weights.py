"""Weights of Hugging Face models: safetensors only, and all of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import nn

from dist_eval.errors import CheckpointError, one_line
from dist_eval.process.patching import patched


def load_pretrained(
    model_class: Any, name: str, *, what: str, optional: tuple[str, ...] = (), random_init: bool = False, **kwargs: Any
) -> Any:
    """Loads a model in float32 and eval mode.

    Args:
        model_class: has `from_pretrained`.
        name: folder or hub name.
        what: its name in messages.
        optional: names of modules that need no weights.
        random_init: initialize these at random, for training; otherwise they are undefined.
        **kwargs: for `from_pretrained`.

    Raises:
        CheckpointError: weights are missing, of the wrong shape, or pickled.
    """
    try:
        with _only_safetensors(), _without_warnings(), nullcontext() if random_init else _no_initial_weights():
            model, info = model_class.from_pretrained(
                name,
                torch_dtype=torch.float32,
                use_safetensors=True,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # they are an error below
                **kwargs,
            )
    except Exception as error:
        raise CheckpointError(
            f"The weights of {what[0].lower() + what[1:]} cannot be loaded (only safetensors are read): "
            f"{one_line(error)}"
        ) from error
    missing = [key for key in info["missing_keys"] if not {*key.split(".")} & {*optional}]
    for key, found, wanted in info["mismatched_keys"]:
        raise CheckpointError(
            f"{what}: {key} has shape {list(found)} in its file, but its config asks for {list(wanted)}."
        )
    if missing:
        raise CheckpointError(f"{what} lacks weights for {', '.join(missing[:5])}.")
    return model.eval()


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Silences warnings of transformers about missing weights: they are expected, or raise an error here."""
    from transformers.utils import logging

    level = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)


@contextmanager
def _only_safetensors() -> Iterator[None]:
    """Refuses weights that are not safetensors; transformers 4.34 falls back to others despite `use_safetensors`.

    It also demands metadata, which safetensors need not have.
    """
    from safetensors import safe_open
    from safetensors.torch import load_file
    from transformers import modeling_utils

    original = modeling_utils.load_state_dict

    def load_state_dict(checkpoint_file: Any, *args: Any, **kwargs: Any) -> Any:
        if not str(checkpoint_file).endswith(".safetensors"):
            raise CheckpointError(f"{checkpoint_file} is a pickle, which could run code")
        with safe_open(checkpoint_file, framework="pt") as file:
            if "format" not in (file.metadata() or {}):
                return load_file(checkpoint_file)
        return original(checkpoint_file, *args, **kwargs)

    with patched(modeling_utils, "load_state_dict", load_state_dict):
        yield


@contextmanager
def _no_initial_weights() -> Iterator[None]:
    """Skips the random initialization of weights that are loaded next.

    Petals initializes them on the meta device, for which torch 2.15 imports its symbolic shapes: more than a second.
    """
    skip = ("reset_parameters", lambda self: None)
    with patched(nn.Embedding, *skip), patched(nn.Linear, *skip):
        yield
