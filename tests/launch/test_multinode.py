"""Several hosts, which are network namespaces: the very script of launch/multinode, the doctor, and a swarm over both.

Each host has a rank and a server that holds half of the blocks.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import TIMEOUT, journal_size, wait_for
from namespaces import INTERFACE, Host, Network, why_not
from samples import digits

from dist_eval import demo

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PATIENCE = 5
SPANS = ("0:2", "2:4")
ROWS_REPEATED = 6  # so that a run takes longer than it takes to stop it
EXAMPLES = 596 * ROWS_REPEATED
ENVIRONMENT = {**os.environ, "PYTHON": sys.executable, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    if reason := why_not():
        pytest.skip(reason)
    with Network(["alpha", "beta"]) as network:
        yield network


@pytest.fixture(scope="module")
def peers_file(network: Network, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the peers stand of a swarm with a server on each host, each started as its part."""
    folder = tmp_path_factory.mktemp("swarm")
    file, logs, parts = folder / "peers.txt", [], []
    for number, host in enumerate(network.hosts, start=1):
        options = ["--model", str(demo.BASE_MODEL), "--blocks", *SPANS, "--part", f"{number}/{len(network.hosts)}"]
        options += ["--host", host.address, "--peers-file", str(file)]
        logs.append((folder / f"{host.name}.log").open("w"))
        parts.append(host.start(sys.executable, "-m", "dist_eval.petals", *options, stdout=logs[-1], env=ENVIRONMENT))
    assert wait_for(lambda: any(part.poll() is not None for part in parts) or _content(file))
    assert all(part.poll() is None for part in parts), [Path(log.name).read_text() for log in logs]
    return file


def _content(path: Path) -> str:
    return path.read_text() if path.exists() else ""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return digits(tmp_path_factory.mktemp("data") / "digits.csv", times=ROWS_REPEATED)


class Run:
    """A run on all hosts, by the script of launch/multinode with its three lines changed."""

    def __init__(self, network: Network, folder: Path, peers_file: Path, data: Path) -> None:
        folder.mkdir(exist_ok=True)
        self.network, self.output, self._folder, self._starts = network, folder / "out", folder, 0
        options = ["--model", str(demo.BASE_MODEL), "--checkpoint", str(demo.CHECKPOINT), "--dataset", str(data)]
        options += ["--peers-file", str(peers_file), "--token-budget", "300", "--output", str(self.output)]
        options += ["--request-timeout", "5", "--stop-grace", "2"]
        self.script = folder / "run.sh"
        text = (ROOT / "launch" / "multinode" / "run.sh").read_text()
        addresses = [host.address for host in network.hosts]
        words = " ".join([*options, "--collective-timeout", "${PATIENCE:-60}"])
        for name, value in (("HOSTS", f"({' '.join(addresses)})"), ("RANKS", "1"), ("OPTIONS", f"({words})")):
            text, count = re.subn(rf"(?m)^{name}=.*$", f"{name}={value}", text)
            assert count == 1
        self.script.write_text(text)
        self.script.chmod(0o755)
        self.options = options

    def start(self, *words: str, **variables: str) -> dict[Host, subprocess.Popen[str]]:
        """Starts the script on every host."""
        self._starts += 1
        environment = {**ENVIRONMENT, "LOGS": str(self.logs), **variables}
        return {
            host: host.start(str(self.script), *words, stdout=subprocess.DEVNULL, env=environment)
            for host in self.network.hosts
        }

    def finish(self, *words: str) -> list[int]:
        """Runs the script on every host to its end; returns the exit statuses."""
        return [process.wait(TIMEOUT) for process in self.start(*words).values()]

    @property
    def logs(self) -> Path:
        return self._folder / f"logs-{self._starts}"

    def said(self, node: int, module: str = "dist_eval") -> str:
        """Returns what the last start printed on a host, on one line."""
        return " ".join((self.logs / f"{module}-host{node}.log").read_text().split())

    def start_until_in_the_middle(self, **variables: str) -> dict[Host, subprocess.Popen[str]]:
        before = journal_size(self.output)
        processes = self.start(**variables)
        assert wait_for(
            lambda: journal_size(self.output) > before + 3000 or any(p.poll() is not None for p in processes.values())
        )
        assert all(p.poll() is None for p in processes.values()), self.said(0) + self.said(1)
        return processes

    @property
    def results(self) -> dict[str, Any]:
        return json.loads((self.output / "results.json").read_text())

    def leftovers(self, host: Host) -> list[str]:
        commands = [Path(f"/proc/{number}/cmdline") for number in self.network.processes(host)]
        texts = [path.read_bytes().replace(b"\0", b" ").decode() for path in commands if path.exists()]
        return [text for text in texts if "dist_eval --" in text or str(self.script) in text]


@pytest.fixture(scope="module")
def undisturbed(network: Network, peers_file: Path, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """With names as Debian gives them, on both hosts."""
    network.name_hosts(awkward=network.hosts)
    run = Run(network, tmp_path_factory.mktemp("undisturbed"), peers_file, data)
    assert run.finish() == [0, 0], run.said(0) + run.said(1)
    network.name_hosts()
    return run


def test_a_run_spans_hosts_with_awkward_names(undisturbed: Run) -> None:
    results = undisturbed.results
    assert results["status"] == "complete"
    assert results["coverage"] == {"expected": EXAMPLES, "seen": EXAMPLES, "duplicates": 0, "missing": 0, "failed": 0}
    assert [(rank["host"], rank["samples"] > 0) for rank in results["ranks"]] == [("alpha", True), ("beta", True)]
    assert len(results["swarm"]["servers"]) == len(SPANS)
    assert all(len(rank["traffic"]["servers"]) == len(SPANS) for rank in results["ranks"])
    assert not any(map(undisturbed.leftovers, undisturbed.network.hosts))


def test_the_doctor_names_awkward_hosts_and_finds_the_script_fine(
    network: Network, peers_file: Path, data: Path, tmp_path: Path
) -> None:
    network.name_hosts(awkward=network.hosts)
    run = Run(network, tmp_path, peers_file, data)

    def by_hand(module: str, head: str) -> tuple[str, list[int]]:
        where = ["--nnodes=2", "--nproc-per-node=1", "--max-restarts=0", f"--master-addr={head}", "--master-port=29501"]
        words = ["-m", "dist_eval.doctor", *run.options, "--check-timeout", "8", "--expect-hosts", "2"]
        started = [
            host.start(sys.executable, "-m", module, *where, f"--node-rank={node}", *words, env=ENVIRONMENT)
            for node, host in enumerate(network.hosts)
        ]
        said = " ".join(" ".join(process.communicate(timeout=TIMEOUT)[0] for process in started).split())
        return said, [process.returncode for process in started]

    said, statuses = by_hand("torch.distributed.run", network.hosts[0].address)
    assert statuses == [1, 1], said
    for host in network.hosts:
        assert f"on {host.name}: The host's own name resolves to 127.0.1.1" in said
        cure = f"There, export GLOO_SOCKET_IFNAME={INTERFACE}, and start torchrun with --local-addr="
        assert cure + host.address in said
    assert "The ranks could not connect: " in said
    assert "fine swarm 2 servers hold all 4 blocks of base" in said
    said, statuses = by_hand("dist_eval.cluster.agent", network.hosts[0].name)  # which means alpha itself, on alpha
    assert statuses == [0, 0], said
    assert run.finish("dist_eval.doctor") == [0, 0], run.said(0, "dist_eval.doctor")
    found = run.said(0, "dist_eval.doctor")
    assert "2 ranks (1 on alpha, 1 on beta) connected" in found
    assert "seen by all 2 ranks" in found
    network.name_hosts()


def test_a_host_that_is_cut_off_is_named_by_the_others_and_the_run_goes_on(
    network: Network, peers_file: Path, data: Path, undisturbed: Run, tmp_path: Path
) -> None:
    alpha, beta = network.hosts
    run = Run(network, tmp_path, peers_file, data)
    processes = run.start_until_in_the_middle(PATIENCE=str(PATIENCE))
    network.cut_off(beta)
    try:
        assert [process.wait(TIMEOUT) for process in processes.values()] == [1, 1]
    finally:
        network.reconnect(beta)
    silence = (
        rf"Rank 0 has (received no heartbeat|seen no progress) for {PATIENCE} s from rank 1 on beta "
        r"\(\d+ examples done, [^)]*\)\. "
    )
    assert re.search(silence + "To wait longer, raise --collective-timeout", run.said(0)), run.said(0)
    leader = rf"({alpha.name}|{alpha.address})"  # as it calls itself, once it has said so
    assert re.search(rf"Rank 1 on beta has been cut off from rank 0 on {leader} for {PATIENCE} s: ", run.said(1)), (
        run.said(1)
    )
    assert run.results["status"] == "failed"
    assert not any(map(run.leftovers, network.hosts))

    processes = run.start_until_in_the_middle()
    processes[beta].send_signal(signal.SIGTERM)  # to the script, on one of the hosts
    assert [process.wait(TIMEOUT) for process in processes.values()] == [3, 3]
    assert run.results["status"] == "incomplete", run.said(0)
    assert f"there is a file {run.output / 'STOP'}" in run.results["error"]["message"]

    assert run.finish() == [0, 0], run.said(0) + run.said(1)
    assert sum(rank["resumed"] for rank in run.results["ranks"]) > 0
    assert run.results["coverage"] == undisturbed.results["coverage"]
    assert json.dumps(run.results["metrics"]) == json.dumps(undisturbed.results["metrics"])
    name = "predictions.parquet"
    assert (run.output / name).read_bytes() == (undisturbed.output / name).read_bytes()
    assert not any(map(run.leftovers, network.hosts))


def test_a_host_that_is_not_in_the_list_says_so(network: Network, peers_file: Path, data: Path, tmp_path: Path) -> None:
    alpha, beta = network.hosts
    run = Run(network, tmp_path, peers_file, data)
    run.script.write_text(run.script.read_text().replace(beta.address, "10.93.0.77"))
    started = beta.start(str(run.script), env={**ENVIRONMENT, "LOGS": str(run.logs)})
    said, _ = started.communicate(timeout=TIMEOUT)
    assert started.returncode == 1
    assert said == (
        f"python -m dist_eval.cluster.hosts: This host is not in the list {alpha.address}, 10.93.0.77: it has "
        f"{beta.address} ({INTERFACE}).\n"
    )
