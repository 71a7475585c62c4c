"""Loading a tokenizer."""

from __future__ import annotations

from typing import Any

from dist_eval.errors import CheckpointError, first_line


def load_tokenizer(place: str, hint: str = "") -> Any:
    """Loads a Hugging Face tokenizer; no code from a hub is run.

    Args:
        place: folder or hub name.
        hint: added to the place in messages.

    Raises:
        CheckpointError: there is none, or it cannot be read.
    """
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(place, trust_remote_code=False)
    except Exception as error:  # transformers raises OSError, ValueError, errors of tokenizers and of the hub's client
        raise CheckpointError(f"There is no readable tokenizer in {place}{hint}: {first_line(error)}") from error
