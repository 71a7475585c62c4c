"""A swarm over three machines, which are network namespaces, by the very commands of launch/swarm/README.md."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import TIMEOUT, results_of, wait_for
from namespaces import Host, Network, why_not

from dist_eval import demo

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "launch" / "swarm" / "README.md").read_text()
COMMANDS = re.findall(r"```bash\nuv run dist-eval (.*)\n```", PAGE)
SERVE, STATUS, RUN = COMMANDS[:3], COMMANDS[3], COMMANDS[4]
ON_THE_PAGE = re.search(r"/ip4/10\.0\.0\.1/tcp/31337/p2p/\w+", PAGE)
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


class Machines:
    """Three machines, of which each has a folder of its own."""

    def __init__(self, network: Network, folder: Path) -> None:
        self.network, self.folder, self.address, self._starts = network, folder, "", 0
        for host in network.hosts:
            (folder / host.name).mkdir()

    def start(self, host: Host, command: str, *further: str) -> tuple[subprocess.Popen[str], Path]:
        """Starts a command of the page; returns it, and the file with all that it says."""
        for number, other in enumerate(self.network.hosts, start=1):
            command = re.sub(rf"\b10\.0\.0\.{number}(?= |$)", other.address, command)
        assert ON_THE_PAGE
        command = command.replace(ON_THE_PAGE[0], self.address).replace("Qwen/Qwen3-8B", str(demo.BASE_MODEL))
        self._starts += 1
        log, folder = self.folder / f"{self._starts}.log", self.folder / host.name
        words = [str(Path(sys.executable).with_name("dist-eval")), *shlex.split(command), *further]
        with log.open("w") as file:
            return host.start(*words, stdout=file, cwd=folder, env=ENVIRONMENT), log

    def serve(self, number: int) -> Path:
        """Starts a server by the page's command, and waits until it has loaded its blocks."""
        process, log = self.start(self.network.hosts[number], SERVE[number])
        assert wait_for(lambda: process.poll() is not None or "loaded blocks" in log.read_text()), log.read_text()
        assert process.poll() is None, log.read_text()
        return log

    def status(self, host: Host) -> str:
        process, log = self.start(host, STATUS)
        process.wait(TIMEOUT)
        return log.read_text()

    def run(self, host: Host, name: str) -> tuple[subprocess.Popen[str], Path]:
        before, _, after = RUN.partition(" --dataset ")
        peers = after[after.index(" --initial-peers") :]
        options = ["--checkpoint", str(demo.CHECKPOINT), "--dataset", str(demo.TEST_DATA), "--token-budget", "100"]
        return self.start(host, before + peers, *options, "--output", str(self.folder / name))


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    if reason := why_not():
        pytest.skip(reason)
    with Network(["one", "two", "three"]) as network:
        machines = Machines(network, tmp_path_factory.mktemp("machines"))
        log = machines.serve(0)
        found = re.search(r"--initial-peers (/ip4/\S+)", log.read_text())
        assert found
        machines.address = found[1]
        for number in (1, 2):
            machines.serve(number)
        assert wait_for(lambda: "missing blocks: none" in machines.status(network.hosts[2]))
        yield machines


def test_three_commands_make_a_swarm_that_any_machine_can_use(machines: Machines) -> None:
    assert len(COMMANDS) == len(SERVE) + 2
    assert machines.address.startswith(f"/ip4/{machines.network.hosts[0].address}/tcp/31337/p2p/")
    process, log = machines.run(machines.network.hosts[2], "undisturbed")
    assert process.wait(TIMEOUT) == 0, log.read_text()
    assert results_of(machines.folder / "undisturbed")["swarm"]["replicas_per_block"] == [1] * 4


@pytest.mark.parametrize("gone", [1, 0])
def test_a_run_waits_for_a_machine_that_is_gone_and_goes_on(machines: Machines, gone: int) -> None:
    lost, caller = machines.network.hosts[gone], machines.network.hosts[2]
    name = f"without-{lost.name}"
    output = machines.folder / name
    process, log = machines.run(caller, name)
    assert wait_for(lambda: process.poll() is not None or any(output.glob("journal/*.batches")))
    machines.network.kill(lost)
    assert wait_for(lambda: process.poll() is not None or "no server to reach for blocks" in log.read_text())
    assert process.poll() is None, log.read_text()
    machines.serve(gone)
    assert process.wait(TIMEOUT) == 0, log.read_text()
    predictions = [machines.folder / run / "predictions.parquet" for run in (name, "undisturbed")]
    assert predictions[0].read_bytes() == predictions[1].read_bytes()
    # the others know it again, and it knows them
    assert wait_for(lambda: "missing blocks: none" in machines.status(lost))


def test_a_closed_port_is_named(machines: Machines) -> None:
    first, _, third = machines.network.hosts
    answers = ["to", third.address, "ipproto", "tcp", "sport", "31337"]
    subprocess.run(["ip", "-n", first.namespace, "rule", "add", *answers, "blackhole"], check=True)
    process, log = machines.start(third, SERVE[2], "--port", "31338")
    try:
        closed = f"waiting for {machines.address} (no answer: the machine is off, or a firewall drops packets"
        assert wait_for(lambda: process.poll() is not None or closed in log.read_text()), log.read_text()
        assert process.poll() is None, log.read_text()
    finally:
        process.terminate()
        process.wait(TIMEOUT)
