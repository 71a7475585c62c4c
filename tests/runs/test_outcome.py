"""The outcome in a run's folder: one exit status for each way in which a run can end."""

from __future__ import annotations

from pathlib import Path

import pytest
from samples import METRICS, PREDICTIONS, opened, sections

from dist_eval.results.run import CompleteRun, EndedRun
from dist_eval.runs.evaluation_folder import EvaluationFolder
from dist_eval.runs.outcome import read_outcome


def begun(folder: Path) -> EvaluationFolder:
    run = opened(folder)
    run.close()
    return run


def test_each_end_has_its_status(tmp_path: Path) -> None:
    def said(folder: Path) -> tuple[str, int]:
        outcome = read_outcome(folder)
        return outcome.status, outcome.exit_status

    assert said(tmp_path / "nothing") == ("missing", 1)
    begun(tmp_path / "killed")
    assert said(tmp_path / "killed") == ("running", 75)
    begun(tmp_path / "stopped").stop("this rank got SIGTERM", rank=0, host="here")
    assert said(tmp_path / "stopped") == ("incomplete", 75)
    begun(tmp_path / "wrong").fail("no such column", rank=0, host="here")
    assert said(tmp_path / "wrong") == ("failed", 1)
    begun(tmp_path / "lost").fail("no sign of rank 1", rank=0, host="here", transient=True)
    assert said(tmp_path / "lost") == ("failed", 75)
    begun(tmp_path / "done").complete(PREDICTIONS, sections())
    assert said(tmp_path / "done") == ("complete", 0)
    results = read_outcome(tmp_path / "done").results
    assert isinstance(results, CompleteRun) and results.metrics == METRICS.values
    assert isinstance(read_outcome(tmp_path / "wrong").results, EndedRun)
    assert read_outcome(tmp_path / "nothing").results is None


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "[" * 200_000, '{"metrics": {}}', '{"status": "failed", "error": "?"}']
)
def test_an_unreadable_file_is_a_failure_with_a_reason(content: str, tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text(content)
    outcome = read_outcome(tmp_path)
    assert (outcome.status, outcome.exit_status) == ("failed", 1)
    assert str(tmp_path / "results.json") in outcome.reason


def test_the_outcome_of_a_tuning_is_in_another_file(tmp_path: Path) -> None:
    (tmp_path / "tuning.json").write_text('{"status": "incomplete", "error": {"message": "asked"}}')
    outcome = read_outcome(tmp_path)
    assert (outcome.status, outcome.exit_status, outcome.reason) == ("incomplete", 75, "asked")
    assert outcome.results is None  # it lacks most of its keys


def test_the_problem_says_why_there_are_no_results(tmp_path: Path) -> None:
    begun(tmp_path / "stopped").stop("this rank got SIGTERM", rank=0, host="here")
    resumes = "running the same command again resumes it"
    assert read_outcome(tmp_path / "stopped").problem == f"incomplete, this rank got SIGTERM; {resumes}"
    said = "Stopped because of SIGTERM: 2 of 5 examples are in the journal. Start the same command again to resume."
    begun(tmp_path / "begun").stop(said, rank=0, host="here")
    assert read_outcome(tmp_path / "begun").problem == f"incomplete, {said}"
    begun(tmp_path / "killed")
    assert read_outcome(tmp_path / "killed").problem == f"running; {resumes}"
    (tmp_path / "results.json").write_text('{"status": "complete", "schema_version": 0}')
    assert read_outcome(tmp_path).problem == "complete, but not in the format of this version: run it again"
    (tmp_path / "results.json").unlink()
    begun(tmp_path / "done").complete(PREDICTIONS, sections())
    assert read_outcome(tmp_path / "done").problem == ""


def test_a_file_that_a_person_made_stops_for_good_and_a_signal_does_not(tmp_path: Path) -> None:
    begun(tmp_path / "a").stop(f"there is a file {tmp_path / 'STOP'}", rank=0, host="here")
    begun(tmp_path / "b").stop("this rank got SIGTERM", rank=0, host="here")
    assert not read_outcome(tmp_path / "a").transient
    assert read_outcome(tmp_path / "b").transient


def test_progress_is_what_a_new_start_can_skip(tmp_path: Path) -> None:
    begun(tmp_path)
    before = read_outcome(tmp_path)
    (tmp_path / "journal" / "notes").write_text("nothing finished")
    assert read_outcome(tmp_path).progress == before.progress
    (tmp_path / "journal" / "run-1-rank-00000-x.batches").write_bytes(b"batch")
    after = read_outcome(tmp_path)
    assert after.progress != before.progress
    assert after.version == before.version
