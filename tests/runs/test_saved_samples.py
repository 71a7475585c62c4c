"""`predictions.parquet`: readable by other programs, and metrics computed from it are bit-identical."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import parquet
from samples import predictions_of

from dist_eval.analysis.options import AnalysisOptions, analyse
from dist_eval.analysis.slices import Slicing
from dist_eval.metrics.computing import compute_metrics
from dist_eval.metrics.metric_loading import synthetic_predictions
from dist_eval.metrics.predictions import Predictions
from dist_eval.petals.base_model.problem_types import PROBLEMS
from dist_eval.runs.saved_samples import Texts, read_chunks, read_predictions, read_texts, write_samples


@pytest.mark.parametrize(("rows", "classes"), [(0, 2), (1, 2), (7, 5), (9000, 60)])
def test_predictions_are_readable_by_pandas(tmp_path: Path, rows: int, classes: int) -> None:
    labels = [row % classes for row in range(rows)]
    predictions = predictions_of(labels, labels[::-1], classes)
    write_samples(tmp_path / "p.parquet", predictions)

    table = pd.read_parquet(tmp_path / "p.parquet")

    assert list(table.columns) == ["index", "label", "prediction", "loss", "probabilities"]
    assert table["index"].tolist() == list(range(rows))
    assert table["label"].tolist() == labels
    assert table["prediction"].tolist() == labels[::-1]
    assert table["loss"].tolist() == predictions.loss.tolist()
    assert [row.tolist() for row in table["probabilities"]] == predictions.probabilities.tolist()


def test_texts_are_readable_by_pandas_and_come_back(tmp_path: Path) -> None:
    values = {"exact_match": np.array([False, True]), "f1": np.array([0.5, 1.0])}
    texts = Texts(np.array([3, 5]), [["a", "b"], ["c"]], ["no", "c"], values, [None, "c"], np.array([1, 0]))
    write_samples(tmp_path / "t.parquet", texts)
    table = pd.read_parquet(tmp_path / "t.parquet")
    assert list(table.columns) == ["index", "references", "text", "exact_match", "f1", "answer", "group"]
    assert [list(row) for row in table["references"]] == [["a", "b"], ["c"]]
    assert table["answer"].isna().tolist() == [True, False]
    again = read_texts(tmp_path / "t.parquet")
    assert again.table() == texts.table() and again.numbers("exact_match") == [0, 1]


@pytest.mark.parametrize("column", ["index", "label", "prediction", "loss", "probabilities", "references", "text"])
def test_a_table_without_a_column_names_it(tmp_path: Path, column: str) -> None:
    path, read = tmp_path / "p.parquet", read_texts if column in ("references", "text") else read_predictions
    write_samples(path, predictions_of([0, 1], [0, 1], 2))
    if read is read_texts:
        write_samples(path, Texts(np.array([3]), [["a"]], ["a"], {}))
    parquet.write_table(parquet.read_table(path).drop_columns([column]), path)
    with pytest.raises(ValueError, match=f"it lacks the column '{column}'"):
        read(path)


@pytest.mark.parametrize("problem", PROBLEMS)
def test_groups_are_a_column_which_nothing_else_depends_on(
    problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    predictions, groups = synthetic_predictions(PROBLEMS[problem], 3), np.arange(8) // 3
    path, again, plain = (tmp_path / name for name in ("p", "again", "plain"))
    monkeypatch.setattr("dist_eval.metrics.predictions.rows_of_a_chunk", lambda _: 3)
    write_samples(path, predictions.in_groups(groups))
    write_samples(plain, predictions)
    saved = read_predictions(path)
    columns = dict(saved.columns)
    assert columns.pop("group").tolist() == groups.tolist()
    for name, column in read_predictions(plain).columns.items():
        np.testing.assert_array_equal(columns.pop(name), column)
    assert not columns
    # what was read is written as what was computed, with groups and without
    write_samples(again, saved)
    assert again.read_bytes() == path.read_bytes()
    write_samples(again, saved.in_groups(None))
    assert again.read_bytes() == plain.read_bytes()


def test_equal_predictions_give_equal_bytes(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_samples(tmp_path / name, predictions_of([0, 1, 2] * 500, [0, 2, 1] * 500, 3))
    write_samples(tmp_path / "other", predictions_of([0, 1, 2] * 500, [0, 2, 2] * 500, 3))
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    assert (tmp_path / "one").read_bytes() != (tmp_path / "other").read_bytes()


@pytest.mark.parametrize(("name", "outputs"), [(name, n) for name in PROBLEMS for n in (1, 3)])
def test_the_file_gives_the_same_figures_and_sections(name: str, outputs: int, tmp_path: Path) -> None:
    examples = synthetic_predictions(PROBLEMS[name], outputs)
    copies = np.sort(np.resize(np.arange(len(examples)), 90))
    generator = np.random.default_rng(0)
    logits = examples.logits[copies] + generator.normal(size=(90, outputs)).astype(np.float32)
    predictions = Predictions.from_logits(np.arange(90), examples.label[copies], logits, PROBLEMS[name])
    write_samples(tmp_path / "p.parquet", predictions)
    saved = read_predictions(tmp_path / "p.parquet")
    assert (len(saved), saved.num_labels, saved.problem) == (90, outputs, predictions.problem)
    names = [f"output {number}" for number in range(outputs)]
    view = AnalysisOptions(0.9, [Slicing.of_column("c", pa.array(["x", "y"] * 45))], "c", np.arange(90) // 3)
    texts = []
    for one in map(view.grouped, (predictions, saved)):
        metrics = compute_metrics(one, names)
        analysis = analyse(one, metrics, view).to_json()
        rows = [row.to_json() for row in metrics.per_class]
        texts.append(json.dumps([metrics.values, metrics.undefined, rows, analysis]))
    assert texts[0] == texts[1]


@pytest.mark.parametrize(("name", "outputs"), [(name, n) for name in PROBLEMS for n in (1, 3)])
def test_chunks_are_the_whole_in_order(
    name: str, outputs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_samples(tmp_path / "p.parquet", synthetic_predictions(PROBLEMS[name], outputs))
    monkeypatch.setattr("dist_eval.runs.saved_samples._CELLS_READ_AT_ONCE", 3)
    whole = read_predictions(tmp_path / "p.parquet")
    assert len(Predictions.concatenate([whole, whole])) == 2 * len(whole)
    chunks = list(read_chunks(tmp_path / "p.parquet"))
    assert len(chunks) > 2
    for column in whole.columns:
        joined = np.concatenate([chunk.columns[column] for chunk in chunks])
        np.testing.assert_array_equal(joined, whole.columns[column])
        assert joined.dtype == whole.columns[column].dtype
