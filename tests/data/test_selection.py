"""Parts of a dataset: the rows that are selected, and that nothing else is looked at."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet
from transformers import AutoTokenizer

from dist_eval import demo
from dist_eval.data import selection
from dist_eval.data.columns import group_numbers
from dist_eval.data.dataset import TokenizedDataset, tokenize_dataset
from dist_eval.data.labelled_rows import LabelledRows, read_texts
from dist_eval.data.plan import plan_batches
from dist_eval.data.readers import RowSource
from dist_eval.data.selection import SelectedRows, Selection, allocate, draw_rows, select_rows
from dist_eval.errors import DataError
from dist_eval.petals.base_model.problem_types import MULTI_LABEL, SINGLE_LABEL, Problem

ROWS = 500
DIGITS = AutoTokenizer.from_pretrained(demo.BASE_MODEL)
COLUMNS: dict[str, Any] = {"text_columns": ["text"], "label_column": "label", "label_names": ["neg", "pos"]}


def keys(rows: int, seed: int) -> np.ndarray:
    return np.random.PCG64(seed).random_raw(rows)


def smallest(numbers: np.ndarray, of: np.ndarray, count: int) -> list[int]:
    return sorted(of[np.argsort(numbers[of], kind="stable")][:count].tolist())


@settings(max_examples=60)
@given(st.integers(1, 400), st.floats(0, 1), st.integers(0, 2**70), st.integers(1, 50), st.integers(1, 3))
def test_a_sample_has_the_smallest_keys_of_each_stratum_in_any_number_of_pieces(
    rows: int, share: float, seed: int, piece: int, classes: int
) -> None:
    size, strata = round(share * rows), np.random.default_rng(0).integers(classes, size=rows)
    quotas = allocate(size, np.bincount(strata, minlength=classes))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(selection, "_KEYS_AT_ONCE", piece)
        alone, by_class = draw_rows(rows, [size], seed), draw_rows(rows, quotas, seed, strata)
    assert alone.tolist() == smallest(keys(rows, seed), np.arange(rows), size)
    for number in range(classes):
        of_class = np.flatnonzero(strata == number)
        drawn = by_class[strata[by_class] == number].tolist()
        assert drawn == smallest(keys(rows, seed), of_class, int(quotas[number]))


def test_the_rows_are_the_same_with_every_version_of_numpy_and_on_every_machine() -> None:
    assert draw_rows(1_000_000, [6], 7).tolist() == GOLDEN
    assert set(GOLDEN) < set(draw_rows(1_000_000, [1000], 7))  # a larger sample has the smaller one in it


GOLDEN = [106899, 399599, 700859, 777880, 914579, 967133]


def test_each_pair_of_rows_is_drawn_equally_often() -> None:
    draws, together = 3000, np.zeros((6, 6))
    for seed in range(draws):
        drawn = draw_rows(6, [3], seed)
        together[np.ix_(drawn, drawn)] += 1
    pairs = together[np.triu_indices(6, k=1)]
    assert np.diag(together) / draws == pytest.approx(0.5, abs=0.04)
    assert pairs / draws == pytest.approx(0.2, abs=0.04)


@settings(max_examples=100)
@given(st.lists(st.integers(0, 10**8), min_size=1, max_size=8), st.floats(0, 1))
def test_strata_have_their_share_of_the_sample_up_to_less_than_one_row(counts: list[int], share: float) -> None:
    size = round(share * sum(counts))
    quotas = allocate(size, counts)
    assert quotas.sum() == size
    assert (quotas <= counts).all()
    exact = size * np.asarray(counts) / max(1, sum(counts))
    assert (np.abs(quotas - exact) < 1).all()


@settings(max_examples=60)
@given(st.lists(st.integers(0, 6), max_size=8), st.data())
def test_a_stream_of_some_rows_has_these(sizes: list[int], data: st.DataObject) -> None:
    rows = sorted(data.draw(st.sets(st.integers(0, sum(sizes) - 1)))) if sum(sizes) else []
    starts = np.cumsum([0, *sizes])
    batches = [
        pa.record_batch([pa.array(range(start, start + size), pa.int64())], names=["row"])
        for start, size in zip(starts, sizes, strict=False)
    ]
    source = RowSource("test", iter(batches)).only(np.asarray(rows, dtype=np.int64))
    found = [row for batch in source.batches for row in batch.column(0).to_pylist()]
    assert found == rows
    assert [source.row(position) for position in range(len(rows))] == rows


def label_of(row: int) -> str:
    return "pos" if row % 5 == 0 else "neg"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Texts of three lengths, each with its row, and one positive row in five."""
    path = tmp_path / "test.csv"
    lines = [f"{'3g' * (1 + row % 3)}{row},{label_of(row)}" for row in range(ROWS)]
    path.write_text("\n".join(["text,label", *lines]) + "\n")
    return path


def selected(path: Path, method: Any = "random", size: int = 40, seed: int | None = 7, **options: Any) -> SelectedRows:
    return select_rows(Selection(method, lambda rows: size, seed), LabelledRows(str(path), **{**COLUMNS, **options}))


def tokenized(
    path: Path, rows: SelectedRows | None, problem: Problem = SINGLE_LABEL, **options: Any
) -> TokenizedDataset:
    folder = Path(tempfile.mkdtemp(dir=path.parent))
    return tokenize_dataset(
        LabelledRows(str(path), problem=problem, **COLUMNS),
        folder,
        selected=rows,
        **{"tokenizer": DIGITS, "max_length": 100, **options},
    )


@pytest.mark.parametrize("method", ["first", "random", "stratified"])
def test_an_example_is_named_by_its_row_and_is_what_it_is_in_the_whole_dataset(method: str, file: Path) -> None:
    chosen = selected(file, method)
    whole, part = tokenized(file, None), tokenized(file, chosen)
    assert part.rows is not None and part.rows.tolist() == chosen.rows.tolist()
    assert (len(part), part.facts.examples, part.facts.selection) == (40, 40, chosen.summary)
    rows = plan_batches(part.lengths, token_budget=30, rows=part.rows).batch(3)
    assert set(rows) < set(chosen.rows)
    for one, other in zip(part.padded(rows), whole.padded(rows), strict=True):
        assert np.array_equal(one, other)
    assert part.labels_of(rows).tolist() == [int(label_of(row) == "pos") for row in rows]
    texts, digest = read_texts(LabelledRows(str(file), **COLUMNS), {int(rows[0])}, chosen.rows)
    assert {row: text.split("g")[-1] for row, (text,) in texts.items()} == {rows[0]: str(rows[0])}
    assert digest == part.facts.text_digest
    # a run on all rows is known to be one on the same data
    assert chosen.summary.column_digests == whole.facts.column_digests
    if method == "first":
        assert chosen.rows.tolist() == list(range(40))
    if method == "stratified":
        assert part.labels.sum() == 8


def test_files_of_all_kinds_have_the_same_sample(file: Path, tmp_path: Path) -> None:
    rows = [line.split(",") for line in file.read_text().splitlines()[1:]]
    table = pa.table({"text": [text for text, _ in rows], "label": [label for _, label in rows]})
    parquet.write_table(table, tmp_path / "test.parquet", row_group_size=77)
    (tmp_path / "test.jsonl").write_text("\n".join(json.dumps(dict(row)) for row in table.to_pylist()))
    datasets.Dataset(table).save_to_disk(tmp_path / "folder")
    expected = selected(file, "stratified")
    for name in ("test.parquet", "test.jsonl", "folder"):
        found = selected(tmp_path / name, "stratified")
        assert found.rows.tolist() == expected.rows.tolist()
        assert found.summary == expected.summary


def with_cell(file: Path, row: int, line: str) -> Path:
    lines = file.read_text().splitlines()
    lines[row + 1] = line
    file.write_text("\n".join(lines) + "\n")
    return file


@pytest.mark.parametrize(
    ("line", "options", "words"),
    [
        ("3g,eleven", {}, "row {row} (counted from 0): the label in column 'label' is 'eleven'"),
        ("12" * 30 + ",pos", {"max_length": 30, "strict": True}, "row {row} (counted from 0): the text has 61 tokens"),
        ("3g,pos|pos", {"problem": MULTI_LABEL}, "row {row} (counted from 0): the label in column 'label' names a"),
    ],
    ids=["label", "length", "labels"],
)
def test_only_selected_rows_are_checked_and_errors_name_the_row_of_the_file(
    line: str, options: dict[str, Any], words: str, file: Path
) -> None:
    chosen = selected(file)
    inside, outside = int(chosen.rows[20]), int(np.setdiff1d(np.arange(ROWS), chosen.rows)[30])
    with_cell(file, outside, line)
    assert len(tokenized(file, selected(file), **options)) == 40
    with_cell(file, inside, line)
    with pytest.raises(DataError) as caught:
        tokenized(file, selected(file), **options)
    assert words.format(row=inside) in str(caught.value)


def test_a_missing_text_or_group_names_the_row_of_the_file(tmp_path: Path) -> None:
    rows = np.asarray([3, 6, 8])
    table = pa.table({"text": ["3g"] * 8 + [None], "label": ["pos"] * 9})
    parquet.write_table(table, tmp_path / "test.parquet")
    chosen = SelectedRows(rows, selected(tmp_path / "test.parquet", size=3).summary)
    with pytest.raises(DataError, match=r"row 8 \(counted from 0\): the text in column 'text' is missing"):
        tokenized(tmp_path / "test.parquet", chosen)
    with pytest.raises(DataError, match=r"row 6 \(counted from 0\): the group in column 'doc' is missing"):
        group_numbers(pa.array(["x", None, "y"]), "doc", RowSource("test.csv", iter(()), selected=rows).where)


def test_a_sample_by_class_looks_at_all_labels(file: Path) -> None:
    with pytest.raises(DataError, match=r"row 499 \(counted from 0\): the label in column 'label' is 'eleven'"):
        selected(with_cell(file, 499, "3g,eleven"), "stratified")


def test_a_sample_of_more_rows_than_there_are_is_refused(file: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"^--sample 501 needs 501 rows, but .*test\.csv has 500\.$"):
        selected(file, size=501)
    (tmp_path / "none.csv").write_text("text,label\n")
    with pytest.raises(DataError, match="has no rows"):
        selected(tmp_path / "none.csv")
