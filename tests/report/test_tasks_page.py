"""The page of a run on tasks of the harness."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import results_of
from task_runs import task_run

from dist_eval.report.__main__ import main

RIGHT = [1.0] * 30 + [0.0] * 10


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    values = {"words": {"odd": RIGHT, "acc": RIGHT}, "texts": {"perplexity": [float(-n) for n in range(40)]}}
    run = task_run(tmp_path / "run", values, {"words odd": 0.123})
    results_of(run)
    return run


@pytest.mark.parametrize("options", [[], ["--texts"]])
def test_it_lists_tasks_and_missed_documents(options: list[str], folder: Path) -> None:
    assert main([str(folder), *options]) == 0
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "0.7500" in page and "0.5981 to 0.8581" in page, "the accuracy of words"
    assert "it is no mean over documents" in page
    assert "10 documents, by the first metric of their task" in page
    assert "words #30" in page and "words #29" not in page
    assert "likelier by 0.5 nats" in page
    assert ("words question 30" in page) == ("south" in page) == bool(options)
    assert ("choice 1" in page) == (not options)


def test_other_forms_of_a_report_say_what_the_run_is(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(folder), "--markdown"]) == 1
    assert "holds a run on tasks of the lm-evaluation-harness, which has no predictions" in capsys.readouterr().err
