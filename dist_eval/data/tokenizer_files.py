"""Loading and saving tokenizers, also those whose files are newer than the installed libraries.

Only vocabularies that cannot run code are read: `tokenizer.json`, texts, and those of sentencepiece.

Two things in the files of Llama 3 and later are new. Merges are lists of two tokens, no longer strings; older libraries
cannot read them. With `ignore_merges`, a word that the vocabulary has is one token, whether or not merges lead to it;
older libraries ignore that in silence, and give other ids. Both are translated here, exactly, and the rest is refused.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dist_eval.errors import CheckpointError, one_line
from dist_eval.process.files import BY_UMASK, write_atomically
from dist_eval.process.parsing import parse_json
from dist_eval.process.patching import patched

FILE = "tokenizer.json"
_CHAT_TEMPLATE = "chat_template.jinja"
_VOCABULARIES = (".json", ".txt", ".codes", ".tokenizer", ".model", ".spm")
"""Endings of vocabularies that are JSON, text, or a model of sentencepiece."""

_FIRST_STAND_IN = 0xF0000
"""Code points from here on are private: no byte-level text has them."""

_WHOLE_WORDS = "ignore_merges"
_NOTHING_ELSE: dict[str, Any] = {
    **dict.fromkeys(("truncation", "padding", "normalizer", "pre_tokenizer", "post_processor", "decoder")),
    "added_tokens": [],
}

_LATER: dict[str, tuple[Any, ...]] = {
    _WHOLE_WORDS: (False, None),
    "prepend_scheme": ("always", None),
    "split": (True, None),
}
"""Fields that libraries of 2023 ignore, and their values that change nothing."""


def load_tokenizer(place: str, hint: str = "") -> Any:
    """Loads a Hugging Face tokenizer, which gives the ids that the newest `tokenizers` library gives.

    Args:
        place: folder or hub name.
        hint: added to the place in messages.

    Returns:
        The tokenizer. Of words that are translated (see above) the ids are right, but not the offsets, and they cannot
        be decoded.

    Raises:
        CheckpointError: there is no readable tokenizer, or the installed library would not give these ids.
    """
    try:
        with _only_known_vocabularies(place):
            tokenizer = _load(place)
        _set_chat_template(tokenizer, place)
        return tokenizer
    except CheckpointError:
        raise
    except Exception as error:  # OSError, ValueError, errors of tokenizers and of the hub's client
        raise CheckpointError(f"There is no readable tokenizer in {place}{hint}: {one_line(error)}") from error


def _load(place: str) -> Any:
    from transformers import AutoTokenizer

    definition = parse_json(_text_of(place, FILE) or "{}")
    readable, stand_ins = _translated(definition, f"{place}/{FILE}")
    if readable is definition:
        return AutoTokenizer.from_pretrained(place, trust_remote_code=False)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, FILE)
        file.write_text(json.dumps(readable), encoding="utf-8")
        tokenizer = AutoTokenizer.from_pretrained(place, trust_remote_code=False, tokenizer_file=str(file))
    if stand_ins:
        _replace_words(tokenizer.backend_tokenizer, stand_ins)
    tokenizer.definition, tokenizer.has_stand_ins = definition, bool(stand_ins)
    return tokenizer


def _text_of(place: str, name: str) -> str | None:
    """Returns the text of a file of a folder or hub model; None if there is none."""
    from transformers.utils import cached_file

    quiet = {"_raise_exceptions_for_missing_entries": False, "_raise_exceptions_for_connection_errors": False}
    found = cached_file(place, name, **quiet)
    return Path(found).read_text(encoding="utf-8") if found else None


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


def _set_chat_template(tokenizer: Any, place: str) -> None:
    """Sets the chat template as transformers does since it has had a file, and several templates, for it."""
    template = _text_of(place, _CHAT_TEMPLATE) or getattr(tokenizer, "chat_template", None)
    if isinstance(template, list):
        by_name = {one["name"]: one["template"] for one in template}
        template = by_name.get("default", "{{ raise_exception('none of its chat templates is the default') }}")
    tokenizer.chat_template = template


def save_tokenizer(tokenizer: Any, folder: Path) -> None:
    """Saves a tokenizer that `load_tokenizer` has loaded, with the file that it was loaded from.

    Raises:
        OSError: the files cannot be written.
    """
    definition = getattr(tokenizer, "definition", None)
    if definition is None:
        tokenizer.save_pretrained(folder)
        return
    from tokenizers.pre_tokenizers import ByteLevel

    backend = tokenizer.backend_tokenizer
    translating, backend.pre_tokenizer = backend.pre_tokenizer, ByteLevel()  # the library cannot write ours
    try:
        tokenizer.save_pretrained(folder)
    finally:
        backend.pre_tokenizer = translating
    write_atomically(folder / FILE, json.dumps(definition, ensure_ascii=False).encode(), BY_UMASK)


def require_decoding(tokenizer: Any, name: str) -> None:
    """Checks that a tokenizer can make texts of token ids.

    Args:
        tokenizer: from `load_tokenizer`.
        name: the model, for messages.

    Raises:
        CheckpointError: some of its words are translated.
    """
    if getattr(tokenizer, "has_stand_ins", False):
        import tokenizers

        raise CheckpointError(
            f"{name}/{FILE}: tokenizers {tokenizers.__version__} cannot make texts of these tokens. Use an "
            "installation with a newer one, such as that of Petals' main branch."
        )


def definition_of(tokenizer: Any) -> dict[str, Any]:
    """Returns the content of the file of a fast tokenizer."""
    definition = getattr(tokenizer, "definition", None)
    return dict(definition or json.loads(tokenizer.backend_tokenizer.to_str()))


def tokenizer_digest(tokenizer: Any) -> str:
    """Returns a hash of what defines a Hugging Face tokenizer: vocabulary, rules and special tokens."""
    if tokenizer.is_fast:
        parts = definition_of(tokenizer)
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


def _translated(definition: dict[str, Any], name: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Translates a definition for the installed library.

    Args:
        definition: content of the file.
        name: the file, for messages.

    Returns:
        A definition that the library can read, the same one if it needs no translation, and the stand-ins of words that
        it would split: for each word a character that has the word's id.
    """
    if not definition:
        return definition, {}
    model, hollow = definition["model"], {**definition, "added_tokens": []}
    if model.get("type") == "BPE":
        hollow["model"] = {**model, "vocab": {}, "merges": []}  # what is in them does not matter here
    ignored = sorted(set(_ignored(hollow, _as_read(hollow, name))) - {_WHOLE_WORDS})
    if ignored:
        raise _refusal(name, f"would ignore its {' and '.join(ignored)}")
    if any(isinstance(merge, list) for merge in model.get("merges", ())):
        model = {**model, "merges": [_as_text(merge, name) for merge in model["merges"]]}
    stand_ins = {}
    if model.get(_WHOLE_WORDS) and not _knows_whole_words():
        stand_ins = _stand_ins(definition, model, name)
    if model is definition["model"] and not stand_ins:
        return definition, {}
    # the words themselves stay: as a part of a longer word, merges may lead to them
    vocabulary = {**model["vocab"], **{character: model["vocab"][word] for word, character in stand_ins.items()}}
    return {**definition, "model": {**model, "vocab": vocabulary}}, stand_ins


def _as_text(merge: list[str] | str, name: str) -> str:
    if isinstance(merge, list) and any(" " in token for token in merge):
        raise _refusal(name, f"cannot read its merge {merge}, because of the space")
    return " ".join(merge) if isinstance(merge, list) else merge


def _stand_ins(definition: Mapping[str, Any], model: Mapping[str, Any], name: str) -> dict[str, str]:
    """Returns the words of a vocabulary that merges do not lead to, with a private character for each."""
    from tokenizers import Tokenizer

    alone = Tokenizer.from_str(json.dumps({"version": "1.0", "model": model, **_NOTHING_ELSE}))
    words, added = list(model["vocab"]), {token["content"]: token for token in definition.get("added_tokens") or ()}
    found = [
        word
        for word, encoding in zip(words, alone.encode_batch(words), strict=True)
        if encoding.ids != [model["vocab"][word]] and word not in added  # added tokens are found before words are
    ]
    if found and not (_is_by_bytes(definition.get("pre_tokenizer")) or _is_by_bytes(definition.get("normalizer"))):
        raise _refusal(name, f"would split {len(found)} words that its {_WHOLE_WORDS} keeps, such as {found[0]!r}")
    return {word: chr(_FIRST_STAND_IN + number) for number, word in enumerate(found)}


def _replace_words(backend: Any, stand_ins: Mapping[str, str]) -> None:
    """Makes a tokenizer replace words by their stand-ins, after it has split a text into words."""
    from tokenizers.pre_tokenizers import PreTokenizer, Sequence

    class Replacing:
        def pre_tokenize(self, text: Any) -> None:
            text.normalize(self._replace)

        def _replace(self, word: Any) -> None:
            if word.normalized in stand_ins:
                word.replace(word.normalized, stand_ins[word.normalized])

    backend.pre_tokenizer = Sequence([backend.pre_tokenizer, PreTokenizer.custom(Replacing())])


def _knows_whole_words() -> bool:
    known = _as_read({"model": {"type": "BPE", "vocab": {}, "merges": [], _WHOLE_WORDS: True}, **_NOTHING_ELSE}, "")
    return _WHOLE_WORDS in known["model"]


def _as_read(definition: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Returns a definition as the installed library understands it."""
    from tokenizers import Tokenizer

    try:
        return dict(json.loads(Tokenizer.from_str(json.dumps({"version": "1.0", **definition})).to_str()))
    except Exception as error:  # the library raises nothing more special
        raise _refusal(name, f"cannot read it ({one_line(error)})") from error


def _ignored(written: Any, read: Any) -> Iterator[str]:
    """Yields the newer fields that are written, and are not what the library assumes, but that it has not read."""
    if isinstance(written, dict):
        for key, value in written.items():
            kept = isinstance(read, dict) and key in read
            if not kept and key in _LATER and value not in _LATER[key]:
                yield key
            yield from _ignored(value, read[key] if kept else None)
    elif isinstance(written, list) and isinstance(read, list):
        for one, other in zip(written, read, strict=False):
            yield from _ignored(one, other)


def _is_by_bytes(component: Any) -> bool:
    if isinstance(component, dict):
        return component.get("type") == "ByteLevel" or any(map(_is_by_bytes, component.values()))
    return isinstance(component, list) and any(map(_is_by_bytes, component))


def _refusal(name: str, what: str) -> CheckpointError:
    import tokenizers

    return CheckpointError(
        f"{name} is newer than the installed library: tokenizers {tokenizers.__version__} {what}, and token ids would "
        "be wrong. Use an installation with a newer one, such as that of Petals' main branch."
    )
