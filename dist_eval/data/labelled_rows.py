"""Rows with texts and a label: their columns, and how they are read and hashed."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from dist_eval.data.label_columns import open_labels
from dist_eval.data.labels import LabelColumn, LabelReader
from dist_eval.data.readers import RowSource, open_rows
from dist_eval.errors import DataError
from dist_eval.petals.base_model.problem_types import SINGLE_LABEL, Problem


@dataclass(frozen=True)
class LabelledRows:
    """A dataset with texts and labels, and how to read its columns."""

    dataset: str | Sequence[str]  # files, folders, patterns or a hub name (see `dist_eval.data.readers.open_rows`)
    text_columns: Sequence[str]  # the columns with texts: one, two for a pair, or any number for a prompt
    label_column: str  # the column with the labels
    label_names: Sequence[str]  # names of the classes or outputs
    labels: str = "auto"  # how to interpret the label column (see `LabelReader` and `dist_eval.data.labels`)
    problem: Problem = SINGLE_LABEL  # the problem type
    numbers: bool = False  # whether text columns may contain numbers, as in a prompt
    subset: str | None = None  # configuration of a hub dataset
    split: str | None = None  # split of a hub dataset or of a folder

    def open(self, rows: np.ndarray | None = None, extra_columns: Sequence[str] = ()) -> RowSource:
        """Opens the rows: batches with the text columns first, then others of `extra_columns`, and the labels last.

        `rows` are those to read, ascending, int64 of shape [rows]; by default all.
        """
        others = [name for name in extra_columns if name not in (*self.text_columns, self.label_column)]
        columns = [*self.text_columns, *others, self.label_column]
        return open_rows(self.dataset, columns, subset=self.subset, split=self.split).only(rows)

    def label_reader(self, source: RowSource) -> LabelColumn:
        """Returns the reader for the labels of opened rows."""
        return open_labels(self.problem, source, self.label_column, self.label_names, self.labels)

    def read(self, source: RowSource, read_labels: Callable[[pa.Array, int], object]) -> Iterator[int]:
        """Reads the texts and labels of opened rows, and yields how many have been read; an error names its row.

        `read_labels` reads a chunk of the label column, given the position of its first row.
        """
        rows = 0
        for first, batch in source.numbered():
            self.texts(source, batch, first)
            read_labels(batch.column(batch.num_columns - 1), first)
            rows = first + batch.num_rows
            yield rows
        if not rows:
            raise DataError(f"{source.name} has no rows: there is nothing to evaluate.")

    def texts(self, source: RowSource, batch: pa.RecordBatch, first_row: int) -> list[list[str]]:
        """Returns the texts of a batch by column; `first_row` is the position of its first row."""
        return [
            texts_in(source, name, batch.column(number), first_row, self.numbers)
            for number, name in enumerate(self.text_columns)
        ]


def texts_in(source: RowSource, column: str, array: pa.Array, first_row: int, numbers: bool = False) -> list[str]:
    """Returns a chunk of a text column; `numbers` also allows numbers and booleans, formatted as Arrow does."""
    source.require_present(array, f"text in column {column!r}", first_row)
    if numbers and (pa.types.is_primitive(array.type) and not pa.types.is_temporal(array.type)):
        array = array.cast(pa.string())
    if not pa.types.is_string(array.type):
        raise DataError(
            f"{source.file}: column {column!r} holds {array.type}, not text. Convert it, or name another column."
        )
    return array.to_pylist()


def text_bytes(*columns: Sequence[str]) -> bytes:
    """Returns texts by columns as bytes, each preceded by its length, so that the hash depends on the boundaries."""
    return b"".join(f"{len(text)}:{text}".encode(errors="surrogatepass") for column in columns for text in column)


def draw_positions(data: LabelledRows, count: int, seed: int) -> np.ndarray:
    """Draws rows without replacement; returns their positions in drawing order, int64."""
    source = data.open()
    rows = sum(batch.num_rows for batch in source.batches)
    if rows < count:
        raise DataError(f"--few-shot {count} needs {count} rows, but {source.name} has {rows}.")
    return np.random.default_rng(seed).choice(rows, size=count, replace=False)


def draw_examples(data: LabelledRows, count: int, seed: int) -> tuple[list[int], list[tuple[list[str], int]]]:
    """Draws labelled examples for a prompt without replacement, the same on all ranks.

    Rows that are not drawn may lack texts. Returns the rows' positions in the file, in the order in which they were
    drawn; and the texts, by column, and class of each.
    """
    drawn = draw_positions(data, count, seed)
    source = data.open()
    # the labels of the evaluated data may be read otherwise, because of one that these lack
    reader = LabelReader(source, data.label_column, data.label_names, data.labels, is_part=True)
    codes: list[np.ndarray] = []
    texts: dict[int, list[str]] = {}
    for first, batch in source.numbered():
        codes.append(reader.codes(batch.column(len(data.text_columns)), first))
        for row in drawn[(drawn >= first) & (drawn < first + batch.num_rows)].tolist():
            texts[row] = [text for [text] in data.texts(source, batch.slice(row - first, 1), row)]
    classes = reader.ids(np.concatenate(codes))
    return drawn.tolist(), [(texts[row], int(classes[row])) for row in drawn.tolist()]


def read_texts(
    data: LabelledRows, wanted: Container[int], rows: np.ndarray | None = None
) -> tuple[dict[int, tuple[str, ...]], str]:
    """Reads the texts of the wanted rows of a dataset, and hashes all texts.

    `rows` are those to read, ascending, int64 of shape [rows]; by default all. Returns the wanted texts by row, one per
    text column, and the `text_digest` of all rows that were read.
    """
    source = data.open(rows)
    reader = data.label_reader(source)
    digest, codes = hashlib.sha256(), []
    found: dict[int, tuple[str, ...]] = {}
    for row, batch in source.numbered():
        texts = data.texts(source, batch, row)
        digest.update(text_bytes(*texts))
        codes.append(reader.codes(batch.column(len(data.text_columns)), row))
        numbered = ((source.row(row + i), of_row) for i, of_row in enumerate(zip(*texts, strict=True)))
        found.update({number: of_row for number, of_row in numbered if number in wanted})
    digest.update(reader.ids(np.concatenate(codes)).tobytes() if codes else b"")
    return found, digest.hexdigest()
