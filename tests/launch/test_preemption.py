"""What a scheduler does to pods, done to their processes: two agents with one rank each, as job.yaml starts them."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import pytest
from conftest import TIMEOUT, Launcher, journal_size, wait_for
from samples import digits

from dist_eval import demo
from dist_eval.distributed.stop import STOP_FILE
from dist_eval.process.ports import free_ports
from dist_eval.process.programs import STOPPED, STOPPED_BY_A_PERSON

COPIES = 6


@pytest.mark.slow
def test_the_pods_of_a_job_stop_together_and_tell_a_preemption_from_a_person_and_the_next_ones_go_on(
    launcher: Launcher, tmp_path: Path
) -> None:
    data = digits(tmp_path / "data.csv", times=COPIES)
    what = ["--backend", "local", "--model", str(demo.BASE_MODEL), "--checkpoint", str(demo.CHECKPOINT)]

    def evaluate(output: str) -> list[str]:
        return ["-m", "dist_eval", *what, "--dataset", str(data), "--output", str(tmp_path / output)]

    def start_pods() -> list[subprocess.Popen[str]]:
        (port,) = free_ports("127.0.0.1", 1)
        where = ["--nnodes=2", "--master-addr=127.0.0.1", f"--master-port={port}", "--max-restarts=0"]
        return [
            launcher.start("-m", "dist_eval.cluster.agent", *where, f"--node-rank={pod}", *evaluate("preempted"))
            for pod in (0, 1)
        ]

    def end_of(pods: list[subprocess.Popen[str]]) -> list[int]:
        for pod in pods:
            pod.communicate(timeout=TIMEOUT)
        return [pod.returncode for pod in pods]

    def results(output: str) -> dict:
        return json.loads((tmp_path / output / "results.json").read_text())

    def pods_under_way() -> list[subprocess.Popen[str]]:
        before, pods = journal_size(tmp_path / "preempted"), start_pods()
        assert wait_for(lambda: journal_size(tmp_path / "preempted") > before or pods[0].poll() is not None)
        return pods

    pods = pods_under_way()
    pods[1].send_signal(signal.SIGTERM)
    assert end_of(pods) == [STOPPED, STOPPED]
    assert results("preempted")["status"] == "incomplete"
    done = results("preempted")["coverage"]["seen"]
    assert 0 < done < COPIES * 596

    pods = pods_under_way()
    (tmp_path / "preempted" / STOP_FILE).touch()
    assert end_of(pods) == [STOPPED_BY_A_PERSON, STOPPED_BY_A_PERSON]
    assert results("preempted")["coverage"]["seen"] > done

    assert end_of(start_pods()) == [0, 0]
    resumed = results("preempted")
    assert resumed["status"] == "complete"
    assert sum(rank["resumed"] for rank in resumed["ranks"]) >= done
    assert launcher.run(*evaluate("undisturbed")).returncode == 0
    both = [tmp_path / output / "predictions.parquet" for output in ("preempted", "undisturbed")]
    assert both[0].read_bytes() == both[1].read_bytes()
    assert resumed["metrics"] == results("undisturbed")["metrics"]
    assert not launcher.leftovers()
