"""Data in memory: what is recognized without importing its library, and that it is read like a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import datasets
import pandas
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dist_eval.data.in_memory import is_in_memory, name_in_memory, was_in_memory, write_parquet
from dist_eval.data.labelled_rows import LabelledRows, read_texts
from dist_eval.data.readers import RowSource, open_rows
from dist_eval.errors import DataError

ROWS = [{"text": "NA", "label": 1}, {"text": "007", "label": 0}, {"text": "", "label": 1}]


class Exported:
    """What polars, DuckDB and others have in common."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._table.__arrow_c_stream__(requested_schema)


def written(dataset: Any, folder: Path) -> RowSource:
    assert is_in_memory(dataset)
    write_parquet(dataset, folder / "frame.parquet")
    source = open_rows(str(folder / "frame.parquet"), ["text", "label"])
    assert was_in_memory(source.name) and not source.is_path and source.summaries() is None
    return source


def rows_in(source: RowSource) -> list[dict[str, Any]]:
    return [row for batch in source.batches for row in batch.to_pylist()]


# as polars exports texts and categories
VIEWS = pa.table(
    {
        "text": pa.array([row["text"] for row in ROWS], pa.string_view()),
        "label": [1, 0, 1],
        "source": pa.DictionaryArray.from_arrays(
            pa.array([0, 1, 0], pa.uint32()), pa.array(["a", "b"], pa.string_view())
        ),
    }
)


@pytest.mark.parametrize(
    "dataset",
    [
        ROWS,
        pandas.DataFrame(ROWS, index=[5, 5, 1]),
        pandas.DataFrame(ROWS).astype({"text": "category", "label": "Int8"}),
        datasets.Dataset.from_list([*ROWS, {"text": "x", "label": 0}]).select([0, 1, 2]),
        VIEWS,
        Exported(VIEWS),
        Exported(pa.concat_tables([VIEWS[:2], VIEWS[2:]])),
    ],
    ids=["list", "pandas", "pandas types", "datasets", "pyarrow", "Arrow's interface", "in pieces"],
)
def test_rows_come_back_as_they_were(dataset: Any, tmp_path: Path) -> None:
    assert rows_in(written(dataset, tmp_path)) == ROWS


@given(st.lists(st.tuples(st.text(st.characters(exclude_categories=["Cs"])), st.integers(0, 9)), min_size=1))
def test_any_text_comes_back(tmp_path_factory: pytest.TempPathFactory, pairs: list[tuple[str, int]]) -> None:
    rows = [{"text": text, "label": label} for text, label in pairs]
    assert rows_in(written(rows, tmp_path_factory.mktemp("rows"))) == rows


def test_a_frame_without_rows_is_one(tmp_path: Path) -> None:
    assert rows_in(written(Exported(VIEWS[:0]), tmp_path)) == []


def test_names_of_classes_are_kept(tmp_path: Path) -> None:
    features = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["neg", "pos"])})
    source = written(datasets.Dataset.from_list(ROWS, features=features), tmp_path)
    assert source.class_names == ["neg", "pos"]


def test_the_hash_is_that_of_a_file_with_these_rows(tmp_path: Path) -> None:
    pandas.DataFrame(ROWS).to_csv(tmp_path / "rows.csv", index=False)
    written(ROWS, tmp_path)
    files = [str(tmp_path / name) for name in ("rows.csv", "frame.parquet")]
    one, other = (read_texts(LabelledRows(file, ["text"], "label", ["neg", "pos"]), ())[1] for file in files)
    assert one == other


@pytest.mark.parametrize("dataset", ["test.csv", ["a.csv", "b.csv"], [], None, 5, Path("test.csv"), {"text": ["a"]}])
def test_names_of_files_and_other_objects_are_no_rows(dataset: Any) -> None:
    assert not is_in_memory(dataset)


@pytest.mark.parametrize(
    ("dataset", "said"),
    [
        ([*ROWS, "x"], "frame, row 3 (counted from 0): must be a mapping with columns, not 'x'."),
        ([*ROWS, {"text": 5, "label": 1}], "frame, row 3 (counted from 0): column 'text' cannot be read ("),
        (pandas.DataFrame({"text": ["a", None, 3, "b"]}), "frame, row 2 (counted from 0): column 'text' cannot be"),
        (pandas.DataFrame([["a", "b"]], columns=["text", "text"]), "frame has the column 'text' more than once."),
        (Exported(pa.chunked_array([[1, 2]])), "frame cannot be read as a table: "),
    ],
    ids=["no mapping", "another type", "another type in pandas", "a column twice", "no table"],
)
def test_what_is_wrong_is_said_with_its_row(dataset: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        written(dataset, tmp_path)
    assert said in str(caught.value)


@pytest.mark.parametrize("rows", [[{"text": "a", "label": 1}, {"label": 0}], pandas.DataFrame({"text": ["a", None]})])
def test_what_is_missing_is_null(rows: Any, tmp_path: Path) -> None:
    write_parquet(rows, tmp_path / "frame.parquet")
    (batch,) = open_rows(str(tmp_path / "frame.parquet"), ["text"]).batches
    assert batch.column(0).to_pylist() == ["a", None]


def test_results_name_what_data_in_memory_hold(tmp_path: Path) -> None:
    kept, own = str(tmp_path / "list.parquet"), str(tmp_path / "own.parquet")
    write_parquet([{f"column{number}": 1 for number in range(9)}], Path(kept))
    named = ", ".join(f"column{number}" for number in range(6))
    assert name_in_memory(kept) == name_in_memory([kept]) == f"data in memory (1 row with the columns {named}, ...)"
    pandas.DataFrame(ROWS).to_parquet(own)
    (tmp_path / "broken.parquet").write_bytes(b"PAR1")
    for names in (own, [kept, own], "imdb", str(tmp_path / "none.parquet"), str(tmp_path / "broken.parquet"), ()):
        assert name_in_memory(names) is None
