"""The folder of a run on tasks: whose files it removes, and whose it leaves alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import results_of
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from task_runs import task_run

from dist_eval.options.harness import HarnessConfig
from dist_eval.results.harness import HarnessFiles
from dist_eval.runs.requests_folder import RequestsFolder


def opened(folder: Path) -> RequestsFolder:
    run = RequestsFolder(folder, HarnessConfig(tasks=["a"], model="base", backend="local").recorded(), overwrite=True)
    run.open()
    return run


def test_a_run_that_is_replaced_leaves_none_of_its_files(tmp_path: Path) -> None:
    task_run(tmp_path, {"a": {"acc": [1, 0]}}, {})
    (tmp_path / "results_now.json").write_text("{}")
    opened(tmp_path).close()
    assert {path.name for path in tmp_path.iterdir()} == {"results.json", "journal"}


@pytest.mark.parametrize("name", ["{}/thesis.jsonl", "../thesis.jsonl", "thesis.jsonl", "samples_/../../thesis.jsonl"])
def test_results_from_elsewhere_remove_nothing_else(tmp_path: Path, name: str) -> None:
    run = tmp_path / "run"
    task_run(run, {"a": {"acc": [1, 0]}}, {})
    results = results_of(run)
    del results["digests"]
    results["files"]["samples"] = {"a": name.format(tmp_path)}
    (run / "results.json").write_text(json.dumps(results))
    (run / "samples_").mkdir()
    for folder in (tmp_path, run):
        (folder / "thesis.jsonl").write_text("years of work")
    opened(run).close()
    for folder in (tmp_path, run):
        assert (folder / "thesis.jsonl").read_text() == "years of work"


@given(st.text(), st.text())
def test_the_names_of_files_are_plain(before: str, after: str) -> None:
    for results, samples in ((f"{before}/{after}", "samples_a.jsonl"), (None, f"{before}/{after}")):
        with pytest.raises(ValidationError):
            HarnessFiles(results=results, samples={"a": samples})
