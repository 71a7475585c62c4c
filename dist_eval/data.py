"""A dataset → tokenized examples with stable positions, labels mapped to ids.

One rank of each host tokenizes, in chunks, into a folder that the others map into memory: an Arrow file with the token
ids, and two arrays. So no rank holds rows as Python objects, however many there are.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from dist_eval.errors import DataError
from dist_eval.readers import RowSource, integer_text, open_rows

_SHOWN = 60
_TOKENS_FILE, _LENGTHS_FILE, _LABELS_FILE, _FACTS_FILE = "tokens.arrow", "lengths.npy", "labels.npy", "facts.json"


@dataclass(frozen=True)
class DataFacts:
    """What is worth knowing of a tokenized dataset.

    Attributes:
        source: what the dataset is called.
        examples: number of rows.
        truncated: rows whose text was cut to `max_length` tokens.
        longest: tokens of the longest text, before it was cut.
        max_length: most tokens kept of a text.
        digest: hash of the token ids and labels.
    """

    source: str
    examples: int
    truncated: int
    longest: int
    max_length: int
    digest: str


class TokenizedDataset:
    """Tokenized examples in files, mapped into memory.

    Args:
        folder: what `tokenize_dataset` wrote.

    Attributes:
        facts: what is worth knowing.
        lengths: tokens of each example, int32 of shape [examples].
        labels: class of each example, int64 of shape [examples].
    """

    def __init__(self, folder: Path) -> None:
        self.facts = DataFacts(**json.loads((folder / _FACTS_FILE).read_text(encoding="utf-8")))
        self.lengths: np.ndarray = np.load(folder / _LENGTHS_FILE, mmap_mode="r")
        self.labels: np.ndarray = np.load(folder / _LABELS_FILE, mmap_mode="r")
        table = pa.ipc.open_file(pa.memory_map(str(folder / _TOKENS_FILE))).read_all()
        chunks = table.column("input_ids").chunks
        self._chunk_starts = np.cumsum([0, *(len(chunk) for chunk in chunks)])
        self._offsets = [chunk.offsets.to_numpy() for chunk in chunks]
        self._values = [chunk.values.to_numpy() for chunk in chunks]

    def __len__(self) -> int:
        return self.facts.examples

    def input_ids(self, index: int) -> np.ndarray:
        """Returns the token ids of one example, int32 of shape [length]."""
        chunk = int(np.searchsorted(self._chunk_starts, index, side="right")) - 1
        row = index - int(self._chunk_starts[chunk])
        begin, end = self._offsets[chunk][row], self._offsets[chunk][row + 1]
        return self._values[chunk][begin:end]

    def padded(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Puts examples into one batch, padded on the right with id 0.

        The padding id does not matter: attention is causal, and the last real token is found by the length.

        Args:
            indices: positions in the dataset, int64 of shape [batch].

        Returns:
            Token ids, int64 of shape [batch, longest], and lengths, int64 of shape [batch].
        """
        lengths = np.asarray(self.lengths[indices], dtype=np.int64)
        batch = np.zeros((len(indices), int(lengths.max())), dtype=np.int64)
        for row, index in enumerate(indices):
            batch[row, : lengths[row]] = self.input_ids(int(index))
        return batch, lengths


def tokenize_dataset(
    dataset: str,
    folder: Path,
    *,
    tokenizer: Any,
    text_columns: Sequence[str],
    label_column: str,
    label_names: Sequence[str],
    max_length: int,
    strict: bool = False,
    subset: str | None = None,
    split: str | None = None,
) -> TokenizedDataset:
    """Reads and tokenizes a dataset into a folder.

    Args:
        dataset: file, folder or hub name (see `dist_eval.readers.open_rows`).
        folder: an existing folder to write to.
        tokenizer: a Hugging Face tokenizer.
        text_columns: one column, or two for a pair.
        label_column: the column with the labels.
        label_names: names of the head's classes.
        max_length: most tokens kept of a text.
        strict: treat a longer text as an error instead of cutting it.
        subset: configuration of a hub dataset.
        split: split of a hub dataset or of a folder.

    Returns:
        The tokenized dataset.

    Raises:
        DataError: the dataset cannot be read, is empty, or a row has no text, no tokens, no known label, or (with
            `strict`) too many tokens; the message names the row.
    """
    source = open_rows(dataset, [*text_columns, label_column], subset=subset, split=split)
    labels = LabelReader(source, label_column, label_names)
    digest, lengths, codes, truncated, longest = hashlib.sha256(), [], [], 0, 0
    schema = pa.schema([("input_ids", pa.list_(pa.int32()))])
    with pa.OSFile(str(folder / _TOKENS_FILE), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        row = 0
        for batch in source.batches:
            texts = [_texts(source.name, name, batch.column(i), row) for i, name in enumerate(text_columns)]
            # without truncation, because the true length is worth knowing; the pair's longer text is cut below
            ids = tokenizer(*texts, truncation=False, return_attention_mask=False, verbose=False)["input_ids"]
            full = np.fromiter(map(len, ids), dtype=np.int32, count=len(ids))
            _check_lengths(source.name, row, full, max_length, strict)
            too_long = np.flatnonzero(full > max_length)
            if len(too_long):
                cut = [[column[i] for i in too_long] for column in texts]
                again = tokenizer(*cut, truncation=True, max_length=max_length, return_attention_mask=False)[
                    "input_ids"
                ]
                for i, shorter in zip(too_long, again, strict=True):
                    ids[i] = shorter
            kept = np.fromiter(map(len, ids), dtype=np.int32, count=len(ids))
            if kept.max(initial=0) > max_length:
                raise DataError(
                    f"--max-length {max_length} is too low: the tokens that the tokenizer itself adds to every text "
                    f"are more. Give at least {int(kept.max()) + 1}."
                )
            values = np.fromiter((token for tokens in ids for token in tokens), dtype=np.int32, count=int(kept.sum()))
            offsets = np.concatenate([[0], np.cumsum(kept)]).astype(np.int32)
            writer.write_batch(pa.record_batch([pa.ListArray.from_arrays(offsets, values)], schema=schema))
            codes.append(labels.codes(batch.column(len(text_columns)), row))
            lengths.append(kept)
            digest.update(values.tobytes() + kept.tobytes())
            truncated, longest = truncated + len(too_long), max(longest, int(full.max(initial=0)))
            row += len(ids)
    if row == 0:
        raise DataError(f"{source.name} has no rows: there is nothing to evaluate.")
    label_ids = labels.ids(np.concatenate(codes))
    digest.update(label_ids.tobytes())
    np.save(folder / _LENGTHS_FILE, np.concatenate(lengths))
    np.save(folder / _LABELS_FILE, label_ids)
    facts = DataFacts(source.name, row, truncated, longest, max_length, digest.hexdigest())
    (folder / _FACTS_FILE).write_text(json.dumps(asdict(facts)), encoding="utf-8")
    return TokenizedDataset(folder)


def _texts(source: str, column: str, array: pa.Array, first_row: int) -> list[str]:
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if array.null_count:
        row = first_row + int(np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False))[0])
        raise DataError(f"{source}, row {row} (counted from 0): the text in column {column!r} is missing (null).")
    if not (pa.types.is_string(array.type) or pa.types.is_large_string(array.type)):
        raise DataError(f"{source}: column {column!r} holds {array.type}, not text.")
    return array.to_pylist()


def _check_lengths(source: str, first_row: int, lengths: np.ndarray, max_length: int, strict: bool) -> None:
    if len(lengths) and lengths.min() == 0:
        row = first_row + int(np.flatnonzero(lengths == 0)[0])
        raise DataError(f"{source}, row {row} (counted from 0): the text is empty, it has no tokens to classify.")
    if strict and len(lengths) and lengths.max() > max_length:
        row = first_row + int(np.flatnonzero(lengths > max_length)[0])
        raise DataError(
            f"{source}, row {row} (counted from 0): the text has {lengths[row - first_row]} tokens, more than "
            f"--max-length {max_length}, and --strict forbids to cut it."
        )


class LabelReader:
    """Maps the label column to class ids: a value that is the name of a class means that class, else its number.

    Values are collected first and mapped at the end, so that the column is read one way throughout: a column in which
    some values are only names and others only numbers is ambiguous and refused.

    Args:
        source: where the rows come from.
        column: the label column's name.
        label_names: names of the head's classes.
    """

    def __init__(self, source: RowSource, column: str, label_names: Sequence[str]) -> None:
        self._source, self._column, self._names = source.name, column, list(label_names)
        self._class_names = source.class_names
        self._first_row: dict[str, int] = {}
        self._code: dict[str, int] = {}

    def codes(self, array: pa.Array, first_row: int) -> np.ndarray:
        """Collects a chunk of labels.

        Args:
            array: the chunk.
            first_row: position of its first row.

        Returns:
            A code for each distinct value, int32 of the chunk's shape.

        Raises:
            DataError: a label is missing or of a type that labels cannot have.
        """
        if pa.types.is_dictionary(array.type):
            array = array.dictionary_decode()
        if array.null_count:
            row = first_row + int(np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False))[0])
            raise DataError(f"{self._where(row)}: the label in column {self._column!r} is missing (null).")
        if pa.types.is_floating(array.type) or pa.types.is_nested(array.type) or pa.types.is_temporal(array.type):
            raise DataError(
                f"{self._source}: column {self._column!r} holds {array.type}; labels are class numbers or names."
            )
        encoded = array.dictionary_encode()
        positions = encoded.indices.to_numpy()
        local = np.empty(len(encoded.dictionary), dtype=np.int32)
        for position, value in enumerate(encoded.dictionary.to_pylist()):
            text = self._as_text(value)
            if text not in self._code:
                self._code[text] = len(self._code)
                self._first_row[text] = first_row + int(np.argmax(positions == position))
            local[position] = self._code[text]
        return local[positions]

    def ids(self, codes: np.ndarray) -> np.ndarray:
        """Maps all codes to class ids.

        Args:
            codes: what `codes` returned for all chunks, int32 of shape [n].

        Returns:
            Classes in 0..num_labels-1, int64 of shape [n].

        Raises:
            DataError: a value is no class of the head, or the column is ambiguous; the message names a row.
        """
        by_name = {name: number for number, name in enumerate(self._names)}
        doubled = next((text for text in self._code if self._names.count(text) > 1), None)
        if doubled is not None:
            raise DataError(
                f"{self._where(self._first_row[doubled])}: the label in column {self._column!r} is {_short(doubled)}, "
                "the name of more than one class of the head. Use class numbers, or give the classes different names."
            )
        as_name = {text: by_name.get(text) for text in self._code}
        as_number = {text: self._number(text) for text in self._code}
        for text in self._code:
            if as_name[text] is None and as_number[text] is None:
                raise DataError(self._unknown(text))
        mapping = as_name if all(v is not None for v in as_name.values()) else as_number
        if any(v is None for v in mapping.values()):
            name = next(t for t, v in as_number.items() if v is None)
            number = next(t for t, v in as_name.items() if v is None)
            raise DataError(
                f"{self._source}: column {self._column!r} is ambiguous: {name!r} (row {self._first_row[name]}) is the "
                f"name of a class, {number!r} (row {self._first_row[number]}) only a number. Use names or numbers."
            )
        table = np.asarray([mapping[text] for text in self._code], dtype=np.int64)
        return table[codes]

    def _as_text(self, value: Any) -> str:
        declared = self._class_names or []
        is_number = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < len(declared)
        return declared[value] if is_number and set(declared) <= set(self._names) else str(value)

    def _number(self, text: str) -> int | None:
        number = integer_text(text)
        return number if number is not None and 0 <= number < len(self._names) else None

    def _where(self, row: int) -> str:
        return f"{self._source}, row {row} (counted from 0)"

    def _unknown(self, text: str) -> str:
        shown = ", ".join(self._names[:10]) + (", ..." if len(self._names) > 10 else "")
        what = _short(text) if text else "empty"
        return (
            f"{self._where(self._first_row[text])}: the label in column {self._column!r} is {what}, but the head knows "
            f"only the classes {shown} (0 to {len(self._names) - 1})."
        )


def _short(text: str) -> str:
    return repr(text) if len(text) <= _SHOWN else f"{text[:_SHOWN]!r}... ({len(text)} characters)"
