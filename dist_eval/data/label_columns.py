"""The label column of any problem type → class ids, label sets or numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dist_eval.data.labels import LabelColumn, LabelReader, whole_number
from dist_eval.data.readers import RowSource
from dist_eval.errors import ConfigError, DataError
from dist_eval.petals.base_model.problem_types import MULTI_LABEL, REGRESSION, SINGLE_LABEL, Problem
from dist_eval.tables import format_count

SEPARATOR = "|"
"""Separates the labels of a row in text."""


class _ListColumn(LabelColumn):
    """A column with any number of values per cell."""

    def _parts(self, array: pa.Array, first_row: int) -> tuple[pa.Array, np.ndarray]:
        """Returns the flattened items of all cells or lists, and the number of items in each."""
        if pa.types.is_string(array.type):
            parts = pc.split_pattern(array, SEPARATOR)
            flat, counts = pc.utf8_trim_whitespace(parts.flatten()), pc.list_value_length(parts).to_numpy().copy()
            blank = pc.equal(pc.utf8_trim_whitespace(array), "").to_numpy(zero_copy_only=False)
            kept = np.repeat(~blank, counts)
            counts[blank] = 0
            return flat.filter(pa.array(kept)), counts
        counts = pc.list_value_length(array).to_numpy()
        flat = array.flatten()
        if flat.null_count:
            row = np.repeat(np.arange(len(counts)), counts)[flat.is_null().to_numpy(zero_copy_only=False)][0]
            raise self._problem(first_row + int(row), "contains a missing value (null).")
        return flat, counts


class Targets(_ListColumn):
    """Reads the targets of a regression; for several outputs, lists or text such as "0.5|1.25"."""

    def __init__(self, source: RowSource, column: str, outputs: int) -> None:
        super().__init__(source, column)
        self._outputs = outputs

    def codes(self, array: pa.Array, first_row: int) -> np.ndarray:
        """Returns the targets of a chunk, float64 of shape [rows, outputs]."""
        self._require_present(array, first_row)
        if pa.types.is_string(array.type) or pa.types.is_list(array.type):
            flat, counts = self._parts(array, first_row)
            wrong = np.flatnonzero(counts != self._outputs)
            if len(wrong):
                row = int(wrong[0])
                found, needed = format_count(counts[row], "number"), format_count(self._outputs, "output")
                raise self._problem(first_row + row, f"has {found}, but the head has {needed}.")
        elif self._outputs > 1:
            raise self._kind(
                array, f"the head has {self._outputs} outputs, so each label must be a list of {self._outputs} numbers."
            )
        else:
            flat = array
        if pa.types.is_boolean(flat.type) or not (pa.types.is_string(flat.type) or _is_number(flat.type)):
            raise self._kind(array, "labels of a regression are numbers.")
        values = np.asarray([_number_of(value) for value in flat.to_pylist()], dtype=np.float64)
        bad = np.flatnonzero(~(np.abs(values) <= np.finfo(np.float32).max))
        if len(bad):
            row, is_finite = first_row + int(bad[0]) // self._outputs, np.isfinite(values[bad[0]])
            what = "too large for the 32-bit floats of predictions" if is_finite else "not a finite number"
            raise self._problem(row, f"is {flat[int(bad[0])].as_py()!r:.80}, which is {what}.")
        return values.reshape(-1, self._outputs)

    def ids(self, codes: np.ndarray) -> np.ndarray:
        """Returns the labels of all chunks unchanged, float64 of shape [n, outputs]."""
        return codes


class LabelSets(_ListColumn):
    """Reads the set of labels of each row.

    Several labels are text separated by `|` ("sport|politics", empty for none), or a list in JSON, Parquet or Arrow.
    They are names or numbers of classes (as in `LabelReader`), or a 0/1 vector with one value per class, in the head's
    order. Lists of booleans and floats are vectors. Integers and text are vectors if as labels they would name a class
    twice, which the first row shows; with two classes, the first unambiguous row does. If there is none,
    `--labels vectors` or `--labels numbers` must decide.
    """

    def __init__(self, source: RowSource, column: str, label_names: Sequence[str], how: str = "auto") -> None:
        super().__init__(source, column)
        self._width, self._how = len(label_names), how
        self._classes = LabelReader(source, column, label_names, "auto" if how == "vectors" else how)
        self._names_with_separator = [name for name in label_names if SEPARATOR in name]
        self._lists: list[tuple[np.ndarray, np.ndarray]] = []
        self._are_vectors: bool | None = True if how == "vectors" else None if how == "auto" else False
        self._undecided: list[tuple[pa.Array, np.ndarray, int]] = []

    def codes(self, array: pa.Array, first_row: int) -> np.ndarray:
        """Stores the labels of a chunk for `ids`; returns the positions of its rows, int64 of shape [rows]."""
        self._require_present(array, first_row)
        if not pa.types.is_string(array.type) and not pa.types.is_list(array.type):
            raise self._kind(array, f"several labels must be a list, or text separated by {SEPARATOR!r}.")
        if pa.types.is_string(array.type) and self._names_with_separator:
            raise DataError(
                f"{self._source.name}: the name of the class {self._names_with_separator[0]!r} contains {SEPARATOR!r}, "
                "which separates labels in text. Use lists, in JSON or Parquet."
            )
        flat, counts = self._parts(array, first_row)
        self._decide(array, flat, counts, first_row)
        self._undecided.append((flat, counts, first_row))
        if self._are_vectors is not None:
            self._add_undecided(self._add_vectors if self._are_vectors else self._add_labels)
        return np.arange(first_row, first_row + len(counts))

    def ids(self, codes: np.ndarray) -> np.ndarray:
        """Returns the labels of all rows, bool of shape [n, classes]."""
        for _, counts, first_row in self._undecided:
            if len(counts):
                raise self._problem(
                    first_row, "could be class numbers or a 0/1 vector: set --labels numbers or --labels vectors."
                )
        labels = np.zeros((len(codes), self._width), dtype=np.bool_)
        every = np.concatenate([np.empty(0, dtype=np.int64), *(code for _, code in self._lists)])
        numbers = every if self._are_vectors or not len(every) else self._classes.ids(every)
        self.normalized = self._classes.normalized
        rows = np.concatenate([np.empty(0, dtype=np.int64), *(row for row, _ in self._lists)])
        labels[rows, numbers] = True
        if int(labels.sum()) < len(rows):
            cells = rows * self._width + numbers
            _, first = np.unique(cells, return_index=True)
            row = int(rows[np.setdiff1d(np.arange(len(cells)), first)[0]])
            hint = " If it is a 0/1 vector, set --labels vectors." if self._how == "auto" else ""
            raise self._problem(row, f"names a class twice.{hint}")
        return labels

    def _decide(self, array: pa.Array, flat: pa.Array, counts: np.ndarray, first_row: int) -> None:
        """Determines whether cells are 0/1 vectors, from their type or the first unambiguous cell."""
        kind = flat.type
        if pa.types.is_boolean(kind) or pa.types.is_floating(kind):
            if self._how in ("names", "numbers"):
                raise self._kind(array, f"which --labels {self._how} does not allow.")
            if self._are_vectors is False and len(flat):
                raise self._problem(first_row, "is a 0/1 vector, but earlier rows contain names or numbers of classes.")
            self._are_vectors = True
        elif not (pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_null(kind)):
            raise self._kind(array, "labels are class numbers or names.")
        elif self._are_vectors is None:
            bits, rows = _bits_in(flat), np.repeat(np.arange(len(counts)), counts)
            zeros, ones = (np.bincount(rows[bits == bit], minlength=len(counts)) for bit in (0, 1))
            could_be_vector = (counts == self._width) & (zeros + ones == counts)
            could_be_labels = (zeros <= 1) & (ones <= (self._width > 1))
            is_decided = ~(could_be_vector & could_be_labels)
            if is_decided.any():
                self._are_vectors = bool(could_be_vector[is_decided.argmax()])

    def _add_undecided(self, add: Callable[[pa.Array, np.ndarray, int], None]) -> None:
        for flat, counts, first_row in self._undecided:
            add(flat, counts, first_row)
        self._undecided.clear()

    def _add_labels(self, flat: pa.Array, counts: np.ndarray, first_row: int) -> None:
        rows = np.repeat(np.arange(first_row, first_row + len(counts)), counts)
        if len(flat):
            self._lists.append((rows, self._classes.codes(flat, first_row, rows=rows)))

    def _add_vectors(self, flat: pa.Array, counts: np.ndarray, first_row: int) -> None:
        wrong = np.flatnonzero(counts != self._width)
        if len(wrong):
            row = int(wrong[0])
            raise self._problem(
                first_row + row, f"has {format_count(counts[row], 'value')}, but the head has {self._width} classes."
            )
        values = np.asarray([_number_of(value) for value in flat.to_pylist()], dtype=np.float64)
        bad = np.flatnonzero(~np.isin(values, (0.0, 1.0)))
        if len(bad):
            row = first_row + int(bad[0]) // self._width
            raise self._problem(
                row, f"holds {flat[int(bad[0])].as_py()!r:.80}; a vector of labels may contain only 0 and 1."
            )
        rows, classes = np.nonzero(values.reshape(-1, self._width))
        self._lists.append((rows + first_row, classes))


def open_labels(
    problem: Problem, source: RowSource, column: str, label_names: Sequence[str], how: str = "auto"
) -> LabelColumn:
    """Returns the label reader for a problem type."""
    if (how == "vectors" and problem is not MULTI_LABEL) or (how != "auto" and problem is REGRESSION):
        raise ConfigError(f"--labels {how} cannot be used with a head for {problem.name}: leave it out.")
    if problem is SINGLE_LABEL:
        return LabelReader(source, column, label_names, how)
    if problem is MULTI_LABEL:
        return LabelSets(source, column, label_names, how)
    return Targets(source, column, len(label_names))


def _bits_in(flat: pa.Array) -> np.ndarray:
    """Returns 0 or 1 for these values, -1 for others, int64 of shape [values]."""
    encoded = flat.cast(pa.string()).dictionary_encode()
    numbers = [whole_number(text) for text in encoded.dictionary.to_pylist()]
    bits = np.asarray([number if number in (0, 1) else -1 for number in numbers] or [-1], dtype=np.int64)
    return bits[encoded.indices.to_numpy()] if len(flat) else np.empty(0, dtype=np.int64)


def _is_number(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)


def _number_of(value: Any) -> float:
    """Converts a number or text to a float; NaN if that fails."""
    try:
        return float(value) if not isinstance(value, str) or "_" not in value else float("nan")
    except (ValueError, OverflowError):
        return float("nan")
