"""Public names without directories."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from samples import sections

from dist_eval.arguments.fields import Options
from dist_eval.options.config import EvaluationConfig
from dist_eval.options.harness import HarnessConfig
from dist_eval.options.tuning import TuningConfig
from dist_eval.report.naming import dataset_name, name_of, without_directories, without_folders


@pytest.mark.parametrize(
    ("source", "is_path", "name"),
    [
        ("team/ds.v2", False, "team/ds.v2"),
        ("meta-llama/Llama-3.1-8B", False, "meta-llama/Llama-3.1-8B"),
        ("meta-llama/Llama-3.1-8B", None, "meta-llama/Llama-3.1-8B"),
        ("data/train.csv", True, "train.csv"),
        ("no-longer/there", True, "there"),
        ("/no/longer/there/", None, "there"),
        ("../models/base", None, "base"),
        ("~/base", None, "base"),
        (".", True, "."),
    ],
)
def test_only_a_path_is_shortened(source: str, is_path: bool | None, name: str) -> None:
    assert name_of(source, is_path) == name


def test_a_name_may_be_longer_than_that_of_any_file() -> None:
    assert name_of("data in memory (" + "x" * 300 + ")") == "data in memory (" + "x" * 300 + ")"


def test_what_is_there_is_a_path_where_nothing_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "team" / "data").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    data = sections().data.model_copy(update={"source": "team/data", "is_path": None})
    assert dataset_name(data) == "data"
    assert dataset_name(data.model_copy(update={"is_path": False})) == "team/data"


def test_options_lose_their_folders_and_nothing_else() -> None:
    options = {
        "model": "org/base-1.5",
        "dataset": "data/test.csv",
        "checkpoint": "here/tuned",
        "output": "/runs/one",
        "peers_file": None,
        "metric": ["own/metrics.py:worst", "package.module:best"],
        "tasks": ["hellaswag", "/own/tasks/mine.yaml"],
        "split": "a/b",
    }
    assert without_folders(options, {"model": False, "dataset": True}) == {
        **options,
        "dataset": "test.csv",
        "checkpoint": "tuned",
        "output": "one",
        "metric": ["metrics.py:worst", "package.module:best"],
        "tasks": ["hellaswag", "mine.yaml"],
    }


def test_a_message_loses_directories_and_nothing_else() -> None:
    message = "'/home/me/data/x.csv' and (/tmp/y.csv) differ, 3/4 of them; see https://host/path/page"
    assert without_directories(message) == "'x.csv' and (y.csv) differ, 3/4 of them; see https://host/path/page"


def test_each_of_several_files_loses_its_folder() -> None:
    options = {"dataset": ["data/a.csv", "data/b.csv"], "few_shot_from": ["train/a.csv", "train/b.csv"]}
    assert without_folders(options, {"dataset": True}) == {
        "dataset": ["a.csv", "b.csv"],
        "few_shot_from": ["a.csv", "b.csv"],
    }


@pytest.mark.parametrize("config", [EvaluationConfig, HarnessConfig, TuningConfig])
def test_every_option_that_names_a_file_or_folder_loses_its_folders(config: type[Options]) -> None:
    named = [field for field in fields(config) if field.metadata.get("metavar") in ("FILE", "FOLDER")]
    assert len(named) > 2
    for field in named:
        place = "/home/somebody/x"
        given: Any = [place] if str(field.type).startswith("list") else place
        assert "somebody" not in str(without_folders({field.name: given})), field.name
