"""The label column of a classifier → class ids; for a new head, → class names."""

from __future__ import annotations

import itertools
import re
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from dist_eval.data.readers import FILL_IN, RowSource
from dist_eval.errors import DataError
from dist_eval.tables import format_count

_SHOWN = 60
_LABELS_ARE = "labels are class numbers or names."
_MISSING = ("", "nan", "none", "null", "na", "n/a")
_LARGEST_WHOLE = 2**53  # above it, 64-bit floats skip integers
_INTEGER = re.compile(r"[+-]?\d{1,18}")
_WHOLE = re.compile(r"([+-]?\d{1,18})\.0+")


def integer_text(value: str) -> int | None:
    """Parses text as an integer; returns None if it is not one."""
    return int(value) if _INTEGER.fullmatch(value.strip()) else None


def whole_number(value: str) -> int | None:
    """Parses text as an integer that may be written as 5.0; returns None if it is not one."""
    match = _WHOLE.fullmatch(value.strip())
    return int(match[1]) if match else integer_text(value)


class LabelColumn(ABC):
    """Reads a label column chunk by chunk."""

    def __init__(self, source: RowSource, column: str) -> None:
        self._source, self._column = source, column
        self.normalized = 0  # set by `ids`: labels not written exactly as the name or number of their class

    @abstractmethod
    def codes(self, array: pa.Array, first_row: int) -> np.ndarray:
        """Collects a chunk of labels that starts at row `first_row`; returns an array with one item per row."""

    @abstractmethod
    def ids(self, codes: np.ndarray) -> np.ndarray:
        """Maps the codes of all chunks to labels, of the problem type's shape and dtype."""

    def _require_present(self, array: pa.Array, first_row: int, rows: np.ndarray | None = None) -> None:
        self._source.require_present(array, f"label in column {self._column!r}", first_row, rows)

    def _problem(self, row: int, what: str) -> DataError:
        return DataError(f"{self._source.where(row)}: the label in column {self._column!r} {what}")

    def _kind(self, array: pa.Array, why: str) -> DataError:
        return DataError(f"{self._source.file}: column {self._column!r} holds {array.type}; {why}")


class LabelReader(LabelColumn):
    """Maps the label column to class ids, with one interpretation in all formats: 5, 5.0 and "5" mean the same.

    - Numbers with declared names (ClassLabel of `datasets`) stand for their names, unless the head has only the default
      names `LABEL_0`, `LABEL_1`, ...
    - The name of a class stands for that class, any other number for the class with that number.
    - If the name of a class is the number of another class, the whole column has either names or class numbers: names
      if all values are names, otherwise numbers if all are numbers. If all are both, they are names, unless every name
      is also a class number or the column is a part, of a dataset or of all labels: then `--labels` must decide.
    - Other spellings are read, and counted as normalized, if they can mean only one class: a name with surrounding
      blanks or with combining accents, and 5.0 for 5, as pandas writes integers in a column with missing values.
    """

    def __init__(
        self, source: RowSource, column: str, label_names: Sequence[str], how: str = "auto", *, is_part: bool = False
    ) -> None:
        super().__init__(source, column)
        self._names, self._how = list(label_names), how
        self._is_part = is_part or source.selected is not None
        default = [f"LABEL_{number}" for number in range(len(self._names))]
        self._declared = source.class_names if how == "names" or self._names != default else None
        self._are_numbers = self._are_truths = False
        self._decimals = 0
        self._nameless: set[str] = set()
        self._first_row: dict[str, int] = {}
        self._code: dict[str, int] = {}

    def codes(self, array: pa.Array, first_row: int, *, rows: np.ndarray | None = None) -> np.ndarray:
        """Returns the code of each label in a chunk, int32; equal labels have equal codes.

        `rows` are the positions of the labels if a row may have several or none; by default there is one label per row.
        """
        self._require_present(array, first_row, rows)
        rows = np.arange(first_row, first_row + len(array)) if rows is None else rows
        if pa.types.is_nested(array.type) or pa.types.is_temporal(array.type) or _is_binary(array.type):
            raise self._kind(array, _LABELS_ARE)
        if pa.types.is_floating(array.type) or pa.types.is_decimal(array.type):
            array = self._integers(array, rows)
        are_numbers = pa.types.is_integer(array.type)
        if self._code and are_numbers != self._are_numbers:
            where = self._source.where(first_row)
            raise DataError(
                f"{where}: column {self._column!r} contains text in some rows and numbers in others. Use one type."
            )
        self._are_numbers, self._are_truths = are_numbers, pa.types.is_boolean(array.type)
        encoded = array.dictionary_encode()
        positions = encoded.indices.to_numpy()
        local = np.empty(len(encoded.dictionary), dtype=np.int32)
        for position, value in enumerate(encoded.dictionary.to_pylist()):
            text = self._as_text(value)
            if text not in self._code:
                self._code[text] = len(self._code)
                self._first_row[text] = int(rows[np.argmax(positions == position)])
            local[position] = self._code[text]
        return local[positions]

    def _integers(self, array: pa.Array, rows: np.ndarray) -> pa.Array:
        values = array.cast(pa.float64()).to_numpy()
        is_whole = (np.trunc(values) == values) & (np.abs(values) < _LARGEST_WHOLE)
        if not is_whole.all():
            first = int(np.argmin(is_whole))
            is_missing = np.isnan(values[first])
            what = f"is missing (NaN). {FILL_IN}" if is_missing else f"is {array[first].as_py()}; {_LABELS_ARE}"
            raise self._problem(int(rows[first]), what)
        self._decimals += len(array)
        return pa.array(values.astype(np.int64))

    def ids(self, codes: np.ndarray) -> np.ndarray:
        """Maps the codes of all chunks, int32 of shape [n], to classes in 0..num_labels-1, int64 of the same shape."""
        mapping = {text: self._class_of(text) for text in self._code}
        is_written = np.asarray([self._is_written(text, number) for text, number in mapping.items()], dtype=np.bool_)
        self.normalized = self._decimals + int(np.count_nonzero(~is_written[codes]))
        return np.asarray(list(mapping.values()), dtype=np.int64)[codes]

    def _is_written(self, text: str, number: int) -> bool:
        """Whether a label is written as the name or the number of its class."""
        name = self._names[number]
        may_differ_in_case = bool(self._declared) or self._are_truths
        is_same = text in (name, str(number)) or (may_differ_in_case and text.casefold() == name.casefold())
        return is_same or self._are_numbers

    def problem(self, text: str) -> DataError:
        """Returns an error about a label among numbers that is none, with its first row."""
        what = _short(text) if text else "empty"
        return self._problem(
            self._first_row[text], f"is {what}, but others are numbers. Correct it, or remove the row."
        )

    @property
    def values(self) -> list[str]:
        """The distinct values in all calls of `codes`, as text."""
        return list(self._code)

    def _as_text(self, value: Any) -> str:
        """Converts a value to text; a number with a declared name becomes that name."""
        if self._declared and self._how != "numbers" and isinstance(value, int) and not isinstance(value, bool):
            if not 0 <= value < len(self._declared):
                self._nameless.add(str(value))  # -1 marks rows without a label
                return str(value)
            return self._declared[value]
        return str(value)

    def _class_of(self, text: str) -> int:
        by_name = self._how == "names" or (self._how == "auto" and (bool(self._declared) or self._holds_names))
        if text in self._nameless:
            chosen = None
        elif by_name:
            chosen = self._by_name(text)
        elif self._how == "numbers" or self._renumbers or self._are_numbers:
            chosen = self._by_number(text)
        else:
            name = self._by_name(text)
            chosen = name if name is not None else self._by_number(text)
        if chosen is None:
            raise self._unknown(text)
        return chosen

    def _by_number(self, text: str) -> int | None:
        may_be_decimal = self._how == "numbers" or not self._has_decimal_names
        number = whole_number(text) if may_be_decimal else integer_text(text)
        return number if number is not None and 0 <= number < len(self._names) else None

    @cached_property
    def _renumbers(self) -> bool:
        """Whether the name of a class is a number other than its own."""
        return any(whole_number(name) not in (None, number) for number, name in enumerate(self._names))

    @cached_property
    def _has_decimal_names(self) -> bool:
        """Whether such a name is written like 5.0."""
        return self._renumbers and any(_WHOLE.fullmatch(name.strip()) for name in self._names)

    @cached_property
    def _holds_names(self) -> bool:
        """Whether the column contains names although these are also numbers of other classes."""
        if not self._renumbers:
            return False
        are_numbers = all(self._by_number(text) is not None for text in self._code)
        if not are_numbers or not all(map(self._classes_called, self._code)):
            return not are_numbers
        classes = (None, *range(len(self._names)))
        is_reordered = all(whole_number(name) in classes for name in self._names)
        if is_reordered or self._is_part:
            raise DataError(
                f"{self._source.name}: column {self._column!r} is ambiguous: the names of the head's classes are "
                f"numbers of other classes ({', '.join(self._names[:5])}, ... for 0, 1, ...). Set --labels names or "
                "--labels numbers."
            )
        return True

    def _by_name(self, text: str) -> int | None:
        matches = self._classes_called(text)
        if len(matches) > 1:
            raise self._problem(
                self._first_row[text],
                f"is {_short(text)}, the name of more than one class. Use --labels numbers with class "
                "numbers, or give the classes different names.",
            )
        return matches[0] if matches else None

    def _classes_called(self, text: str) -> list[int]:
        """Returns the classes whose name matches a label, by the strictest comparison that finds any."""
        return next((classes[key] for form, classes in self._forms if (key := form(text)) in classes), [])

    @cached_property
    def _forms(self) -> list[tuple[Callable[[str], Any], dict[Any, list[int]]]]:
        """Comparisons of labels with names, strictest first, each with the classes by that form of their names."""
        may_differ_in_case = bool(self._declared) or self._are_truths
        forms: list[Callable[[str], Any]] = [str, *([str.casefold] if may_differ_in_case else []), _bare, whole_number]
        found: list[tuple[Callable[[str], Any], dict[Any, list[int]]]] = [(form, {}) for form in forms]
        for form, classes in found:
            for number, name in enumerate(self._names):
                if form is str or form(name) not in (None, ""):
                    classes.setdefault(form(name), []).append(number)
        return found

    def _unknown(self, text: str) -> DataError:
        shown = ", ".join(self._names[:10]) + (", ..." if len(self._names) > 10 else "")
        what = _short(text) if text else "empty"
        are_numbers = list(self._names) == [str(number) for number in range(len(self._names))]
        numbers = "" if are_numbers else f" (0 to {len(self._names) - 1})"
        message = f"is {what}, but the classes are {shown}{numbers}."
        if self._renumbers and self._how == "auto" and self._by_number(text) is not None:
            message += f" If {text} is a class number, set --labels numbers."
        alike = [name for name in self._names if name.casefold() == text.strip().casefold()]
        if alike:
            message += f" Did you mean {alike[0]!r}?"
        if self._declared:
            message += f" The dataset declares the names {', '.join(self._declared[:10])}."
        else:
            message += " Correct it, or remove the row."
        return self._problem(self._first_row[text], message)


def find_classes(source: RowSource, column: str, how: str = "auto", count: int | None = None) -> list[str]:
    """Returns the names of the classes of a new head; `LabelReader` maps every value of the column to one of them.

    They are the names that the dataset declares; otherwise 0, 1, ... if all values are numbers, also as text; otherwise
    all distinct texts, sorted. `how` is "names" or "numbers" for a fixed interpretation, "auto" for this rule. `source`
    has only the label column. `count` is the number of classes, by default that of the data; there are at least two.
    """
    if source.class_names and how != "numbers":
        return _counted(list(source.class_names), source, column, count)
    reader, row = LabelReader(source, column, [], how), 0
    for batch in source.batches:
        reader.codes(batch.column(0), row)
        row += batch.num_rows
    if not row:
        raise DataError(f"{source.name} has no rows: there is nothing to learn from.")
    texts = reader.values
    absent = [text for text in texts if text.strip().casefold() in _MISSING]
    others = [whole_number(text) for text in texts if text not in absent]
    if how == "auto" and absent and others and None not in others:
        raise reader.problem(absent[0])
    numbers = [-1 if (number := whole_number(text)) is None else number for text in texts]
    if how == "names" or (how == "auto" and any(whole_number(text) is None for text in texts)):
        return _counted(sorted({text.strip() or text for text in texts}), source, column, count)
    if min(numbers) < 0:
        invalid = next(text for text, number in zip(texts, numbers, strict=True) if number < 0)
        advice = " If it is the name of a class, set --labels names." if how == "auto" else ""
        raise DataError(
            f"{source.name}: column {column!r} contains the label {_short(invalid)}, which is not a class number."
            f"{advice}"
        )
    highest = max(numbers)
    found = {*numbers}
    missing = next(number for number in itertools.count() if number not in found)
    if count is None and missing < highest:
        raise DataError(
            f"{source.name}: column {column!r} contains class numbers up to {highest} but no {missing}. Set "
            f"--labels names if they are names, or --num-labels {highest + 1} if some classes have no examples."
        )
    if count is not None and highest >= count:
        raise DataError(
            f"{source.name}: column {column!r} contains the class number {highest}, but --num-labels {count} allows "
            f"only 0 to {count - 1}."
        )
    names = [str(number) for number in range(highest + 1 if count is None else count)]
    return _counted(names, source, column, count)


def _counted(names: list[str], source: RowSource, column: str, count: int | None) -> list[str]:
    if count is not None and len(names) != count:
        raise DataError(
            f"{source.name}: column {column!r} has {format_count(len(names), 'class', 'classes')}, but "
            f"--num-labels says {count}."
        )
    if len(names) < 2:
        raise DataError(f"{source.name}: column {column!r} has only one class, {_short(names[0])}.")
    return names


def _bare(name: str) -> str:
    """Returns a name without surrounding blanks and with composed accents."""
    return unicodedata.normalize("NFC", name).strip()


def _is_binary(kind: pa.DataType) -> bool:
    return pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind)


def _short(text: str) -> str:
    return repr(text) if len(text) <= _SHOWN else f"{text[:_SHOWN]!r}... ({len(text)} characters)"
