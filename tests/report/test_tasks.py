"""The page of a run on tasks of the harness."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from conftest import results_of, scalars_in
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
    assert "0.7500" in page and "[0.5981, 0.8581]" in page, "the accuracy of words"
    assert "the metric is not a function of a mean over documents" in page
    assert "10 documents, by the task&#39;s first metric" in page
    assert "words #30" in page and "words #29" not in page
    assert "likelier by 0.5 nats" in page
    assert ("words question 30" in page) == ("south" in page) == bool(options)
    assert ("choice 1" in page) == (not options)


def test_the_summary_and_a_model_card_have_the_metrics_of_all_tasks(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(folder), "--markdown"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].startswith("`base` on `tasks of the lm-evaluation-harness 0.4.13`: 240 of 240 log-likelihoods")
    assert "| `words/acc` | 0.7500 [0.5981, 0.8581] | 40 | 2 |" in lines
    assert "| `words/odd` | 0.1230 (1) | 40 | 2 |" in lines
    [of_group] = (line for line in lines if line.startswith("| `all/acc` | 0.5000 | "))
    assert "words" in of_group
    assert [line for line in lines if line.startswith("- `(1) the metric is not a function of a mean over documents")]
    assert main([str(folder), "--model-index", "--model-name", "me/base"]) == 0
    [model] = yaml.safe_load(capsys.readouterr().out)["model-index"]
    found = {one["dataset"]["type"]: {metric["type"] for metric in one["metrics"]} for one in model["results"]}
    assert found == {"words": {"odd", "acc"}, "texts": {"perplexity"}, "all": {"acc"}}
    assert {one["task"]["type"] for one in model["results"]} == {"text-generation"}


def test_its_metrics_are_logged_to_a_tracker(folder: Path) -> None:
    assert main([str(folder), "--tracker", "tensorboard"]) == 0
    assert {"words/acc", "words/acc/low", "texts/perplexity"} <= set(scalars_in(folder / "logs"))
