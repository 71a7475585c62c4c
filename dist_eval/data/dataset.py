"""A dataset → tokenized examples with stable positions, and labels as class ids or numbers.

One rank of each host tokenizes, in chunks, into a folder that the others memory-map: an Arrow file with the token ids,
and two arrays. So no rank holds rows as Python objects, however many there are.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Container, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from dist_eval.data.columns import column_writer, read_column
from dist_eval.data.label_columns import open_labels
from dist_eval.data.problem_types import SINGLE_LABEL, Problem
from dist_eval.data.readers import RowSource, open_rows, place_of
from dist_eval.data.selection import SelectedRows, only_rows, places_of
from dist_eval.data.shared_prefixes import Beginnings, CommonTokens
from dist_eval.data.texts import text_bytes, texts_in
from dist_eval.data.token_file import TokenFile, token_writer
from dist_eval.data.token_ids import encode_texts
from dist_eval.data.token_types import with_types
from dist_eval.data.tokenizer_files import tokenizer_digest
from dist_eval.errors import DataError
from dist_eval.results.inputs import DatasetSummary
from dist_eval.tables import format_count

_TOKENS_FILE, _LENGTHS_FILE, _LABELS_FILE, _FACTS_FILE = "tokens.arrow", "lengths.npy", "labels.npy", "facts.json"
_ROWS_FILE, _CUT_FILE, _COMMON_FILE = "rows.npy", "cut.npy", "common.npy"

Render = Callable[[Sequence[Sequence[str]], int, Callable[[int], str]], list[str]]


class TokenizedDataset:
    """Tokenized examples in memory-mapped files.

    An example is named by its row in the dataset, whether all rows were tokenized or some: that is what plans, journals
    and predictions hold. The arrays here have an item for each example, in the order of the rows.

    Args:
        folder: the folder that `tokenize_dataset` wrote.

    Attributes:
        facts: summary of the dataset.
        rows: row of each example, ascending, int64 of shape [examples]; None if they are all rows.
        lengths: number of tokens of each example, int32 of shape [examples].
        cut: tokens that each text that was too long has lost, int32 of shape [texts that were cut].
        labels: label of each example, of the problem type's shape and dtype (see `dist_eval.data.problem_types`).
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.facts = DatasetSummary.model_validate_json((folder / _FACTS_FILE).read_bytes())
        self.lengths: np.ndarray = np.load(folder / _LENGTHS_FILE, mmap_mode="r")
        self.cut: np.ndarray = np.load(folder / _CUT_FILE, mmap_mode="r")
        self.labels: np.ndarray = np.load(folder / _LABELS_FILE, mmap_mode="r")
        is_part = self.facts.selection is not None
        self.rows: np.ndarray | None = np.load(folder / _ROWS_FILE, mmap_mode="r") if is_part else None
        self._tokens = TokenFile(folder / _TOKENS_FILE)

    @property
    def source(self) -> str:
        """Name of the dataset, for messages."""
        return self.facts.source

    def __len__(self) -> int:
        return self.facts.examples

    def where(self, position: int) -> str:
        """Says in which file an example is, given by its position among them, and its row there, for messages."""
        row = position if self.rows is None else int(self.rows[position])
        return place_of(row, self.source, [(shard.file, shard.rows) for shard in self.facts.shards or ()])

    def file_digests(self) -> dict[str, str]:
        """Returns the hash of each of its files, by name; empty if they are not listed (see `DatasetSummary`)."""
        return {shard.file: shard.digest for shard in self.facts.shards or ()}

    def beginnings(self) -> Beginnings | None:
        """Returns what prompts have in common; None for texts that are no prompts."""
        path = self._folder / _COMMON_FILE
        if not path.exists():
            return None
        return Beginnings(np.load(path), self.lengths - 1, lambda index, size: self.input_ids(index)[:size])

    def column(self, name: str) -> pa.Array:
        """Returns one of the extra columns as text: strings, null where a value is missing."""
        return read_column(self._folder, name)

    def input_ids(self, index: int) -> np.ndarray:
        """Returns the token ids of one example, by its position among them, int32 of shape [length]."""
        return self._tokens.input_ids(index)

    def labels_of(self, rows: np.ndarray) -> np.ndarray:
        """Returns the labels of some examples, by their rows."""
        return self.labels[places_of(rows, self.rows)]

    def padded(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Collates examples into a batch (see `TokenFile.padded`).

        Args:
            indices: their rows in the dataset, int64 of shape [batch].

        Returns:
            Token ids, int64 of shape [batch, longest], and lengths, int64 of shape [batch].
        """
        places = places_of(indices, self.rows)
        lengths = np.asarray(self.lengths[places], dtype=np.int64)
        return self._tokens.padded(places, lengths), lengths


def tokenize_dataset(
    dataset: str | Sequence[str],
    folder: Path,
    *,
    tokenizer: Any,
    text_columns: Sequence[str],
    label_column: str,
    label_names: Sequence[str],
    max_length: int,
    vocab_size: int | None = None,
    token_types: int = 0,
    begin_once: bool = True,
    labels: str = "auto",
    problem: Problem = SINGLE_LABEL,
    strict: bool = False,
    extra_columns: Sequence[str] = (),
    render: Render | None = None,
    subset: str | None = None,
    split: str | None = None,
    selected: SelectedRows | None = None,
) -> TokenizedDataset:
    """Reads and tokenizes a dataset into a folder.

    Args:
        dataset: files, folders, patterns or a hub name (see `dist_eval.data.readers.open_rows`).
        folder: an existing folder to write to.
        tokenizer: a Hugging Face tokenizer.
        text_columns: one column, or two for a pair; any number with `render`.
        label_column: the column with the labels.
        label_names: names of the head's classes or outputs.
        max_length: maximum number of tokens of a text.
        vocab_size: vocabulary size of the base model; None skips this check.
        token_types: number of token types that the model knows; 0 if it takes none.
        begin_once: whether a text that begins with BOS gets no second one (see `encode_texts`).
        labels: how to interpret the label column (see `LabelReader` and `dist_eval.data.label_columns`).
        problem: the problem type.
        strict: raise an error for a longer text instead of truncating it.
        extra_columns: further columns to keep (see `TokenizedDataset.column`); no digest depends on them.
        render: makes the text that is tokenized from the columns of some rows, given the position of the first one and
            a function that says where a row is.
        subset: configuration of a hub dataset.
        split: split of a hub dataset or of a folder.
        selected: the rows to tokenize; all others are skipped unseen. By default all rows.

    Returns:
        The tokenized dataset.

    Raises:
        DataError: the dataset cannot be read, is empty, or a row has no text, no tokens, no known label, or (with
            `strict`) too many tokens; the message names the row.
    """
    extra_columns = list(dict.fromkeys(extra_columns))
    others = [name for name in extra_columns if name not in (*text_columns, label_column)]
    columns = [*text_columns, *others, label_column]
    source = only_rows(open_rows(dataset, columns, subset=subset, split=split), selected and selected.rows)
    reader = open_labels(problem, source, label_column, label_names, labels)
    digest, of_texts, of_columns = hashlib.sha256(), hashlib.sha256(), {name: hashlib.sha256() for name in text_columns}
    lengths, codes, lost, common, prompts = [], [], [], [], CommonTokens()
    row = truncated = longest = multiline = with_begin = 0
    wordless = np.zeros(2, dtype=np.int64)
    with (
        token_writer(folder / _TOKENS_FILE) as writer,
        column_writer(folder, source.name, extra_columns) as write_columns,
    ):
        for batch in source.batches:
            numbers = render is not None
            texts = [texts_in(source, name, batch.column(i), row, numbers) for i, name in enumerate(text_columns)]
            of_texts.update(text_bytes(*texts))
            for name, column in zip(text_columns, texts, strict=True):
                of_columns[name].update(text_bytes(column))
            multiline += sum(any("\n" in text for text in row_texts) for row_texts in zip(*texts, strict=True))
            if render is not None:
                texts = [render(texts, row, source.where)]
            # without truncation, because the full length is reported; the longer text of a pair is truncated below
            encoded, begun = encode_texts(tokenizer, *texts, begin_once=begin_once, truncation=False)
            ids, types = encoded["input_ids"], encoded.get("token_type_ids") if token_types else None
            full = np.fromiter(map(len, ids), dtype=np.int32, count=len(ids))
            _check_lengths(source, row, full, max_length, strict)
            too_long = np.flatnonzero(full > max_length)
            keeps_both = begun[too_long] & (tokenizer.truncation_side == "right")
            for more in (0, 1):  # a second first token is kept when the text is cut, and taken away afterwards
                rows = too_long[keeps_both == more]
                if len(rows):
                    cut = [[column[i] for i in rows] for column in texts]
                    longest_kept = {"truncation": True, "max_length": max_length + more}
                    again, _ = encode_texts(tokenizer, *cut, begin_once=begin_once, **longest_kept)
                    for number, i in enumerate(rows):
                        ids[i] = again["input_ids"][number]
                        if types is not None:
                            types[i] = again["token_type_ids"][number]
            kept = np.fromiter(map(len, ids), dtype=np.int32, count=len(ids))
            if kept.max(initial=0) > max_length:
                raise DataError(
                    f"--max-length {max_length} is too low: the tokens that the tokenizer itself adds to every text "
                    f"are more. Give at least {int(kept.max()) + 1}."
                )
            values = _joined(ids, kept)
            if vocab_size is not None and values.max(initial=0) >= vocab_size:
                raise DataError(
                    f"The tokenizer gives the token id {values.max()}, but the base model knows only {vocab_size} ids: "
                    "the tokenizer in the checkpoint's or the base model's folder belongs to another model."
                )
            offsets = np.concatenate([[0], np.cumsum(kept)]).astype(np.int32)
            stored = values
            if types is not None:
                of_tokens = _joined(types, kept)
                stored = with_types(values, of_tokens, token_types)
                digest.update(of_tokens.tobytes() if of_tokens.any() else b"")
            writer.write(stored, offsets)
            wordless += _count_wordless(values, offsets, tokenizer)
            codes.append(reader.codes(batch.column(len(columns) - 1), row))
            write_columns([batch.column(columns.index(name)) for name in extra_columns])
            lengths.append(kept)
            lost.append((full - kept)[too_long])
            if render is not None:
                for begin, end, was in zip(offsets[:-1], offsets[1:], full, strict=True):
                    common.append(prompts.add(values[begin:end]) if was <= max_length else -1)
            digest.update(values.tobytes() + kept.tobytes())
            truncated += len(too_long)
            with_begin += int(begun.sum())
            longest = max(longest, int(full.max(initial=0)))
            row += len(ids)
    if row == 0:
        raise DataError(f"{source.name} has no rows: there is nothing to evaluate.")
    if selected is not None:
        if row < len(selected.rows):
            raise DataError(f"{source.name} lost rows while it was read: does something else write to it?")
        np.save(folder / _ROWS_FILE, selected.rows)
    label_ids = np.ascontiguousarray(reader.ids(np.concatenate(codes)))
    for one in (digest, of_texts):
        one.update(label_ids.data)
    np.save(folder / _LENGTHS_FILE, np.concatenate(lengths))
    np.save(folder / _CUT_FILE, np.concatenate(lost))
    np.save(folder / _LABELS_FILE, label_ids)
    if render is not None:
        np.save(folder / _COMMON_FILE, np.asarray(common, dtype=np.int32))
    facts = DatasetSummary(
        source=source.name,
        is_path=source.is_path,
        examples=row,
        truncated=truncated,
        longest=longest,
        multiline=multiline,
        blank=int(wordless[0]),
        unknown=int(wordless[1]),
        with_begin=with_begin,
        max_length=max_length,
        digest=digest.hexdigest(),
        text_digest=of_texts.hexdigest(),
        column_digests={name: of_column.hexdigest() for name, of_column in of_columns.items()},
        tokenizer_digest=tokenizer_digest(tokenizer),
        selection=selected and selected.summary,
        normalized_labels=reader.normalized,
        shards=source.summaries(),
    )
    (folder / _FACTS_FILE).write_text(facts.model_dump_json(), encoding="utf-8")
    return TokenizedDataset(folder)


def read_texts(
    dataset: str | Sequence[str],
    wanted: Container[int],
    *,
    text_columns: Sequence[str],
    label_column: str,
    label_names: Sequence[str],
    labels: str = "auto",
    problem: Problem = SINGLE_LABEL,
    numbers: bool = False,
    subset: str | None = None,
    split: str | None = None,
    rows: np.ndarray | None = None,
) -> tuple[dict[int, tuple[str, ...]], str]:
    """Reads some texts of a dataset, and hashes all of them.

    Args:
        dataset: files, folders, patterns or a hub name.
        wanted: rows of the dataset whose texts to return.
        text_columns: as in `tokenize_dataset`, like all further arguments.
        label_column: see `tokenize_dataset`.
        label_names: see `tokenize_dataset`.
        labels: see `tokenize_dataset`.
        problem: see `tokenize_dataset`.
        numbers: whether text columns may hold numbers, as they may in a prompt.
        subset: see `tokenize_dataset`.
        split: see `tokenize_dataset`.
        rows: the rows to read, ascending, int64 of shape [rows]; by default all.

    Returns:
        The texts by row, one for each text column, and the `text_digest` of all that was read.

    Raises:
        DataError: the dataset cannot be read, or a row has no text or no known label; the message names the row.
    """
    source = only_rows(open_rows(dataset, [*text_columns, label_column], subset=subset, split=split), rows)
    reader = open_labels(problem, source, label_column, label_names, labels)
    digest, codes, found, row = hashlib.sha256(), [], {}, 0
    for batch in source.batches:
        texts = [texts_in(source, name, batch.column(i), row, numbers) for i, name in enumerate(text_columns)]
        digest.update(text_bytes(*texts))
        codes.append(reader.codes(batch.column(len(text_columns)), row))
        numbered = ((source.row(row + i), of_row) for i, of_row in enumerate(zip(*texts, strict=True)))
        found.update({number: of_row for number, of_row in numbered if number in wanted})
        row += batch.num_rows
    digest.update(reader.ids(np.concatenate(codes)).tobytes() if codes else b"")
    return found, digest.hexdigest()


def _joined(rows: Sequence[Sequence[int]], lengths: np.ndarray) -> np.ndarray:
    """Joins the numbers of all rows, int32 of shape [sum of lengths]."""
    return np.fromiter(itertools.chain.from_iterable(rows), dtype=np.int32, count=int(lengths.sum()))


def _count_wordless(tokens: np.ndarray, offsets: np.ndarray, tokenizer: Any) -> tuple[int, int]:
    """Counts rows without tokens of the text itself, and rows with unknown tokens only.

    Args:
        tokens: tokens of all rows, int32 of shape [tokens].
        offsets: start of each row, and the end, int32 of shape [rows + 1]; no row is empty.
        tokenizer: a Hugging Face tokenizer.
    """
    unknown = tokenizer.unk_token_id
    own = ~np.isin(tokens, tokenizer("")["input_ids"])
    known = own & (tokens != unknown) if unknown is not None else own
    own_ones, known_ones = (np.add.reduceat(which.astype(np.int32), offsets[:-1]) for which in (own, known))
    return int((own_ones == 0).sum()), int(((own_ones > 0) & (known_ones == 0)).sum())


def _check_lengths(source: RowSource, first_row: int, lengths: np.ndarray, max_length: int, strict: bool) -> None:
    if len(lengths) and lengths.min() == 0:
        row = first_row + int(np.flatnonzero(lengths == 0)[0])
        raise DataError(f"{source.where(row)}: the text is empty, it has no tokens to classify.")
    if strict and len(lengths) and lengths.max() > max_length:
        row = first_row + int(np.flatnonzero(lengths > max_length)[0])
        raise DataError(
            f"{source.where(row)}: the text has {format_count(lengths[row - first_row], 'token')}, more than "
            f"--max-length {max_length}, and --strict forbids to cut it."
        )
