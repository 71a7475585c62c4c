"""A run's folder: what a new start finds in it, how the run ends, and one run at a time."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import results_of
from samples import (
    FACTS,
    PEER,
    PEER_ID,
    PREDICTIONS,
    RESULTS,
    complete_run,
    config_for,
    files_below,
    files_in,
    folder_of,
    opened,
    sections,
)

from dist_eval.data.answers import BatchOutcome, logits_columns
from dist_eval.errors import RunError
from dist_eval.report.page import report_on
from dist_eval.runs.evaluation_folder import EvaluationFolder
from dist_eval.runs.fingerprint import Fingerprint
from dist_eval.runs.folder_lock import HOLDER_FILE, last_holder
from dist_eval.runs.journal import Journal, record_plan
from dist_eval.schema import SCHEMA_VERSION


def test_a_run_that_starts_is_running(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "new"
    folder_of(config_for(folder, in_flight=7)).open()
    found = results_of(folder)
    assert found["schema_version"] == SCHEMA_VERSION
    assert (found["status"], found["error"], found["finished"]) == ("running", None, None)
    assert found["config"]["in_flight"] == 7
    assert "metrics" not in found


def test_the_environment_names_the_versions_a_result_depends_on(tmp_path: Path) -> None:
    folder_of(config_for(tmp_path)).open()
    packages = results_of(tmp_path)["environment"]["packages"]
    for name in ("petals", "hivemind", "torch", "transformers", "scikit-learn"):
        assert packages[name] == metadata.version(name)


FINGERPRINT = Fingerprint({"dataset": "a", "tokenizer": "b"})


def this_run(tmp_path: Path) -> EvaluationFolder:
    run = folder_of(config_for(tmp_path))
    run.holder = last_holder(tmp_path)  # as on a rank whose leader has opened it
    return run


def claimed_run(folder: Path, complete: bool = True) -> None:
    """A run that began with a fingerprint and has one batch in its journal."""
    if complete:
        drawn = folder.parent / "complete-claimed-run"  # its pictures are drawn only once
        if not drawn.exists():
            claimed_run(drawn, complete=False)
            this_run(drawn).complete(PREDICTIONS, sections())
        shutil.copytree(drawn, folder, dirs_exist_ok=True)
        return
    run = opened(folder)
    assert run.claim(FINGERPRINT)
    journal = Journal(folder, np.array([1]), logits_columns(2), run=FINGERPRINT.digest())
    journal.append(BatchOutcome(0, np.zeros(1, dtype=logits_columns(2))))
    journal.close()
    run.close()


def test_the_same_complete_run_has_nothing_to_do(tmp_path: Path) -> None:
    claimed_run(tmp_path)
    before = (tmp_path / RESULTS).read_bytes()
    run = opened(tmp_path)
    assert not run.claim(FINGERPRINT)
    assert (tmp_path / RESULTS).read_bytes() == before
    assert (tmp_path / "predictions.parquet").exists()


def test_a_complete_run_with_failed_examples_tries_them_again(tmp_path: Path) -> None:
    run = opened(tmp_path)
    run.claim(FINGERPRINT)
    run.complete(PREDICTIONS, sections(coverage={**FACTS["coverage"], "failed": 1}))
    again = opened(tmp_path)
    assert again.claim(FINGERPRINT)
    assert results_of(tmp_path)["status"] == "running"


@pytest.mark.parametrize("complete", [True, False])
def test_another_run_is_not_replaced_by_accident_and_what_differs_is_named(tmp_path: Path, complete: bool) -> None:
    claimed_run(tmp_path, complete)
    if not complete:
        this_run(tmp_path).stop("there is a file STOP", rank=0, host="here")
        (tmp_path / "STOP").unlink()
    before = files_below(tmp_path)
    run = opened(tmp_path)
    with pytest.raises(RunError) as caught:
        run.claim(Fingerprint({"dataset": "another", "tokenizer": "b"}))
    run.fail(str(caught.value), rank=0, host="here")
    for words in (str(tmp_path), "it differs in the dataset.", "--output", "--overwrite"):
        assert words in str(caught.value)
    with pytest.raises(RunError, match=r"it differs in the dataset, the tokenizer and the --compression\."):
        opened(tmp_path).claim(Fingerprint({"dataset": "another", "tokenizer": "c", "--compression": "d"}))
    assert files_below(tmp_path) == before
    assert run.is_resumable


def test_a_complete_run_without_a_fingerprint_is_not_replaced_by_accident(tmp_path: Path) -> None:
    complete_run(tmp_path)
    before = (tmp_path / RESULTS).read_bytes()
    run = opened(tmp_path)
    with pytest.raises(RunError, match=r"complete run, but no journal that identifies it.*--overwrite"):
        run.claim(FINGERPRINT)
    assert (tmp_path / RESULTS).read_bytes() == before


def test_a_complete_run_of_another_format_is_not_replaced_by_accident(tmp_path: Path) -> None:
    claimed_run(tmp_path)
    (tmp_path / RESULTS).write_text(json.dumps({**results_of(tmp_path), "schema_version": SCHEMA_VERSION - 1}))
    before = files_below(tmp_path)
    run = folder_of(config_for(tmp_path))
    with pytest.raises(RunError, match=r"not in the format of this version.*--output.*--overwrite"):
        run.open()
    run.close()
    assert files_below(tmp_path) == before
    assert run.results() is None
    opened(tmp_path, overwrite=True)
    assert results_of(tmp_path)["status"] == "running"


@pytest.mark.parametrize("complete", [True, False])
def test_a_run_is_replaced_on_request_with_nothing_of_it_left(tmp_path: Path, complete: bool) -> None:
    claimed_run(tmp_path, complete)
    run = opened(tmp_path, overwrite=True)
    assert run.claim(Fingerprint({"dataset": "another"}))
    assert results_of(tmp_path)["status"] == "running"
    assert files_in(tmp_path) == {RESULTS}
    assert not run.is_resumable


def test_a_run_that_torchrun_restarts_is_replaced_only_once(tmp_path: Path) -> None:
    claimed_run(tmp_path, complete=False)
    run = folder_of(config_for(tmp_path, overwrite=True))
    run.open(attempt=1)
    assert run.claim(FINGERPRINT)
    assert run.is_resumable


def lock_taken_by_another_start(folder: Path) -> None:
    (folder / "journal" / HOLDER_FILE).write_text("process 12 on elsewhere, started by process 7\n")


def test_it_is_replaced_by_a_restart_if_the_first_attempt_did_not_get_there(tmp_path: Path) -> None:
    claimed_run(tmp_path, complete=False)
    (tmp_path / "STOP").touch()
    lock_taken_by_another_start(tmp_path)
    run = folder_of(config_for(tmp_path, overwrite=True))
    run.open(attempt=1)
    assert run.claim(FINGERPRINT)
    assert not run.is_resumable
    assert not (tmp_path / "STOP").exists()


@pytest.mark.parametrize("overwrite", [True, False])
def test_a_host_with_a_folder_of_its_own_starts_as_the_leader_does(tmp_path: Path, overwrite: bool) -> None:
    run = folder_of(config_for(tmp_path / "nothing yet", overwrite=overwrite))
    run.open_on_host()
    claimed_run(tmp_path, complete=False)
    (tmp_path / "STOP").touch()
    run = folder_of(config_for(tmp_path, overwrite=overwrite))
    run.open_on_host()
    assert run.is_resumable == (not overwrite)
    assert not (tmp_path / "STOP").exists()


def test_the_end_of_a_run_is_not_recorded_in_the_folder_of_the_next(tmp_path: Path) -> None:
    holder = opened(tmp_path)
    rank, late = this_run(tmp_path), folder_of(config_for(tmp_path))
    late.holder = "process 12 on here, started by process 7"  # as on a rank of the run that had the folder before
    before = files_below(tmp_path)
    assert not late.fail("too late", rank=1, host="here")
    assert not late.stop("interrupted before the end", rank=1, host="here")
    assert files_below(tmp_path) == before
    assert not (tmp_path / "STOP").exists()
    assert rank.fail("in time", rank=1, host="here")
    holder.close()


def test_a_stopped_run_is_not_taken_up_by_torchruns_restarts(tmp_path: Path) -> None:
    claimed_run(tmp_path, complete=False)
    this_run(tmp_path).stop("this rank got SIGTERM", rank=0, host="here")
    folder_of(config_for(tmp_path)).open(attempt=1)
    assert (tmp_path / "STOP").exists()


def test_another_runs_results_are_left_alone(tmp_path: Path) -> None:
    claimed_run(tmp_path, complete=False)
    before = files_below(tmp_path)
    assert not folder_of(config_for(tmp_path)).fail("in use by another run", rank=0, host="here")
    assert files_below(tmp_path) == before


def test_an_interrupted_run_resumes(tmp_path: Path) -> None:
    claimed_run(tmp_path, complete=False)
    this_run(tmp_path).stop("this rank got SIGTERM", rank=0, host="here", coverage=FACTS["coverage"])
    assert (results_of(tmp_path)["status"], results_of(tmp_path)["coverage"]) == ("incomplete", FACTS["coverage"])
    run = opened(tmp_path)
    assert run.claim(FINGERPRINT)
    assert run.is_resumable
    assert results_of(tmp_path)["status"] == "running"
    assert "coverage" not in results_of(tmp_path)


DAMAGE: dict[str, Callable[[bytes], bytes | None]] = {
    "missing": lambda content: None,
    "empty": lambda content: b"",
    "torn": lambda content: content[:-5],
    "other JSON": lambda content: b"[]",
    "no text": lambda content: b"\xff" + content,
    "deep": lambda content: b"[" * 200_000,
    "changed": lambda content: content.replace(b'"a"', b'"c"', 1).replace(b"0.8", b"0.9", 1),
}


def damage(path: Path, how: str) -> None:
    content = DAMAGE[how](path.read_bytes())
    if content is None:
        path.unlink()
    else:
        assert content != path.read_bytes()
        path.write_bytes(content)


def batches_in(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder / "journal").glob("*.batches")}


ANOTHER = Fingerprint({"dataset": "another", "tokenizer": "b"})


@pytest.mark.parametrize("complete", [True, False])
@pytest.mark.parametrize("how", DAMAGE)
def test_a_damaged_fingerprint_costs_no_batch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], how: str, complete: bool
) -> None:
    claimed_run(tmp_path, complete)
    damage(tmp_path / "journal" / "fingerprint.json", how)
    batches, before = batches_in(tmp_path), files_below(tmp_path)
    other = opened(tmp_path)
    with pytest.raises(RunError, match=r"fingerprint\.json is (damaged|missing).*--output.*--overwrite"):
        other.claim(ANOTHER)
    other.fail("holds a part of a run", rank=0, host="here")
    other.close()
    assert files_below(tmp_path) == before
    run = opened(tmp_path)
    assert run.claim(FINGERPRINT) is not complete, "a complete run is known again, and another one resumes"
    assert batches_in(tmp_path) == batches
    assert f"fingerprint.json is {'missing' if how == 'missing' else 'damaged'}" in capsys.readouterr().err
    assert Fingerprint.load(tmp_path) is not None
    run.close()


def test_batches_that_were_planned_with_sessions_are_known_without_the_fingerprint(tmp_path: Path) -> None:
    planned = Fingerprint({"dataset": "a", "plan": "plain"})
    run = opened(tmp_path)
    assert run.claim(planned)
    run.close()
    record_plan(tmp_path, 1024, "with sessions")
    journal = Journal(tmp_path, np.array([1]), logits_columns(2), run=planned.with_plan("with sessions").digest())
    journal.append(BatchOutcome(0, np.zeros(1, dtype=logits_columns(2))))
    journal.close()
    damage(tmp_path / "journal" / "fingerprint.json", "torn")
    again = opened(tmp_path)
    assert again.claim(planned)
    assert again.is_resumable
    again.close()


DAMAGED = [*itertools.product([RESULTS, "predictions.parquet"], DAMAGE)]
DAMAGED.remove((RESULTS, "missing"))  # nothing tells that there was a run


@pytest.mark.parametrize(("name", "how"), DAMAGED)
def test_damaged_results_are_made_again_from_the_journal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], how: str, name: str
) -> None:
    claimed_run(tmp_path)
    if (name, how) == ("predictions.parquet", "changed"):
        (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[::-1])
    else:
        damage(tmp_path / name, how)
    batches, before = batches_in(tmp_path), files_below(tmp_path)
    other = opened(tmp_path)
    with pytest.raises(RunError, match="it differs in the dataset"):
        other.claim(ANOTHER)
    other.close()
    assert files_below(tmp_path) == before
    run = opened(tmp_path)
    assert not run.is_complete
    assert run.claim(FINGERPRINT)
    assert f"{tmp_path / name} is {'missing' if how == 'missing' else 'damaged'}" in capsys.readouterr().err
    assert batches_in(tmp_path) == batches
    run.complete(PREDICTIONS, sections())
    assert results_of(tmp_path)["status"] == "complete"
    run.close()


@pytest.mark.parametrize(
    ("name", "how"), [(RESULTS, "torn"), ("predictions.parquet", "torn"), ("predictions.parquet", "missing")]
)
def test_damaged_results_without_a_journal_are_not_replaced_by_accident(tmp_path: Path, name: str, how: str) -> None:
    claimed_run(tmp_path)
    for path in (tmp_path / "journal").glob("*.batches"):
        path.unlink()
    damage(tmp_path / name, how)
    before = files_below(tmp_path)
    failing = opened(tmp_path)
    failing.fail("None of the swarm's peers answered.", rank=0, host="here")
    failing.close()
    assert files_below(tmp_path) == before, "a start that ends before it is known whose the results are"
    run = opened(tmp_path)
    what = "missing" if how == "missing" else "damaged"
    with pytest.raises(RunError, match=rf"{name} is {what}.*--output.*--overwrite"):
        run.claim(FINGERPRINT)
    run.close()
    assert files_below(tmp_path) == before
    again = opened(tmp_path, overwrite=True)
    assert again.claim(FINGERPRINT)
    again.close()


def test_a_copy_of_hard_links_is_a_run_of_its_own(tmp_path: Path) -> None:
    claimed_run(tmp_path / "run", complete=False)
    shutil.copytree(tmp_path / "run", tmp_path / "copy", copy_function=os.link)
    before = files_below(tmp_path / "copy")
    run = opened(tmp_path / "run")
    assert run.is_ours
    assert run.claim(FINGERPRINT)
    run.complete(PREDICTIONS, sections())
    run.close()
    assert files_below(tmp_path / "copy") == before
    copy = opened(tmp_path / "copy")
    assert copy.claim(FINGERPRINT)
    assert copy.is_resumable
    copy.close()


@pytest.mark.parametrize("mode", [0o700, 0o755, 0o775, 0o777])
def test_a_journal_elsewhere_is_used_only_if_nobody_else_can_have_put_it_there(tmp_path: Path, mode: int) -> None:
    run, disk = tmp_path / "run", tmp_path / "disk"
    for folder in (run, disk):
        folder.mkdir()
    (run / "journal").symlink_to(disk)
    run.chmod(mode)
    if mode & 0o022:
        for open_folder in (EvaluationFolder.open, EvaluationFolder.open_on_host):
            with pytest.raises(RunError, match=r"journal is a symbolic link .*other users.*--output.*chmod go-w"):
                open_folder(folder_of(config_for(run, overwrite=True)))
        assert list(disk.iterdir()) == []
    else:
        folder_of(config_for(run)).open_on_host()
        claimed_run(run, complete=False)
        assert len(list(disk.glob("*.batches"))) == 1


def test_names_of_batches_do_not_tell_what_was_made_of_the_answers(tmp_path: Path) -> None:
    claimed_run(tmp_path)
    damage(tmp_path / "journal" / "fingerprint.json", "torn")
    batches = batches_in(tmp_path)
    run = opened(tmp_path)
    assert run.claim(Fingerprint({**FINGERPRINT.values, "definition of the tasks": "new"}), answers=FINGERPRINT)
    assert results_of(tmp_path)["status"] == "running"
    assert batches_in(tmp_path) == batches
    run.close()


def test_a_folder_that_a_live_run_uses_is_refused_and_free_once_that_is_dead(tmp_path: Path) -> None:
    hold = (
        "import sys, time; from pathlib import Path;"
        "from dist_eval.runs.evaluation_folder import EvaluationFolder;"
        "EvaluationFolder(Path(sys.argv[1]), {}).open();"
        "print('open', flush=True); time.sleep(600)"
    )
    holder = subprocess.Popen([sys.executable, "-c", hold, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout and holder.stdout.readline() == "open\n"
        before = (tmp_path / RESULTS).read_bytes()
        with pytest.raises(RunError, match=rf"in use by another run \(process {holder.pid} on .*\)"):
            folder_of(config_for(tmp_path, overwrite=True)).open()
        assert (tmp_path / RESULTS).read_bytes() == before
    finally:
        holder.kill()
        holder.communicate()
    folder_of(config_for(tmp_path)).open()


def test_starting_again_removes_an_old_stop_file_and_a_restart_by_torchrun_does_not(tmp_path: Path) -> None:
    folder_of(config_for(tmp_path)).open()
    tmp_path.joinpath("STOP").touch()
    folder_of(config_for(tmp_path)).open(attempt=1)
    assert (tmp_path / "STOP").exists()
    folder_of(config_for(tmp_path)).open()
    assert not (tmp_path / "STOP").exists()


def test_a_new_folder_is_private(tmp_path: Path) -> None:
    folder_of(config_for(tmp_path / "new")).open()
    assert (tmp_path / "new").stat().st_mode & 0o077 == 0


def test_files_in_a_folder_that_others_may_read_are_private_all_the_same(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        run = tmp_path / "run"
        run.mkdir()
        victim = tmp_path / "victim"
        victim.write_bytes(b"years of work")
        (run / "reliability_diagram.png").symlink_to(victim)
        claimed_run(run, complete=False)
        journal = Journal(tmp_path / "of another host", np.array([1]), logits_columns(2))
        journal.append(BatchOutcome(0, np.zeros(1, dtype=logits_columns(2))))
        journal.exclude("Qm")
        journal.close()
        record_plan(run, 1024, "plan")
        again = folder_of(config_for(run), plots=True)
        again.open()
        again.stop("this rank got SIGTERM", rank=0, host="here")
        again.complete(PREDICTIONS, sections())
        report_on(run, "all")
        again.close()
    finally:
        os.umask(before)
    assert victim.read_bytes() == b"years of work"
    found = {path for folder in (run, tmp_path / "of another host") for path in folder.rglob("*")}
    assert {"results.json", "report.html", "confusion_matrix.png", "STOP", "lock"} <= {path.name for path in found}
    assert [path for path in found | {tmp_path / "of another host"} if path.stat().st_mode & 0o077] == []


@pytest.mark.parametrize("content", ['{"status": "running"}', '{"status": "failed"}', "{", "[]", ""])
def test_a_run_that_is_not_complete_is_replaced(tmp_path: Path, content: str) -> None:
    (tmp_path / RESULTS).write_text(content)
    run = opened(tmp_path)
    assert run.claim(FINGERPRINT)
    assert results_of(tmp_path)["status"] == "running"


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(RunError, match=r"output folder .*file/run cannot be written: a part of the path is a file"):
        folder_of(config_for(tmp_path / "file" / "run")).open()
    with pytest.raises(RunError, match=r"output folder .*file cannot be written"):
        folder_of(config_for(tmp_path / "file")).open()


def test_a_failed_run_says_why_and_where(tmp_path: Path) -> None:
    run = opened(tmp_path)
    started = results_of(tmp_path)["started"]
    run.fail("Row 7 has no text.", rank=3, host="node-5")
    found = results_of(tmp_path)
    assert found["status"] == "failed"
    assert found["error"] == {"message": "Row 7 has no text.", "rank": 3, "host": "node-5", "transient": False}
    assert found["started"] == started
    assert found["finished"] is not None
    assert found["config"]["dataset"] == "test.csv"


def test_a_lack_of_coverage_is_written_with_its_counts(tmp_path: Path) -> None:
    counts = {"expected": 6, "seen": 3, "duplicates": 1, "missing": 3, "failed": 0}
    run = opened(tmp_path)
    run.fail("The predictions do not cover the dataset's 6 rows.", rank=0, host="here", coverage=counts)
    assert results_of(tmp_path)["status"] == "failed"
    assert results_of(tmp_path)["coverage"] == counts


@pytest.mark.parametrize("options", [{}, {"coverage": None}])
def test_another_failure_says_nothing_of_coverage(tmp_path: Path, options: dict[str, Any]) -> None:
    run = opened(tmp_path)
    run.fail("gone", rank=0, host="here", **options)
    assert results_of(tmp_path)["coverage"] is None


def test_another_rank_can_report_the_failure(tmp_path: Path) -> None:
    folder_of(config_for(tmp_path)).open()
    this_run(tmp_path).fail("gone", rank=1, host="b")
    assert results_of(tmp_path)["error"]["rank"] == 1


def test_the_first_failure_is_kept(tmp_path: Path) -> None:
    run = opened(tmp_path)
    run.fail("first", rank=1, host="a")
    run.fail("second", rank=2, host="b")
    assert results_of(tmp_path)["error"]["message"] == "first"


def test_a_failure_does_not_touch_a_complete_run(tmp_path: Path) -> None:
    complete_run(tmp_path)
    before = (tmp_path / RESULTS).read_bytes()
    this_run(tmp_path).fail("holds a complete run", rank=0, host="here")
    assert (tmp_path / RESULTS).read_bytes() == before


def test_a_failure_before_the_folder_exists_makes_none(tmp_path: Path) -> None:
    folder_of(config_for(tmp_path / "run")).fail("too early", rank=0, host="here")
    assert not (tmp_path / "run").exists()


def assert_no_peer_is_named(folder: Path) -> None:
    for secret in (PEER_ID, "10.0.0.5", "31337"):
        assert not any(secret.encode() in content for content in files_below(folder).values())


def test_peer_addresses_are_counted_and_not_written(tmp_path: Path) -> None:
    complete_run(tmp_path)
    assert results_of(tmp_path)["config"]["initial_peers"] == "1 address, not recorded"
    assert_no_peer_is_named(tmp_path)


def test_peer_addresses_are_not_written_when_they_are_the_reason_of_a_failure(tmp_path: Path) -> None:
    run = opened(tmp_path)
    run.fail(f"None of the swarm's peers answered within 60 s: {PEER}. Is it running?", rank=0, host="here")
    assert "None of the swarm's peers answered within 60 s" in results_of(tmp_path)["error"]["message"]
    assert_no_peer_is_named(tmp_path)


def error_after(folder: Path, message: str, **options: Any) -> str:
    """Returns what results.json says of a failure."""
    run = opened(folder, **options)
    run.fail(message, rank=0, host="here")
    assert results_of(folder)["status"] == "failed"
    return results_of(folder)["error"]["message"]


OTHER_ID = "QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N"


def test_of_several_peers_none_is_written(tmp_path: Path) -> None:
    other = f"/dns4/swarm.example.org/tcp/31338/p2p/{OTHER_ID}"
    message = error_after(tmp_path, f"None answered: {PEER}, {other}. Is it running?", initial_peers=[PEER, other])
    assert message.startswith("None answered: ")
    assert message.endswith(". Is it running?")
    assert_no_peer_is_named(tmp_path)
    for secret in (OTHER_ID, "swarm.example.org", "31338"):
        assert not any(secret.encode() in content for content in files_below(tmp_path).values())


@pytest.mark.parametrize("identity", [OTHER_ID, "12D3KooWGzxzKZYveHXtpG6AsrUJBcWxHBFS2HsEoGTxrMLvKXtf"])
@pytest.mark.parametrize("form", ["/p2p/{}", "/ip4/127.0.0.1/tcp/1/p2p/{}", "[/dns/a.b/tcp/1/p2p/{}]"])
def test_the_identity_of_a_peer_that_was_not_named_in_the_options_is_not_written(
    tmp_path: Path, form: str, identity: str
) -> None:
    message = error_after(tmp_path, f"Lost {form.format(identity)}: timed out", initial_peers=[], swarm="embedded")
    assert identity not in message
    assert message.startswith("Lost ")
    assert message.endswith(": timed out")


def test_a_peer_id_without_an_address_is_not_written(tmp_path: Path) -> None:
    hivemind = f"Failed to call handler `TransformerConnectionHandler.rpc_forward` at {PEER_ID}: stream reset"
    message = error_after(tmp_path, f"Batch 4 (test.csv, rows 1, 2) got no answer: {hivemind}")
    assert "rpc_forward" in message
    assert "stream reset" in message
    assert_no_peer_is_named(tmp_path)


@pytest.mark.parametrize(
    "text", ["/a" * 200_000, "/p2p/" * 100_000, "Qm" * 200_000, "/" * 400_000, "x/p2p/Qm-" * 50_000]
)
def test_a_long_message_is_searched_for_peers_in_time(tmp_path: Path, text: str) -> None:
    started = time.monotonic()
    message = error_after(tmp_path, f"{text} {PEER} x{PEER}")
    assert time.monotonic() - started < 5.0
    assert PEER_ID not in message and "31337" not in message


def test_a_run_that_has_not_opened_its_folder_leaves_no_request_to_stop_there(tmp_path: Path) -> None:
    holder = opened(tmp_path)
    assert not folder_of(config_for(tmp_path)).stop("interrupted before the end", rank=0, host="here")
    assert not (tmp_path / "STOP").exists()
    holder.close()
