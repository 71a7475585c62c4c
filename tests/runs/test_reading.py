"""A finished run is read as records; what is none is an error that names the file and the place in it."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import results_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from samples import METRICS, RESULTS, complete_run, opened, write_with_digest
from task_runs import task_run

from dist_eval.compare.loading import load_run
from dist_eval.errors import RunError
from dist_eval.report.page import write_report
from dist_eval.results.inputs import Coverage
from dist_eval.results.run import CompleteRun, CompleteTasksRun
from dist_eval.runs.digests import with_digests
from dist_eval.runs.outcome import read_outcome
from dist_eval.runs.reading import FinishedRun, read_run
from dist_eval.runs.task_samples import TaskRun


@pytest.fixture(scope="module")
def complete(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("complete")
    complete_run(folder).close()
    return folder


@pytest.fixture
def folder(tmp_path: Path, complete: Path) -> Path:
    shutil.copytree(complete, tmp_path, dirs_exist_ok=True)
    return tmp_path


def test_a_run_is_read_as_it_was_written(folder: Path) -> None:
    run = FinishedRun(folder, read_run(folder))
    assert run.results.label_names == ["neg", "pos"]
    assert run.results.metrics == METRICS.values
    assert run.results.to_json() == results_of(folder)


def test_what_does_not_fit_is_named(folder: Path) -> None:
    content = CompleteRun.model_validate(results_of(folder)).model_copy(
        update={"coverage": Coverage.model_construct(expected=5, seen=-1, duplicates=0, missing=0, failed=0)}
    )
    (folder / RESULTS).write_text(json.dumps(with_digests(content, folder)))
    with pytest.raises(RunError, match=r"not in the format of this version \(coverage\.seen: .*\): run it again"):
        read_run(folder)
    (folder / RESULTS).unlink()  # or it would have to fit the schema


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_changed_digit_in_the_results_is_noticed(folder: Path, data: st.DataObject) -> None:
    text = (folder / RESULTS).read_text()
    place = data.draw(st.sampled_from([place for place, letter in enumerate(text) if letter.isdigit()]))
    digit = data.draw(st.sampled_from("0123456789"))
    changed = text[:place] + digit + text[place + 1 :]
    try:
        (folder / RESULTS).write_text(changed)
        if changed == text or json.loads(changed) == json.loads(text):
            assert read_run(folder).status == read_outcome(folder).status == "complete"
            return
        with pytest.raises(RunError, match=r"results\.json "):
            read_run(folder)
        assert read_outcome(folder).results is None
    except json.JSONDecodeError:  # such as 01
        assert read_outcome(folder).status == "failed"
    finally:
        (folder / RESULTS).write_text(text)


def test_what_a_person_only_formats_anew_is_still_the_run(folder: Path) -> None:
    results = results_of(folder)
    (folder / RESULTS).write_text(json.dumps(dict(reversed(results.items()))))
    assert read_run(folder).to_json() == results


def test_damage_is_named_with_what_to_do(folder: Path) -> None:
    text = (folder / RESULTS).read_text()
    (folder / RESULTS).write_text(text.replace('"accuracy": 0.8', '"accuracy": 0.9', 1))
    with pytest.raises(RunError, match=r"results\.json was damaged or changed .* Start the run's command again"):
        write_report(folder)
    outcome = read_outcome(folder)
    assert (outcome.status, outcome.exit_status) == ("failed", 75)
    assert "results.json was damaged or changed" in outcome.problem


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.integers(0), bit=st.integers(0, 7))
def test_a_flipped_bit_in_the_predictions_is_noticed_wherever_they_are_read(folder: Path, place: int, bit: int) -> None:
    path = folder / "predictions.parquet"
    content = path.read_bytes()
    damaged = bytearray(content)
    damaged[place % len(content)] ^= 1 << bit
    path.write_bytes(damaged)
    try:
        for read in (read_run, load_run, write_report):
            with pytest.raises(RunError, match=r"predictions\.parquet was damaged or changed"):
                read(folder)
    finally:
        path.write_bytes(content)
    assert FinishedRun(folder, read_run(folder)).sample(5)[0].shape == (5,)


def test_the_samples_of_a_run_on_tasks_are_checked_as_well(tmp_path: Path) -> None:
    run = task_run(tmp_path / "run", {"digits": {"acc": [1, 0, 1]}}, {})
    results = read_run(run)
    assert isinstance(results, CompleteTasksRun) and len(list(TaskRun(run, results).samples("digits"))) == 3
    samples = run / "samples_digits_now.jsonl"
    samples.write_text(samples.read_text().replace('"acc": 0', '"acc": 1'))
    with pytest.raises(RunError, match=r"samples_digits_now\.jsonl was damaged or changed"):
        read_run(run)


@pytest.mark.parametrize("make", [Path.unlink, os.mkfifo, os.symlink, os.mkdir])
def test_what_is_no_table_is_not_read(folder: Path, make: Callable[[Path], None]) -> None:
    path = folder / "predictions.parquet"
    path.rename(folder / "moved")
    if make is os.symlink:
        path.symlink_to("moved")
    elif make is not Path.unlink:
        make(path)
    what = "is missing" if make is Path.unlink else "was damaged or changed"
    with pytest.raises(RunError, match=rf"predictions\.parquet {what}.*Start the run's command again"):
        read_run(folder)


@pytest.mark.parametrize("name", ["/dev/zero", "../secret", "pipe", "\0"])
def test_only_a_runs_own_tables_are_looked_up_whatever_its_results_name(folder: Path, name: str) -> None:
    os.mkfifo(folder / "pipe")
    results = results_of(folder)
    results["digests"]["files"][name] = "0" * 64
    write_with_digest(folder, results)
    assert read_run(folder).status == "complete"
    again = opened(folder)
    assert again.is_complete
    again.close()
