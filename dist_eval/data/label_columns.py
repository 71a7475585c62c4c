"""The label column of every problem type: one class, several labels, or numbers for each row.

Several labels are text separated by `|` ("sport|politics", empty for none), or a list in JSON, Parquet or Arrow. In a
list, text means names or numbers of classes (as in `LabelReader`), integers are class numbers, and booleans and floats
are a 0/1 vector with a value for each class, in the head's order. A list of integers is also read as a 0/1 vector if it
cannot be class numbers, because it would contain a class twice; if it could be either, `--labels vectors` or
`--labels numbers` has to decide.

The targets of a regression with several outputs are written in the same way: "0.5|1.25", or a list.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dist_eval.data.labels import LabelColumn, LabelReader
from dist_eval.data.problem_types import MULTI_LABEL, REGRESSION, SINGLE_LABEL, Problem
from dist_eval.data.readers import RowSource
from dist_eval.errors import ConfigError, DataError
from dist_eval.tables import format_count

SEPARATOR = "|"
_AMBIGUOUS_WIDTH = 2  # With more classes, a 0/1 vector repeats a value, so it cannot be a list of class numbers


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


class _ListColumn(LabelColumn):
    """A column of which a cell may hold several values."""

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
            raise self._problem(first_row + int(row), "holds a missing value (null).")
        return flat, counts


class Targets(_ListColumn):
    """Reads the targets of a regression."""

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
                row, what = int(wrong[0]), f"number{'s' if self._outputs > 1 else ''}, but the head has"
                raise self._problem(
                    first_row + row, f"has {counts[row]} {what} {self._outputs} output{'s'[: self._outputs > 1]}."
                )
        elif self._outputs > 1:
            raise self._kind(array, f"the head has {self._outputs} outputs, so a label is a list of as many numbers.")
        else:
            flat = array
        if pa.types.is_boolean(flat.type) or not (pa.types.is_string(flat.type) or _is_number(flat.type)):
            raise self._kind(array, "labels of a regression are numbers.")
        values = np.asarray([_number_of(value) for value in flat.to_pylist()], dtype=np.float64)
        bad = np.flatnonzero(~np.isfinite(values))
        if len(bad):
            row = first_row + int(bad[0]) // self._outputs
            raise self._problem(row, f"is {flat[int(bad[0])].as_py()!r:.80}, which is not a finite number.")
        return values.reshape(-1, self._outputs)

    def ids(self, codes: np.ndarray) -> np.ndarray:
        """Returns the labels of all chunks unchanged, float64 of shape [n, outputs]."""
        return codes


class LabelSets(_ListColumn):
    """Reads which labels each row has."""

    def __init__(self, source: RowSource, column: str, label_names: Sequence[str], how: str = "auto") -> None:
        super().__init__(source, column)
        self._width, self._how = len(label_names), how
        self._classes = LabelReader(source, column, label_names, "auto" if how == "vectors" else how)
        self._names_with_separator = [name for name in label_names if SEPARATOR in name]
        self._lists: list[tuple[np.ndarray, np.ndarray]] = []
        self._are_vectors: bool | None = True if how == "vectors" else None if how == "auto" else False

    def codes(self, array: pa.Array, first_row: int) -> np.ndarray:
        """Keeps the labels of a chunk until `ids`; returns the positions of its rows, int64 of shape [rows]."""
        self._require_present(array, first_row)
        if not pa.types.is_string(array.type) and not pa.types.is_list(array.type):
            raise self._kind(array, f"several labels are a list, or text with {SEPARATOR!r} between them.")
        if pa.types.is_string(array.type) and self._names_with_separator:
            raise DataError(
                f"{self._source.name}: the class {self._names_with_separator[0]!r} has a {SEPARATOR!r} in its name, "
                "which stands between labels in text. Give lists, in JSON or Parquet."
            )
        flat, counts = self._parts(array, first_row)
        rows = np.repeat(np.arange(first_row, first_row + len(counts)), counts)
        if self._is_vector(array, flat, counts, rows, first_row):
            self._add_vectors(flat, counts, first_row)
        else:
            codes = self._classes.codes(flat, first_row, rows=rows) if len(flat) else np.empty(0, dtype=np.int32)
            self._lists.append((rows, codes))
        return np.arange(first_row, first_row + len(counts))

    def ids(self, codes: np.ndarray) -> np.ndarray:
        """Returns which labels each row has, bool of shape [n, classes]."""
        labels = np.zeros((len(codes), self._width), dtype=np.bool_)
        every = np.concatenate([code for _, code in self._lists])
        numbers = every.astype(np.int64) if self._are_vectors or not len(every) else self._classes.ids(every)
        self.normalized = self._classes.normalized
        rows = np.concatenate([row for row, _ in self._lists])
        labels[rows, numbers] = True
        if int(labels.sum()) < len(rows):
            cells = rows * self._width + numbers
            _, first = np.unique(cells, return_index=True)
            row = int(rows[np.setdiff1d(np.arange(len(cells)), first)[0]])
            hint = " If it is meant as a 0/1 vector, say --labels vectors." if self._how == "auto" else ""
            raise self._problem(row, f"names a class twice.{hint}")
        return labels

    def _is_vector(self, array: pa.Array, flat: pa.Array, counts: np.ndarray, rows: np.ndarray, first_row: int) -> bool:
        """Whether lists are 0/1 vectors; the first list decides for all."""
        if pa.types.is_string(flat.type) or pa.types.is_null(flat.type):
            return bool(self._are_vectors)
        if pa.types.is_boolean(flat.type) or pa.types.is_floating(flat.type):
            if self._how in ("names", "numbers"):
                raise self._kind(array, f"which --labels {self._how} cannot mean.")
            self._are_vectors = True
        elif not pa.types.is_integer(flat.type):
            raise self._kind(array, "labels are class numbers or names.")
        elif self._how == "auto" and len(counts):
            values = flat.to_numpy()
            is_bit = np.isin(values, (0, 1))
            bits = np.bincount(rows[is_bit] - first_row, minlength=len(counts))
            could_be = (counts == self._width) & (bits == counts)
            if self._width <= _AMBIGUOUS_WIDTH and could_be.any():
                raise self._problem(
                    first_row + int(could_be.argmax()),
                    "could be class numbers or a 0/1 vector: say --labels numbers or --labels vectors.",
                )
            if self._are_vectors is None:
                self._are_vectors = bool(could_be[0])
        return bool(self._are_vectors)

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
            raise self._problem(row, f"holds {flat[int(bad[0])].as_py()!r:.80}; a vector of labels has 0 and 1 only.")
        rows, classes = np.nonzero(values.reshape(-1, self._width))
        self._lists.append((rows + first_row, classes))


def _is_number(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)


def _number_of(value: Any) -> float:
    """Converts a number, or text, to a float; NaN if that is not possible."""
    try:
        return float(value) if not isinstance(value, str) or "_" not in value else float("nan")
    except (ValueError, OverflowError):
        return float("nan")
