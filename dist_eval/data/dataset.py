"""A tokenized dataset: examples with stable positions, and labels as class ids or numbers.

One rank of each host tokenizes, into a folder that the others memory-map (see `tokenize_dataset`): an Arrow
file with the token ids, and two arrays.
"""

from __future__ import annotations

import hashlib
import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from dist_eval.data.columns import column_writer, read_column
from dist_eval.data.labelled_rows import LabelledRows, text_bytes
from dist_eval.data.readers import place_of
from dist_eval.data.selection import SelectedRows, positions_of
from dist_eval.data.shared_prefixes import CommonTokens, Prefixes
from dist_eval.data.token_file import TokenFile, token_writer, with_types
from dist_eval.data.tokenizers import encode_texts, tokenizer_digest
from dist_eval.errors import DataError
from dist_eval.results.inputs import DatasetSummary
from dist_eval.tables import format_count

TOKENS_FILE, LENGTHS_FILE, LABELS_FILE, FACTS_FILE = "tokens.arrow", "lengths.npy", "labels.npy", "facts.json"
ROWS_FILE, CUT_FILE, COMMON_FILE = "rows.npy", "cut.npy", "common.npy"


class TokenizedDataset:
    """Tokenized examples in memory-mapped files, in a folder that `tokenize_dataset` wrote.

    Plans, journals and predictions identify an example by its row in the dataset, even if only some rows were
    tokenized. The arrays here have one item per example, in the order of the rows.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.facts = DatasetSummary.model_validate_json((folder / FACTS_FILE).read_bytes())  # summary of the dataset
        # number of tokens of each example, int32 of shape [examples]
        self.lengths: np.ndarray = np.load(folder / LENGTHS_FILE, mmap_mode="r")
        # tokens removed from each truncated text, int32 of shape [truncated texts]
        self.cut: np.ndarray = np.load(folder / CUT_FILE, mmap_mode="r")
        # label of each example, of the problem type's shape and dtype (see `dist_eval.petals.base_model.problem_types`)
        self.labels: np.ndarray = np.load(folder / LABELS_FILE, mmap_mode="r")
        is_part = self.facts.selection is not None
        # row of each example, ascending, int64 of shape [examples]; None for all rows
        self.rows: np.ndarray | None = np.load(folder / ROWS_FILE, mmap_mode="r") if is_part else None
        self._tokens = TokenFile(folder / TOKENS_FILE)

    @property
    def source(self) -> str:
        return self.facts.source

    @property
    def sampling_fraction(self) -> float:
        """Fraction of the dataset's rows in a random sample; 0 without one."""
        return self.facts.sampling_fraction

    def __len__(self) -> int:
        return self.facts.examples

    def where(self, position: int) -> str:
        """Returns the file and row of the example at a position, for messages."""
        row = position if self.rows is None else int(self.rows[position])
        return place_of(row, self.source, [(shard.file, shard.rows) for shard in self.facts.shards or ()])

    def file_digests(self) -> dict[str, str]:
        """Returns the hash of each file, by name; empty if files are not listed (see `DatasetSummary`)."""
        return {shard.file: shard.digest for shard in self.facts.shards or ()}

    def prefixes(self) -> Prefixes | None:
        """Returns the common prefixes of prompts; None for other texts."""
        path = self._folder / COMMON_FILE
        if not path.exists():
            return None
        return Prefixes(np.load(path), self.lengths - 1, lambda index, size: self.input_ids(index)[:size])

    def column(self, name: str) -> pa.Array:
        """Returns an extra column as text; missing values are null."""
        return read_column(self._folder, name)

    def input_ids(self, index: int) -> np.ndarray:
        """Returns the token ids of the example at a position, int32 of shape [length]."""
        return self._tokens.input_ids(index)

    def labels_of(self, rows: np.ndarray) -> np.ndarray:
        """Returns the labels of some examples, by their rows."""
        return self.labels[positions_of(rows, self.rows)]

    def padded(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Collates examples into a batch (see `TokenFile.padded`).

        `indices` are their rows in the dataset, int64 of shape [batch]. Returns token ids and lengths, int64 of shapes
        [batch, longest] and [batch].
        """
        positions = positions_of(indices, self.rows)
        lengths = np.asarray(self.lengths[positions], dtype=np.int64)
        return self._tokens.padded(positions, lengths), lengths


Render = Callable[[Sequence[Sequence[str]], int, Callable[[int], str]], list[str]]
"""Builds the texts to tokenize from the columns of some rows, given the first row's position and a function that
returns the location of a row."""


def tokenize_dataset(
    data: LabelledRows,
    folder: Path,
    *,
    tokenizer: Any,
    max_length: int,
    vocab_size: int | None = None,
    token_types: int = 0,
    begin_once: bool = True,
    strict: bool = False,
    extra_columns: Sequence[str] = (),
    render: Render | None = None,
    selected: SelectedRows | None = None,
) -> TokenizedDataset:
    """Reads and tokenizes a dataset into a folder; an error about a row names it.

    Args:
        data: the dataset.
        folder: an existing folder to write to.
        tokenizer: a Hugging Face tokenizer.
        max_length: maximum number of tokens of a text.
        vocab_size: vocabulary size of the base model; None skips the check.
        token_types: number of token types that the model knows; 0 for none.
        begin_once: whether to avoid a second BOS before texts that already begin with it (see `encode_texts`).
        strict: raise an error for a longer text instead of truncating it.
        extra_columns: further columns to keep (see `TokenizedDataset.column`); no digest depends on them.
        render: builds the texts to tokenize; by default, the texts of the columns.
        selected: the rows to tokenize; others are skipped unchecked. By default all rows.
    """
    encoder = _Encoder(tokenizer, max_length, vocab_size, token_types, begin_once, strict)
    extra_columns = list(dict.fromkeys(extra_columns))
    source = data.open(selected and selected.rows, extra_columns)
    labels = data.label_reader(source)
    digest, of_texts = hashlib.sha256(), hashlib.sha256()
    of_columns = {name: hashlib.sha256() for name in data.text_columns}
    lengths, cut, codes, common, prompts = [], [], [], [], CommonTokens()
    counts = Counter(examples=0, truncated=0, multiline=0, blank=0, unknown=0, with_begin=0)
    longest = 0
    with (
        token_writer(folder / TOKENS_FILE) as write_tokens,
        column_writer(folder, source.name, extra_columns) as write_columns,
    ):
        for first, batch in source.numbered():
            texts = data.texts(source, batch, first)
            of_texts.update(text_bytes(*texts))
            for name, column in zip(data.text_columns, texts, strict=True):
                of_columns[name].update(text_bytes(column))
            counts["multiline"] += sum(any("\n" in text for text in row) for row in zip(*texts, strict=True))
            if render is not None:
                texts = [render(texts, first, source.where)]
            encoded = encoder.encode(texts, first, source.where)
            is_cut = encoded.full_lengths > max_length
            write_tokens(encoded.with_types(token_types), encoded.offsets)
            codes.append(labels.codes(batch.column(batch.num_columns - 1), first))
            write_columns([batch.column(name) for name in extra_columns])
            lengths.append(encoded.lengths)
            cut.append((encoded.full_lengths - encoded.lengths)[is_cut])
            if render is not None:
                common += [-1 if lost else prompts.add(ids) for ids, lost in zip(encoded.rows(), is_cut, strict=True)]
            digest.update(encoded.for_digest())
            counts.update(encoder.count_wordless(encoded))
            counts["truncated"] += int(is_cut.sum())
            counts["with_begin"] += int(encoded.begun.sum())
            counts["examples"] += batch.num_rows
            longest = max(longest, int(encoded.full_lengths.max(initial=0)))
    if not counts["examples"]:
        raise DataError(f"{source.name} has no rows: there is nothing to evaluate.")
    if selected is not None:
        if counts["examples"] < len(selected.rows):
            raise DataError(f"{source.name} lost rows while it was read. Is another program writing to it?")
        np.save(folder / ROWS_FILE, selected.rows)
    label_ids = np.ascontiguousarray(labels.ids(np.concatenate(codes)))
    digest.update(label_ids.data)
    of_texts.update(label_ids.data)
    np.save(folder / LENGTHS_FILE, np.concatenate(lengths))
    np.save(folder / CUT_FILE, np.concatenate(cut))
    np.save(folder / LABELS_FILE, label_ids)
    if render is not None:
        np.save(folder / COMMON_FILE, np.asarray(common, dtype=np.int32))
    facts = DatasetSummary(
        source=source.name,
        is_path=source.is_path,
        longest=longest,
        max_length=max_length,
        digest=digest.hexdigest(),
        text_digest=of_texts.hexdigest(),
        column_digests={name: of_column.hexdigest() for name, of_column in of_columns.items()},
        tokenizer_digest=tokenizer_digest(tokenizer),
        selection=selected and selected.summary,
        normalized_labels=labels.normalized,
        shards=source.summaries(),
        **counts,
    )
    (folder / FACTS_FILE).write_text(facts.model_dump_json(), encoding="utf-8")
    return TokenizedDataset(folder)


@dataclass(frozen=True)
class _EncodedTexts:
    """The tokens of some texts, one text after the other."""

    ids: np.ndarray  # int32 of shape [tokens]
    types: np.ndarray | None  # of the same shape; None for a model without token types
    lengths: np.ndarray  # tokens of each text, int32 of shape [texts]
    full_lengths: np.ndarray  # the same before truncation
    begun: np.ndarray  # texts that already begin with BOS, bool of shape [texts]

    @property
    def offsets(self) -> np.ndarray:
        """Start of each text, and the end of the last one, int32 of shape [texts + 1]."""
        return np.concatenate([[0], np.cumsum(self.lengths)]).astype(np.int32)

    def rows(self) -> list[np.ndarray]:
        return [self.ids[begin:end] for begin, end in itertools.pairwise(self.offsets)]

    def with_types(self, known: int) -> np.ndarray:
        return self.ids if self.types is None else with_types(self.ids, self.types, known)

    def for_digest(self) -> bytes:
        types = b"" if self.types is None or not self.types.any() else self.types.tobytes()
        return types + self.ids.tobytes() + self.lengths.tobytes()


@dataclass(frozen=True)
class _Encoder:
    """Tokenizes texts (see `tokenize_dataset`)."""

    tokenizer: Any
    max_length: int
    vocab_size: int | None
    token_types: int
    begin_once: bool
    strict: bool

    def encode(self, texts: list[list[str]], first_row: int, where: Callable[[int], str]) -> _EncodedTexts:
        """Tokenizes texts by column; `first_row` is the position of the first row and `where` locates a row."""
        # not truncated, because the full length is reported; the longer text of a pair is truncated below
        encoded, begun = encode_texts(self.tokenizer, *texts, begin_once=self.begin_once, truncation=False)
        parts = ["input_ids", *(["token_type_ids"] if self.token_types and "token_type_ids" in encoded else [])]
        full_lengths = _lengths_of(encoded["input_ids"])
        self._require_lengths(full_lengths, first_row, where)
        too_long = np.flatnonzero(full_lengths > self.max_length)
        keeps_both = begun[too_long] & (self.tokenizer.truncation_side == "right")
        for more in (0, 1):  # a second BOS is kept when the text is truncated, and removed afterwards
            rows = too_long[keeps_both == more]
            if len(rows):
                some, longest_kept = [[column[row] for row in rows] for column in texts], self.max_length + more
                again, _ = encode_texts(
                    self.tokenizer, *some, begin_once=self.begin_once, truncation=True, max_length=longest_kept
                )
                for part in parts:
                    for row, tokens in zip(rows, again[part], strict=True):
                        encoded[part][row] = tokens
        lengths = _lengths_of(encoded["input_ids"])
        if lengths.max(initial=0) > self.max_length:
            raise DataError(
                f"--max-length {self.max_length} is too low: the tokenizer alone adds more tokens to every text. "
                f"Give at least {int(lengths.max()) + 1}."
            )
        ids, *types = (_joined(encoded[part], lengths) for part in parts)
        if self.vocab_size is not None and ids.max(initial=0) >= self.vocab_size:
            raise DataError(
                f"The tokenizer gives the token id {ids.max()}, but the base model knows only {self.vocab_size} ids. "
                "The tokenizer in the checkpoint's or the base model's folder belongs to another model."
            )
        return _EncodedTexts(ids, types[0] if types else None, lengths, full_lengths, begun)

    def count_wordless(self, encoded: _EncodedTexts) -> Counter[str]:
        """Counts texts without tokens of their own (blank) and texts of unknown tokens only (unknown)."""
        unknown, starts = self.tokenizer.unk_token_id, encoded.offsets[:-1]
        is_own = ~np.isin(encoded.ids, self.tokenizer("")["input_ids"])
        is_known = is_own & (encoded.ids != unknown) if unknown is not None else is_own
        own, known = (np.add.reduceat(which.astype(np.int32), starts) for which in (is_own, is_known))
        return Counter(blank=int((own == 0).sum()), unknown=int(((own > 0) & (known == 0)).sum()))

    def _require_lengths(self, lengths: np.ndarray, first_row: int, where: Callable[[int], str]) -> None:
        empty, too_long = np.flatnonzero(lengths == 0), np.flatnonzero(lengths > self.max_length)
        if len(empty):
            raise DataError(f"{where(first_row + int(empty[0]))}: the text is empty. There are no tokens to classify.")
        if self.strict and len(too_long):
            row = int(too_long[0])
            raise DataError(
                f"{where(first_row + row)}: the text has {format_count(lengths[row], 'token')}, more than --max-length "
                f"{self.max_length}. Raise it, or allow truncation by leaving out --strict."
            )


def _lengths_of(rows: Sequence[Sequence[int]]) -> np.ndarray:
    return np.fromiter(map(len, rows), dtype=np.int32, count=len(rows))


def _joined(rows: Sequence[Sequence[int]], lengths: np.ndarray) -> np.ndarray:
    return np.fromiter(itertools.chain.from_iterable(rows), dtype=np.int32, count=int(lengths.sum()))
