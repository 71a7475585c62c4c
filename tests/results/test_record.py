"""Records: what they write is what they read, and what contradicts itself is no record."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from samples import FACTS, PREDICTIONS, RESULTS, opened, sections

from dist_eval.record import Record
from dist_eval.results.run import RUN, RunningRun
from dist_eval.results.scores import Interval


@pytest.mark.parametrize("status", ["running", "failed", "incomplete", "complete"])
def test_a_file_is_read_and_written_again_to_the_last_byte(tmp_path: Path, status: str) -> None:
    run = opened(tmp_path, audit=1)
    if status == "complete":
        run.complete(PREDICTIONS, sections())
    elif status == "failed":
        run.fail("why", rank=1, host="here")
    elif status == "incomplete":
        run.stop("why", rank=1, host="here", coverage=FACTS["coverage"])
    text = (tmp_path / RESULTS).read_text()
    record = RUN.validate_json(text)
    assert record.status == status
    assert json.dumps(record.to_json(), indent=2) + "\n" == text


def header(**changes: Any) -> dict[str, Any]:
    environment = {"python": "3", "platform": "p", "packages": {}, "git_commit": None}
    known = {"schema_version": 2, "status": "running", "error": None, "started": "t", "finished": None, "config": {}}
    return {**known, "environment": environment, **changes}


def test_options_keep_their_types() -> None:
    config = {"flag": True, "number": 1, "float": 1.0, "text": "1", "list": ["a"], "none": None}
    found = RunningRun.model_validate(header(config=config)).config
    assert [(type(value), value) for value in found.values()] == [(type(value), value) for value in config.values()]


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"low": 0.1, "method": "bca"},
        {"low": 0.1, "high": 0.2, "method": "bca", "reason": "why"},
        {"low": float("nan"), "high": 0.2, "method": "bca"},
        {"reason": ""},
        {"reason": "why", "surplus": 1},
    ],
    ids=str,
)
def test_an_interval_has_limits_or_a_reason(fields: dict[str, Any]) -> None:
    assert Interval(confidence=0.95, reason="why").low is None
    with pytest.raises(ValidationError):
        Interval.model_validate({"confidence": 0.95, **fields})


def test_records_do_not_change() -> None:
    with pytest.raises(ValidationError):
        Interval(confidence=0.95, reason="why").reason = "because"  # type: ignore[misc]
    assert issubclass(Interval, Record)
