"""Several labels or numbers a row: what a cell or list means, and what is wrong with it, by row."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from dist_eval.data.label_columns import open_labels
from dist_eval.data.readers import RowSource, open_rows
from dist_eval.errors import ConfigError, DataError
from dist_eval.petals.base_model.problem_types import MULTI_LABEL, REGRESSION, SINGLE_LABEL, Problem

NAMES = ["sport", "politics", "weather"]


def read(
    problem: Problem, *chunks: Any, names: list[str] = NAMES, how: str = "auto", declared: Any = None
) -> np.ndarray:
    column, row, codes = open_labels(problem, RowSource("x.csv", iter(()), declared), "label", names, how), 0, []
    for chunk in chunks:
        array = chunk if isinstance(chunk, pa.Array) else pa.array(chunk)
        codes.append(column.codes(array, row))
        row += len(array)
    labels = column.ids(np.concatenate(codes))
    assert labels.dtype == problem.dtype
    assert labels.shape == (row, len(names))
    return labels


def sets(*chunks: Any, **options: Any) -> list[list[int]]:
    return [np.flatnonzero(row).tolist() for row in read(MULTI_LABEL, *chunks, **options)]


@pytest.mark.parametrize(
    ("chunks", "options"),
    [
        ([["sport|weather", ""], ["politics"]], {}),
        ([[" sport | weather ", "  "], ["politics"]], {}),
        ([["0|2", "", "1"]], {}),
        ([["1|0|1", "0|0|0", "0|1|0"]], {"how": "vectors"}),
        ([["1|0|1"], ["0 | 0 | 0", "0|1|0"]], {}),
        ([["1.0|0.0|1.0", "0|0|0", "0|1|0"]], {}),
        ([[["1", "0", "1"], ["0", "0", "0"], ["0", "1", "0"]]], {}),
        ([["1|3", "", "2"]], {"names": ["1", "2", "3"]}),
        ([[[1, 3], [], [2]]], {"names": ["1", "2", "3"]}),
        ([[["weather", "sport"], [], ["politics"]]], {}),
        ([[["0", "2"], [], ["1"]]], {"how": "numbers"}),
        ([[[0, 2], [], [1]]], {}),
        ([[[0, 2]], [[], [1]]], {"how": "numbers"}),
        ([[[1, 0, 1], [0, 0, 0], [0, 1, 0]]], {}),
        ([[[1, 0, 1]], [[0, 0, 0], [0, 1, 0]]], {"how": "vectors"}),
        ([[[1.0, 0.0, 1.0], [0.0, 0.0, 0.0], [0.0, 1.0, 0.0]]], {}),
        ([[[True, False, True], [False] * 3, [False, True, False]]], {}),
        ([[[2, 0], [], [1]]], {"declared": ["WEATHER", "politics", "sport"]}),
        ([pa.array([[1, 0, 1], [0, 0, 0], [0, 1, 0]], pa.list_(pa.int8()))], {}),
    ],
)
def test_all_ways_to_write_sets_of_labels(chunks: Any, options: Any) -> None:
    assert sets(*chunks, **options) == [[0, 2], [], [1]]


PAIRS = {"text": "|".join, "lists of text": list, "integers": lambda words: list(map(int, words))}
TWO = ["a", "b"]


@pytest.mark.parametrize("spelled", PAIRS.values(), ids=PAIRS)
def test_two_values_for_two_classes_are_labels_or_a_vector_as_some_row_shows(spelled: Any) -> None:
    def chunk(*cells: str) -> pa.Array:
        values = [spelled(list(cell)) for cell in cells]
        return pa.array(values, pa.array([spelled(["0"])]).type)

    assert sets(chunk("10", "01"), chunk("11", "00"), names=TWO) == [[0], [1], [0, 1], []]
    assert sets(chunk("10"), chunk("1", "", "01"), names=TWO) == [[0, 1], [1], [], [0, 1]]
    assert sets(chunk("10", "01"), names=TWO, how="vectors") == [[0], [1]]
    assert sets(chunk("10", "01"), names=TWO, how="numbers") == [[0, 1], [0, 1]]
    with pytest.raises(DataError, match=r"row 0 .* could be class numbers or a 0/1 vector: set --labels numbers or"):
        sets(chunk("10"), chunk("01"), names=TWO)


@pytest.mark.parametrize(
    ("cells", "expected"), [(["1", "0"], [[0], []]), ([[1], [0]], [[0], []]), ([["a"], []], [[0], []])]
)
def test_of_one_class_a_one_is_a_vector(cells: list[Any], expected: list[list[int]]) -> None:
    assert sets(cells, names=["a"]) == expected


@pytest.mark.parametrize(
    ("chunks", "words", "options"),
    [
        ([[[0, 2]], [[1.0, 0.0, 1.0]]], "row 1 (counted from 0): the label in column 'label' is a 0/1 vector, but", {}),
        ([["sport", "sport|chess"]], "row 1 (counted from 0): the label in column 'label' is 'chess'", {}),
        ([["sport"], ["politics||sport"]], "row 1 (counted from 0): the label in column 'label' is empty", {}),
        (
            [["sport", "politics|politics"]],
            "row 1 (counted from 0): the label in column 'label' names a class twice.",
            {},
        ),
        ([[[0], [1, 0, 1]]], "row 1 (counted from 0): the label in column 'label' names a class twice. If it", {}),
        ([[[1, 0, 1], [0, 1]]], "row 1 (counted from 0): the label in column 'label' has 2 values, but the head", {}),
        ([[[0.5, 0, 1]]], "row 0 (counted from 0): the label in column 'label' holds 0.5; a vector of labels may", {}),
        ([[[0, 3]]], "row 0 (counted from 0): the label in column 'label' is '3', but the classes are", {}),
        ([[["sport"], None]], "row 1 (counted from 0): the label in column 'label' is missing (null)", {}),
        ([[["sport"], ["sport", None]]], "row 1 (counted from 0): the label in column 'label' contains a missing", {}),
        ([[1, 2]], "several labels must be a list, or text separated by '|'", {}),
        ([[[0, 1]]], "could be class numbers or a 0/1 vector: set --labels numbers or", {"names": ["a", "b"]}),
        ([[[True, False, True]]], "which --labels names does not allow", {"how": "names"}),
        ([["a|b"]], "the name of the class 'a|b' contains '|'", {"names": ["a|b", "c"]}),
        ([[[{"a": 1}]]], "labels are class numbers or names", {}),
    ],
)
def test_what_is_wrong_with_sets_of_labels(chunks: Any, words: str, options: Any) -> None:
    with pytest.raises(DataError) as caught:
        sets(*chunks, **options)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("chunks", "outputs", "numbers"),
    [
        ([["0.5", " -2 "], ["1e3"]], 1, [[0.5], [-2.0], [1000.0]]),
        ([[0.5, -2, 1000.0]], 1, [[0.5], [-2.0], [1000.0]]),
        ([[1, 2]], 1, [[1.0], [2.0]]),
        ([[[0.5], [1.0]]], 1, [[0.5], [1.0]]),
        ([["0.5|1", "2|3"]], 2, [[0.5, 1.0], [2.0, 3.0]]),
        ([[[0.5, 1], [2, 3]]], 2, [[0.5, 1.0], [2.0, 3.0]]),
        ([["0.1"]], 1, [[0.1]]),
    ],
)
def test_numbers_are_read_as_they_are(chunks: Any, outputs: int, numbers: list[list[float]]) -> None:
    assert read(REGRESSION, *chunks, names=["a", "b"][:outputs]).tolist() == numbers


@pytest.mark.parametrize(
    ("chunks", "outputs", "words"),
    [
        ([["0.5"], ["much"]], 1, "row 1 (counted from 0): the label in column 'label' is 'much', which is not a"),
        (
            [["0.5", ""]],
            1,
            "row 1 (counted from 0): the label in column 'label' has 0 numbers, but the head has 1 output.",
        ),
        ([["nan"]], 1, "row 0 (counted from 0): the label in column 'label' is 'nan', which is not a finite number"),
        ([[0.5, float("inf")]], 1, "row 1 (counted from 0): the label in column 'label' is inf, which is not a finite"),
        ([["1", "-1e39"]], 1, "row 1 (counted from 0): the label in column 'label' is '-1e39', which is too large for"),
        ([["1_000"]], 1, "is '1_000', which is not a finite number"),
        ([[0.5, None]], 1, "row 1 (counted from 0): the label in column 'label' is missing (null)"),
        (
            [["1|2", "1|2|3"]],
            2,
            "row 1 (counted from 0): the label in column 'label' has 3 numbers, but the head has 2",
        ),
        ([["1|2", "1|x"]], 2, "row 1 (counted from 0): the label in column 'label' is 'x'"),
        ([[0.5]], 2, "the head has 2 outputs, so each label must be a list of 2 numbers"),
        ([[True, False]], 1, "labels of a regression are numbers"),
    ],
)
def test_what_is_wrong_with_numbers(chunks: Any, outputs: int, words: str) -> None:
    with pytest.raises(DataError) as caught:
        read(REGRESSION, *chunks, names=["a", "b"][:outputs])
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("problem", "how"), [(SINGLE_LABEL, "vectors"), (REGRESSION, "names"), (REGRESSION, "vectors")]
)
def test_the_labels_option_must_match_the_head(problem: Problem, how: str) -> None:
    with pytest.raises(ConfigError, match=f"--labels {how} cannot be used with a head for {problem.name}"):
        read(problem, ["1"], how=how)


def of_file(path: Path, problem: Problem = MULTI_LABEL) -> list[list[int]]:
    source = open_rows(str(path), ["text", "label"])
    column, row, codes = open_labels(problem, source, "label", NAMES), 0, []
    for batch in source.batches:
        codes.append(column.codes(batch.column(1), row))
        row += batch.num_rows
    return [np.flatnonzero(labels).tolist() for labels in column.ids(np.concatenate(codes))]


@pytest.mark.parametrize("kind", ["csv", "jsonl", "json", "parquet", "folder"])
def test_lists_in_files_of_every_kind(kind: str, tmp_path: Path) -> None:
    import datasets

    lists, path = [["sport", "weather"], [], ["politics"]], tmp_path / f"data.{kind}"
    rows = [{"text": "a", "label": names} for names in lists]
    if kind == "csv":
        path.write_text("text,label\n" + "".join(f"a,{'|'.join(names)}\n" for names in lists))
    elif kind == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif kind == "json":
        path.write_text(json.dumps(rows))
    elif kind == "parquet":
        parquet.write_table(pa.table({"text": ["a"] * 3, "label": lists}), path)
    else:
        names = datasets.Sequence(datasets.ClassLabel(names=["politics", "weather", "sport"]))
        features = datasets.Features({"text": datasets.Value("string"), "label": names})
        datasets.Dataset.from_list(rows, features=features).save_to_disk(str(path))
    assert of_file(path) == [[0, 2], [], [1]]


CLASSES = {"num_classes": 3, "names": ["politics", "weather", "sport"], "id": None, "_type": "ClassLabel"}
DECLARED = {
    "datasets 4": {"feature": CLASSES, "_type": "List"},
    "large": {"feature": CLASSES, "_type": "LargeList"},
    "datasets 2": {"feature": CLASSES, "length": -1, "id": None, "_type": "Sequence"},
    "as a list": [CLASSES],
}


@pytest.mark.parametrize("feature", DECLARED.values(), ids=DECLARED)
def test_declared_names_of_lists_in_parquet_of_any_version_of_datasets(feature: Any, tmp_path: Path) -> None:
    metadata = {"huggingface": json.dumps({"info": {"features": {"label": feature}}})}
    rows = pa.table({"text": ["a", "b"], "label": [[2, 1], []]}).replace_schema_metadata(metadata)
    parquet.write_table(rows, tmp_path / "data.parquet")
    assert of_file(tmp_path / "data.parquet") == [[0, 2], []]
