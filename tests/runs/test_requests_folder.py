"""The folder of a run on tasks: whose files it removes, and whose it leaves alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from conftest import results_of
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from samples import write_with_digest
from task_runs import task_run

from dist_eval.data.answers import BatchOutcome, logits_columns
from dist_eval.errors import RunError
from dist_eval.options.harness import HarnessConfig
from dist_eval.results.tasks import TasksFiles
from dist_eval.runs.evaluation_folder import EvaluationFolder
from dist_eval.runs.fingerprint import Fingerprint
from dist_eval.runs.journal import Journal


def opened(folder: Path, overwrite: bool = True) -> EvaluationFolder:
    options = HarnessConfig(tasks=["a"], model="base", backend="local").recorded()
    run = EvaluationFolder(folder, options, overwrite=overwrite)
    run.open()
    return run


def test_a_run_that_is_replaced_leaves_none_of_its_files(tmp_path: Path) -> None:
    task_run(tmp_path, {"a": {"acc": [1, 0]}}, {})
    opened(tmp_path).close()
    assert {path.name for path in tmp_path.iterdir()} == {"results.json", "journal"}


@pytest.mark.parametrize("name", ["{}/thesis.jsonl", "../thesis.jsonl", "thesis.jsonl", "samples_/../../thesis.jsonl"])
def test_results_from_elsewhere_remove_nothing_else(tmp_path: Path, name: str) -> None:
    run = tmp_path / "run"
    task_run(run, {"a": {"acc": [1, 0]}}, {})
    results = results_of(run)
    results["files"]["samples"] = {"a": name.format(tmp_path)}
    write_with_digest(run, results)
    (run / "samples_").mkdir()
    for folder in (tmp_path, run):
        (folder / "thesis.jsonl").write_text("years of work")
    opened(run).close()
    for folder in (tmp_path, run):
        assert (folder / "thesis.jsonl").read_text() == "years of work"


@given(st.text(), st.sampled_from("/\0"), st.text())
def test_the_names_of_files_are_plain(before: str, separator: str, after: str) -> None:
    name = f"{before}{separator}{after}"
    for results, samples in ((f"results_{name}.json", "samples_a.jsonl"), (None, f"samples_{name}.jsonl")):
        with pytest.raises(ValidationError):
            TasksFiles(results=results, samples={"a": samples})


DATE = "2026-11-23T02-48-59.398099"


def damaged_run(folder: Path) -> EvaluationFolder:
    """A run on tasks, opened, of which `results.json` is damaged; files of other origin are beside it."""
    task_run(folder, {"a": {"acc": [1, 0]}}, {})
    for name in (f"results_{DATE}.json", f"samples_a_{DATE}.jsonl", "results_thesis.json", "samples_of_rock.jsonl"):
        (folder / name).write_text("{}")
    for name in ("results_now.json", "samples_a_now.jsonl"):
        (folder / name).unlink(missing_ok=True)
    (folder / "results.json").write_text("{")
    return opened(folder, overwrite=False)


def test_damaged_results_of_a_run_on_tasks_are_no_reason_to_keep_its_files(tmp_path: Path) -> None:
    run = damaged_run(tmp_path)
    fingerprint = Fingerprint({"tasks": "a"})
    fingerprint.save(tmp_path)
    journal = Journal(tmp_path, np.array([1]), logits_columns(2), run=fingerprint.digest())
    journal.append(BatchOutcome(0, np.zeros(1, dtype=logits_columns(2))))
    journal.close()
    assert run.claim(fingerprint)
    run.close()
    left = {"results.json", "journal", "results_thesis.json", "samples_of_rock.jsonl"}
    assert {path.name for path in tmp_path.iterdir()} == left


def test_they_are_kept_if_nothing_can_be_made_of_a_journal(tmp_path: Path) -> None:
    run = damaged_run(tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    with pytest.raises(RunError, match=r"results\.json is damaged, and there is nothing to restore it from"):
        run.claim(Fingerprint({"tasks": "a"}))
    run.close()
    assert {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == before
