"""Rows of a dataset as prompts for generated texts: token ids, references, and columns for the analysis."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from dist_eval.data.chat import Frame
from dist_eval.data.columns import column_writer, read_column
from dist_eval.data.generation import write_prompts
from dist_eval.data.labelled_rows import LabelledRows, draw_positions, text_bytes
from dist_eval.data.prompts import Template, join_texts
from dist_eval.data.readers import FILL_IN, RowSource
from dist_eval.data.selection import SelectedRows
from dist_eval.data.tokenizers import token_ids
from dist_eval.errors import DataError
from dist_eval.results.inputs import Decoding, SelectionSummary


def references_in(source: RowSource, column: str, array: pa.Array, first_row: int) -> list[list[str]]:
    """Returns the references of some rows: a text or whole number per row, or a list of them.

    SQuAD's answers, records with a list `text`, are also accepted.
    """
    if pa.types.is_struct(array.type) and array.type.get_field_index("text") >= 0:
        array = pa.compute.struct_field(array, "text")
    kind, is_list = array.type, False
    if pa.types.is_list(kind):
        kind, is_list = kind.value_type, True
    if pa.types.is_floating(kind):
        raise DataError(
            f"{source.file}: column {column!r} holds {array.type}, which can be written in several ways (18 or 18.0, "
            "1e6 or 1000000): write references as text."
        )
    if not pa.types.is_string(kind) and (pa.types.is_temporal(kind) or not pa.types.is_primitive(kind)):
        raise DataError(
            f"{source.file}: column {column!r} holds {array.type}; references must be texts or lists of texts. "
            "Convert it, or name another column."
        )
    values: list[Any] = array.cast(pa.list_(pa.string()) if is_list else pa.string()).to_pylist()
    rows = [value if is_list else [value] for value in values]
    missing = np.flatnonzero([not row or None in row for row in rows])
    if len(missing):
        row = first_row + int(missing[0])
        raise DataError(f"{source.where(row)}: the reference in column {column!r} is missing. {FILL_IN}")
    return rows


def draw_referenced(data: LabelledRows, count: int, seed: int) -> tuple[list[int], list[tuple[list[str], str]]]:
    """Draws examples for a prompt without replacement, the same rows as `draw_examples`.

    Rows that are not drawn may lack texts and references. Returns the rows' positions in the file, in the order in
    which they were drawn; and the texts, by column, and the first reference of each.
    """
    drawn = draw_positions(data, count, seed)
    source = data.open(np.sort(drawn))
    found: dict[int, tuple[list[str], str]] = {}
    for first, batch in source.numbered():
        texts = zip(*data.texts(source, batch, first), strict=True)
        references = references_in(source, data.label_column, batch.column(batch.num_columns - 1), first)
        for place, (of_row, [reference, *_]) in enumerate(zip(texts, references, strict=True)):
            found[source.row(first + place)] = list(of_row), reference
    return drawn.tolist(), [found[row] for row in drawn.tolist()]


@dataclass
class PromptedRows:
    """The rows, which `write` reads; arrays and lists have one item per row."""

    data: LabelledRows
    template: Template
    tokenizer: Any
    folder: Path  # where the token ids and the extra columns are written
    before: str = ""  # examples before each prompt
    frame: Frame | None = None  # frame around both; None for none
    selected: SelectedRows | None = None  # the selected rows; None for all
    extra_columns: Sequence[str] = ()
    source: RowSource = field(init=False)  # the rows
    references: list[list[str]] = field(init=False, default_factory=list)  # accepted texts after each prompt
    lengths: np.ndarray = field(init=False)  # tokens of each prompt as sent, int64 of shape [n]
    with_begin: int = field(init=False, default=0)  # prompts that already begin with BOS

    def __post_init__(self) -> None:
        self.extra_columns = list(dict.fromkeys(self.extra_columns))
        self.source = self.data.open(self.rows, self.extra_columns)
        self._digest = hashlib.sha256()
        self._of_columns = {name: hashlib.sha256() for name in self.data.text_columns}

    def write(self, decoding: Decoding, *, max_length: int, vocab_size: int, strict: bool) -> None:
        """Reads the rows, and writes the prompts (see `write_prompts`) and the extra columns.

        With `strict`, a prompt that needs truncation is an error that names its row.
        """
        prompts = ((ids, decoding) for ids in self._token_ids(max_length - decoding.max_new_tokens, vocab_size, strict))
        written = write_prompts(self.folder, prompts, max_length=max_length, rows=self.rows)
        self.lengths = written.lengths[:, 0]
        if not self.references:
            raise DataError(f"{self.source.name} has no rows: there is nothing to evaluate.")

    def _token_ids(self, room: int, vocab_size: int, strict: bool) -> Iterator[list[int]]:
        source, data = self.source, self.data
        begin = self.tokenizer.bos_token or ""
        with column_writer(self.folder, source.name, self.extra_columns) as write_columns:
            for first, batch in source.numbered():
                texts = data.texts(source, batch, first)
                for name, column in zip(data.text_columns, texts, strict=True):
                    self._of_columns[name].update(text_bytes(column))
                prompts = self.template.fill(texts)
                self.references += references_in(source, data.label_column, batch.column(batch.num_columns - 1), first)
                write_columns([batch.column(name) for name in self.extra_columns])
                if self.before:
                    prompts = [join_texts([self.before, prompt], begin) for prompt in prompts]
                around = self.frame.around if self.frame else str
                prompts = [around(prompt + self.template.space) for prompt in prompts]
                self._digest.update(json.dumps(prompts).encode())
                tokenized, begun = token_ids(self.tokenizer, prompts)
                self.with_begin += int(begun.sum())
                for row, ids in enumerate(tokenized, start=first):
                    self._require_usable(ids, row, room, vocab_size, strict)
                    yield ids

    def _require_usable(self, ids: Sequence[int], row: int, room: int, vocab_size: int, strict: bool) -> None:
        problem = ""
        if not ids:
            problem = "the prompt is empty"
        elif strict and len(ids) > room:
            problem = (
                f"the prompt has {len(ids)} tokens, but --max-length and --max-new-tokens leave only {room}, and "
                "--strict forbids truncation"
            )
        elif max(ids) >= vocab_size:
            problem = (
                f"the tokenizer gives the token id {max(ids)}, but the model knows only {vocab_size} ids. It belongs "
                "to another model"
            )
        if problem:
            raise DataError(f"{self.source.where(row)}: {problem}.")

    def digest(self) -> str:
        return self._digest.hexdigest()

    def column_digests(self) -> dict[str, str]:
        """Returns a hash of each column used in prompts, by its name."""
        return {name: digest.hexdigest() for name, digest in self._of_columns.items()}

    def references_digest(self) -> str:
        return hashlib.sha256(json.dumps(self.references).encode()).hexdigest()

    @property
    def rows(self) -> np.ndarray | None:
        """Row of the dataset of each prompt, ascending, int64 of shape [n]; None for all rows."""
        return self.selected and self.selected.rows

    def rows_at(self, positions: np.ndarray) -> np.ndarray:
        """Returns the rows of the dataset of some prompts, int64 of shape [n] like their positions."""
        return positions if self.rows is None else self.rows[positions]

    @property
    def selection(self) -> SelectionSummary | None:
        """How the rows were selected; None for all rows."""
        return self.selected and self.selected.summary

    @property
    def sampling_fraction(self) -> float:
        """Fraction of the dataset's rows in a random sample; 0 without one."""
        return self.selection.sampling_fraction if self.selection else 0.0

    def where(self, position: int) -> str:
        return self.source.where(position)

    def column(self, name: str) -> pa.Array:
        """Returns an extra column as text; missing values are null."""
        return read_column(self.folder, name)
