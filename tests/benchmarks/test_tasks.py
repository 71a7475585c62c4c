"""The benchmark of tasks: both of its tasks are answered alike by all contenders."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import Launcher

from benchmarks.tasks import LOCAL, make_tasks

SENTENCES = [" ".join(f"word{row}-{n}" for n in range(8)) for row in range(20)]


def test_documents_have_their_own_ending_among_the_choices(tmp_path: Path) -> None:
    folder = make_tasks(tmp_path / "tasks", SENTENCES, 30, 5)
    rows = [json.loads(line) for line in (folder / "documents.json").read_text().splitlines()]
    assert len(rows) == 30
    assert all(f"{row['begin']} {row['endings'][row['answer']]}" in SENTENCES for row in rows)
    letters = json.loads((folder / "letters.yaml").read_text())
    assert letters["doc_to_choice"] == ["A", "B", "C", "D"] and "D. {{endings[3]}}\nAnswer:" in letters["doc_to_text"]


def test_all_contenders_answer_alike(launcher: Launcher, tmp_path: Path) -> None:
    pytest.importorskip("lm_eval", reason="the extra `harness` is not installed")
    process = launcher.run("-m", "benchmarks.tasks", "--quick", "--output", str(tmp_path), preloaded=False)
    assert process.returncode == 0, process.stderr
    content = json.loads((tmp_path / "tasks.json").read_text())
    assert {one["name"] for one in content["series"]} >= {"dist_eval, 1 rank", LOCAL}
    assert not content["notes"], "one differs from the local model"
    assert all(one["details"][0]["requests"] == 48 for one in content["series"])
    assert not launcher.leftovers()
