"""Runs read back: as they were, and only beside others on the same examples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from compare_runs import NAMES, predictions, run_of
from pyarrow import parquet
from samples import config_for, folder_of

from dist_eval.compare.__main__ import main
from dist_eval.compare.compared_run import Run
from dist_eval.data.problem_types import MULTI_LABEL, REGRESSION, Problem
from dist_eval.errors import RunError
from dist_eval.metrics.predictions import Predictions


def test_a_run_is_read_back_as_it_was(folders: list[Path]) -> None:
    run, whole = Run.load(folders[0]).predictions, predictions(1.0)
    for name in ("index", "label", "prediction", "loss", "probabilities"):
        assert np.array_equal(getattr(run, name), getattr(whole, name)), name
    assert [column.tolist() for column in run.probabilities_of([2, 0])] == [
        column.tolist() for column in whole.probabilities_of([2, 0])
    ]


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("problem", [MULTI_LABEL, REGRESSION], ids=lambda problem: problem.name)
def test_runs_of_other_problems_are_read_back_as_they_were(problem: Problem, outputs: int, tmp_path: Path) -> None:
    whole = predictions(1.0, problem=problem, outputs=outputs)
    run = Run.load(run_of(tmp_path / "run", whole, NAMES[:outputs]))
    assert (run.problem, run.label_names) == (problem.name, NAMES[:outputs])
    for name in ("index", "label", "prediction", "loss"):
        assert np.array_equal(getattr(run.predictions, name), getattr(whole, name)), name


DOCUMENTS = np.arange(300) // 10


def without_its_groups(folder: Path) -> None:
    path = folder / "predictions.parquet"
    parquet.write_table(parquet.read_table(path).drop_columns(["group"]), path)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"groups": DOCUMENTS, "column": "author"}, "their --group-column differs, {first} 'doc' and {other} 'author'"),
        ({}, "{other} none. Start the command of {other} again with --group-column doc, which sends nothing."),
        ({"groups": DOCUMENTS[::-1].copy()}, "column 'doc' puts examples into other groups"),
        ({"old": True}, "{other} has intervals over groups of 'doc', but its predictions.parquet does"),
    ],
    ids=["column", "none", "members", "older"],
)
def test_runs_with_other_groups_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: dict[str, Any], words: str
) -> None:
    first, other = tmp_path / "first", tmp_path / "other"
    run_of(first, predictions(1.0), groups=DOCUMENTS)
    if "old" in options:
        without_its_groups(run_of(other, predictions(1.6), groups=DOCUMENTS))
    else:
        run_of(other, predictions(1.6), **options)
    assert main([str(first), str(other)]) == 1
    assert words.format(first=first, other=other) in capsys.readouterr().err


DEV = {"text_digest": "others", "source": "dev.csv", "column_digests": {"text": "d"}}


def failing(found: Predictions) -> Predictions:
    return found.rows(3, len(found))


@pytest.mark.parametrize(
    ("second", "names", "data", "words"),
    [
        (predictions(1.6), NAMES, DEV, "their data differ, test.csv (300"),
        (predictions(1.6), ["neg", "pos", "neutral"], {}, "the classes differ"),
        (failing(predictions(1.6)), NAMES, {}, "3 examples, such as number 0, failed in one of them only"),
        (
            predictions(1.6, problem=REGRESSION),
            NAMES,
            {},
            "one is a run of single_label_classification, the",
        ),
    ],
    ids=["data", "classes", "failed", "problem"],
)
def test_runs_that_cannot_be_compared_are_refused_with_the_reason(
    folders: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], second: Predictions, names: list[str],
    data: dict[str, Any], words: str,
) -> None:  # fmt: skip
    other = run_of(tmp_path / "other", second, names, **data)
    assert main([str(folders[0]), str(other)]) == 1
    printed = capsys.readouterr()
    assert words in printed.err and str(other) in printed.err
    assert printed.out == ""


@pytest.mark.parametrize(
    ("columns", "status"),
    [({"text": "t", "title": "b"}, 0), ({"text": "u", "source": "a"}, 1), ({"title": "b"}, 1)],
    ids=["one in common", "another of its name", "none in common"],
)
def test_texts_of_other_columns_can_be_compared_if_one_is_the_same(
    tmp_path: Path, columns: dict[str, str], status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    first = run_of(tmp_path / "first", predictions(1.0), column_digests={"text": "t", "source": "a"})
    other = run_of(tmp_path / "other", predictions(1.6), text_digest="others", column_digests=columns)
    assert main([str(first), str(other)]) == status, capsys.readouterr().err


def test_a_folder_without_a_complete_run_is_named(folders: list[Path], tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"holds no results\.json"):
        Run.load(tmp_path)
    running = folder_of(config_for(tmp_path / "running"))
    running.open()
    with pytest.raises(RunError, match="is not complete but running"):
        Run.load(tmp_path / "running")
    broken = run_of(tmp_path / "broken", predictions(1.0))
    (broken / "predictions.parquet").write_bytes(b"PAR1")
    with pytest.raises(RunError, match=r"predictions\.parquet cannot be read"):
        Run.load(broken)
    (broken / "results.json").write_text("{")
    with pytest.raises(RunError, match=r"results\.json cannot be read"):
        Run.load(broken)
    (broken / "results.json").write_text('{"schema_version": 0}')
    with pytest.raises(RunError, match="another format"):
        Run.load(broken)
