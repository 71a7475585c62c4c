"""Further columns of a dataset, kept as text."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dist_eval.data.columns import column_writer, group_numbers, read_column
from dist_eval.data.in_memory import write_parquet
from dist_eval.data.readers import open_rows
from dist_eval.errors import DataError


def kept(folder: Path, *pieces: pa.Array) -> list[str | None]:
    with column_writer(folder, "test.csv", ["c"]) as write:
        for piece in pieces:
            write([piece])
    return read_column(folder, "c").to_pylist()


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (pa.array(["a", None, ""]), ["a", None, ""]),
        (pa.array([3, None]), ["3", None]),
        (pa.array([0.5, float("nan"), 3.0, None]), ["0.5", None, "3", None]),
        (pa.array([True, False, None]), ["true", "false", None]),
        (pa.array([datetime.date(2024, 5, 1)]), ["2024-05-01"]),
        (pa.nulls(2), [None, None]),
    ],
    ids=["text", "integers", "floats", "booleans", "dates", "nulls"],
)
def test_values_of_any_type_become_text(values: pa.Array, expected: list[str | None], tmp_path: Path) -> None:
    assert kept(tmp_path, values, values.slice(1)) == expected + expected[1:]


def test_columns_of_lists_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"test.csv: column 'c' holds list.*--slice-by and --group-column accept"):
        kept(tmp_path, pa.array([["a"]]))


def test_equal_names_are_one_group() -> None:
    numbers = group_numbers(pa.array(["x", "y", "x", "z"]), "doc", "test.csv, row {} (counted from 0)".format)
    assert len(set(numbers.tolist())) == 3 and numbers[0] == numbers[2]


@pytest.mark.parametrize("first", [2**53, 2**63, 2**64, 10**30])
@pytest.mark.parametrize("last", [0, -1, 0.5, None])
@pytest.mark.parametrize("name", ["a.csv", "a.json", "a.jsonl", "frame.parquet"])
def test_groups_with_large_integers_as_names_stay_apart(name: str, first: int, last: Any, tmp_path: Path) -> None:
    """Integers beyond 64-bit floats, or beyond 64 bits, and one number of another kind beside them."""
    groups = [*range(first, first + 100), *([] if last is None else [last])]
    rows = [{"text": "a", "doc": group} for group in groups]
    path = tmp_path / name
    if name == "a.csv":
        path.write_text("text,doc\n" + "".join(f"a,{group}\n" for group in groups))
    elif name == "frame.parquet":
        write_parquet(rows, path)
    else:
        path.write_text(json.dumps(rows) if name == "a.json" else "\n".join(map(json.dumps, rows)))
    with column_writer(tmp_path, name, ["doc"]) as write:
        for batch in open_rows(str(path), ["doc"]).batches:
            write([batch.column(0)])
    column = read_column(tmp_path, "doc")
    assert len({*group_numbers(column, "doc", str)}) == len(groups)
    assert column.to_pylist() == [str(group) for group in groups]


@pytest.mark.parametrize("missing", [None, "", "  "])
def test_a_row_without_a_group_is_named(missing: str | None) -> None:
    with pytest.raises(DataError, match=r"test.csv, row 1 \(counted from 0\): the group in column 'doc' is missing"):
        group_numbers(pa.array(["x", missing, missing], pa.string()), "doc", "test.csv, row {} (counted from 0)".format)
