"""Loading tokenizers. Only vocabularies that cannot run code are read: `tokenizer.json`, texts, and sentencepiece's."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from dist_eval.errors import CheckpointError, one_line
from dist_eval.process.patching import patched

FILE = "tokenizer.json"
_VOCABULARIES = (".json", ".txt", ".codes", ".tokenizer", ".model", ".spm")
"""Endings of vocabularies that are JSON, text, or a model of sentencepiece."""


def load_tokenizer(place: str, hint: str = "") -> Any:
    """Loads a Hugging Face tokenizer.

    Args:
        place: folder or hub name.
        hint: added to the place in messages.

    Raises:
        CheckpointError: there is no readable tokenizer.
    """
    from transformers import AutoTokenizer

    try:
        with _only_known_vocabularies(place):
            return AutoTokenizer.from_pretrained(place, trust_remote_code=False)
    except CheckpointError:
        raise
    except Exception as error:  # OSError, ValueError, errors of tokenizers and of the hub's client
        raise CheckpointError(f"There is no readable tokenizer in {place}{hint}: {one_line(error)}") from error


@contextmanager
def _only_known_vocabularies(place: str) -> Iterator[None]:
    """Refuses tokenizers whose vocabulary is of another kind, such as a pickle; also inside of others."""
    from transformers import PreTrainedTokenizerBase

    load = PreTrainedTokenizerBase.__dict__["_from_pretrained"].__func__

    def load_known(kind: Any, *args: Any, **kwargs: Any) -> Any:
        for name in (kind.vocab_files_names or {}).values():
            if not name.endswith(_VOCABULARIES):
                raise CheckpointError(
                    f"The tokenizer in {place} is a {kind.__name__}, whose vocabulary ({name}) could run code and is "
                    f"not read. Convert it to a {FILE}."
                )
        return load(kind, *args, **kwargs)

    with patched(PreTrainedTokenizerBase, "_from_pretrained", classmethod(load_known)):
        yield


def tokenizer_digest(tokenizer: Any) -> str:
    """Returns a hash of what defines a Hugging Face tokenizer: vocabulary, rules and special tokens."""
    if tokenizer.is_fast:
        parts = dict(json.loads(tokenizer.backend_tokenizer.to_str()))
        for state in ("truncation", "padding"):  # set by the last call
            parts.pop(state, None)
    else:
        parts = tokenizer.get_vocab()
    kind = [
        json.dumps(parts, sort_keys=True),
        str(tokenizer.special_tokens_map),
        tokenizer.padding_side,
        tokenizer.truncation_side,
    ]
    return hashlib.sha256("\n".join(kind).encode()).hexdigest()
