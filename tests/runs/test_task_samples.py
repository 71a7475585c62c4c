"""Reading the documents of the harness' files; real ones are read in `tests/harness`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dist_eval.runs.task_samples import _read_harness


@pytest.mark.parametrize(("answers", "text"), [(["a b"], "a b"), ([["A", "B"]], "A\nB"), ([[]], "")])
def test_a_generated_text_may_be_a_list_after_its_filters(answers: list[Any], text: str, tmp_path: Path) -> None:
    line = {
        "doc_id": 3,
        "doc_hash": "x",
        "filter": "custom",
        "target": "A",
        "arguments": {"gen_args_0": {"arg_0": "question", "arg_1": {"until": ["w"]}}},
        "filtered_resps": answers,
    }
    path = tmp_path / "samples.jsonl"
    path.write_text(json.dumps(line))
    [(_, sample)] = _read_harness(path)
    assert (sample.text, sample.choices) == (text, [])
