"""The benchmark of tasks: what it asks."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.tasks import make_tasks

SENTENCES = [" ".join(f"word{row}-{n}" for n in range(8)) for row in range(20)]


def test_documents_have_their_own_ending_among_the_choices(tmp_path: Path) -> None:
    folder = make_tasks(tmp_path / "tasks", SENTENCES, 30, 5)
    rows = [json.loads(line) for line in (folder / "documents.json").read_text().splitlines()]
    assert len(rows) == 30
    assert all(f"{row['begin']} {row['endings'][row['answer']]}" in SENTENCES for row in rows)
    letters = json.loads((folder / "letters.yaml").read_text())
    assert letters["doc_to_choice"] == ["A", "B", "C", "D"] and "D. {{endings[3]}}\nAnswer:" in letters["doc_to_text"]
