"""Columns of Python values, as in JSON and mappings → Arrow arrays that represent all values exactly.

Arrow infers a type from the first values and converts integers beside floats to floats. Here the type follows from all
values of a column.
"""

from __future__ import annotations

import copy
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from dist_eval.errors import one_line

_EXACT_IN_FLOATS = 2**53
_DEEPEST = 200  # levels of nested lists and objects: Arrow has a stack to overflow

# raised by Arrow for a value that does not match the type of its column
REFUSED = (pa.ArrowException, TypeError, ValueError, OverflowError)


class MixedValuesError(ValueError):
    """A value does not match the type of its column."""

    def __init__(self, message: str, position: int) -> None:
        super().__init__(message)
        self.position = position  # position of the value in its piece


class PythonColumn:
    """A column whose values come in pieces; with `nan_is_null`, NaN is a missing value, as in pandas."""

    def __init__(self, *, nan_is_null: bool = False) -> None:
        self._nan_is_null = nan_is_null
        self._type = pa.null()
        self._is_numeric = self._has_floats = False  # only integers and floats so far, some of them floats
        self._least = self._most = 0  # of the integers

    @property
    def type(self) -> pa.DataType:
        """The type of all values so far; text for numbers that no 64-bit type represents exactly."""
        if not self._is_numeric:
            return self._type
        if self._has_floats:
            is_exact = max(-self._least, self._most) <= _EXACT_IN_FLOATS
            return pa.float64() if is_exact else pa.string()
        if self._least >= -(2**63) and self._most < 2**63:
            return pa.int64()
        return pa.uint64() if self._least >= 0 and self._most < 2**64 else pa.string()

    @property
    def is_text_of_numbers(self) -> bool:
        """Whether the values are numbers stored as text."""
        return self._is_numeric and pa.types.is_string(self.type)

    def add(self, values: Sequence[Any]) -> None:
        """Updates the type with a piece; raises a `MixedValuesError` if a value does not match those before it."""
        before = copy.copy(self)
        with _naming_the_value(values, lambda some: copy.copy(before)._add(some)):
            self._add(values)

    def array(self, values: Sequence[Any]) -> pa.Array:
        """Returns a piece that was added, in the type of the whole column.

        Raises a `MixedValuesError` if a value does not match those after it, or Arrow cannot represent it.
        """
        if self.is_text_of_numbers:
            values = [None if value is None or value != value else _written(value) for value in values]
        with _naming_the_value(values, self._array):
            return self._array(values)

    def _array(self, values: Sequence[Any]) -> pa.Array:
        return pa.array(values, self.type, from_pandas=self._nan_is_null)

    def _add(self, values: Sequence[Any]) -> None:
        if self._nan_is_null:
            values = [None if type(value) is float and value != value else value for value in values]
        kinds = {*map(type, values)} - {type(None)}
        if not kinds:
            return
        is_numeric = kinds <= {int, float} and (self._is_numeric or pa.types.is_null(self._type))
        if is_numeric:
            integers = [value for value in values if type(value) is int]
            self._least, self._most = min([self._least, *integers]), max([self._most, *integers])
            self._has_floats |= float in kinds
        else:
            if not kinds <= {str, int, float, bool} and any(_is_deep(value, _DEEPEST) for value in values):
                raise ValueError(f"nested over {_DEEPEST} levels deep")
            found = pa.string() if kinds == {str} else pa.array(values, from_pandas=self._nan_is_null).type
            schemas = [pa.schema([("", kind)]) for kind in (self.type, found)]
            self._type = pa.unify_schemas(schemas, promote_options="permissive").field(0).type
        self._is_numeric = is_numeric


@contextmanager
def _naming_the_value(values: Sequence[Any], convert: Callable[[Sequence[Any]], object]) -> Iterator[None]:
    """Turns an error of Arrow into one with the position of the first value that `convert` rejects."""
    try:
        yield
    except REFUSED as error:
        position = bisect_left(range(len(values)), True, key=lambda last: _refuses(convert, values[: last + 1]))
        raise MixedValuesError(one_line(error), position) from error


def _refuses(convert: Callable[[Sequence[Any]], object], values: Sequence[Any]) -> bool:
    try:
        convert(values)
    except REFUSED:
        return True
    return False


def _is_deep(value: Any, levels: int) -> bool:
    """Whether a value is nested over a number of levels deep."""
    if not isinstance(value, (dict, list)):
        return False
    parts = value.values() if isinstance(value, dict) else value
    return not levels or any(isinstance(part, (dict, list)) and _is_deep(part, levels - 1) for part in parts)


def _written(number: float) -> str:
    """Formats a number as Arrow does; whole floats look like integers."""
    return str(int(number)) if isinstance(number, int) or number.is_integer() else repr(number)
