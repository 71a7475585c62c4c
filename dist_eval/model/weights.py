"""Weights of Hugging Face models: safetensors only, and all of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from dist_eval.errors import CheckpointError, one_line


def load_pretrained(model_class: Any, name: str, *, what: str, optional: tuple[str, ...] = (), **kwargs: Any) -> Any:
    """Loads a model in float32 and eval mode.

    Args:
        model_class: has `from_pretrained`.
        name: folder or hub name.
        what: its name in messages.
        optional: names of modules that need no weights.
        **kwargs: for `from_pretrained`.

    Raises:
        CheckpointError: weights are missing, of the wrong shape, or pickled.
    """
    folder = Path(name)
    if folder.is_dir() and not any(folder.glob("*.safetensors")):
        raise CheckpointError(f"{what} has no weights as safetensors, the only format that is read.")
    try:
        with without_warnings():
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
def without_warnings() -> Iterator[None]:
    """Silences warnings of transformers about missing weights: they are expected, or raise an error here."""
    from transformers.utils import logging

    level, has_bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if has_bars:
            logging.enable_progress_bar()
