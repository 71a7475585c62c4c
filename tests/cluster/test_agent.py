"""torchrun with an exit status that reflects that of its ranks, and a store that listens only where they know it."""

from __future__ import annotations

import signal
import subprocess
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import psutil
import pytest
from conftest import TIMEOUT, Launcher, wait_for
from torch.distributed import run

from dist_eval.cluster import agent
from dist_eval.cluster.agent import _choose_addresses, main, open_store, own_address
from dist_eval.process.addresses import resolve
from dist_eval.process.ports import free_ports

RANK = """
import os, signal, sys, time
from pathlib import Path
Path(sys.argv[2] + os.environ["RANK"]).touch()
if sys.argv[1] == "wait":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
    time.sleep(300)
if os.environ["RANK"] == "1":
    if sys.argv[1].startswith("SIG"):
        os.kill(os.getpid(), getattr(signal, sys.argv[1]))
    sys.exit(int(sys.argv[1]))
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "rank.py"
    path.write_text(RANK)
    return path


def start(launcher: Launcher, script: Path, what: str) -> subprocess.Popen[str]:
    began = str(script.with_name("began-"))
    return launcher.start(
        "-m", "dist_eval.cluster.agent", "--nproc-per-node=2", str(script), what, began, preloaded=True
    )


@pytest.mark.parametrize(("what", "status"), [("0", 0), ("2", 2), ("75", 75), ("SIGKILL", 137)])
def test_the_status_is_that_of_the_rank_that_failed(what: str, status: int, script: Path, launcher: Launcher) -> None:
    agent = start(launcher, script, what)
    agent.communicate(timeout=TIMEOUT)
    assert agent.returncode == status


def test_after_a_signal_it_may_be_started_again(script: Path, launcher: Launcher) -> None:
    agent = start(launcher, script, "wait")
    assert wait_for(lambda: all(script.with_name(f"began-{rank}").exists() for rank in (0, 1)))
    agent.send_signal(signal.SIGTERM)
    _, err = agent.communicate(timeout=TIMEOUT)
    assert agent.returncode == 75
    assert "dist_eval: ended by SIGTERM" in err
    assert not [*launcher.leftovers(), *launcher.temporary.glob("torchelastic_*")]


def test_a_closed_terminal_does_not_end_what_nohup_started(script: Path, launcher: Launcher) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as in nohup, which starts the next process
    agent = launcher.start("-m", "dist_eval.cluster.agent", str(script), "wait", str(script.with_name("began-")))
    assert wait_for(lambda: script.with_name("began-0").exists())
    for process in (psutil.Process(agent.pid), *psutil.Process(agent.pid).children()):
        process.send_signal(signal.SIGHUP)
    agent.send_signal(signal.SIGTERM)
    _, err = agent.communicate(timeout=TIMEOUT)
    assert (agent.returncode, "ended by SIGTERM" in err, "SIGHUP" in err) == (75, True, False)


@pytest.mark.parametrize(("node", "number"), [("0", signal.SIGTERM), ("1", signal.SIGINT)])
def test_it_can_be_stopped_while_it_waits_for_other_hosts(
    node: str, number: signal.Signals, script: Path, launcher: Launcher
) -> None:
    [port] = free_ports("127.0.0.1", 1)
    where = [f"--node-rank={node}", "--master-addr=127.0.0.1", f"--master-port={port}"]
    agent = launcher.start("-m", "dist_eval.cluster.agent", "--nnodes=2", *where, str(script), "0", "began")
    assert wait_for(lambda: [*launcher.temporary.glob("dist_eval-*")])
    agent.send_signal(number)
    _, err = agent.communicate(timeout=TIMEOUT)
    assert (agent.returncode, err) == (75, f"dist_eval: ended by {number.name}\n")
    assert not launcher.leftovers()


def test_a_killed_agent_leaves_no_file(script: Path, launcher: Launcher) -> None:
    agent = start(launcher, script, "wait")
    assert wait_for(lambda: all(script.with_name(f"began-{rank}").exists() for rank in (0, 1)))
    ranks = psutil.Process(agent.pid).children(recursive=True)
    agent.kill()
    agent.communicate(timeout=TIMEOUT)
    for rank in ranks:  # those of a run end with the agent
        with suppress(psutil.NoSuchProcess):
            rank.kill()
    assert not launcher.leftovers()


def test_a_wrong_option_is_one_clear_message(script: Path, launcher: Launcher) -> None:
    agent = launcher.run("-m", "dist_eval.cluster.agent", "--nnodes=x", str(script), "0", "began")
    assert agent.returncode == 2
    assert "dist_eval: an option of torchrun is wrong: " in agent.stderr


def test_a_failed_rendezvous_is_one_clear_message(script: Path, launcher: Launcher) -> None:
    where = ["--nnodes=2", "--node-rank=1", "--master-addr=127.0.0.1", "--master-port=9", "--rdzv-conf=timeout=1"]
    agent = launcher.run("-m", "dist_eval.cluster.agent", *where, str(script), "0", "began")
    assert agent.returncode == 1
    assert "dist_eval: the rendezvous of the hosts failed" in agent.stderr


def test_another_failure_of_torchrun_is_not_called_a_rendezvous(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert main([f"--log-dir={tmp_path / 'file' / 'logs'}", "script"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("dist_eval: torchrun failed: NotADirectoryError: ")
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    "words",
    [
        ["--nproc-per-node=2"],
        ["--nnodes=1:1", "--standalone"],
        ["--rdzv-backend=c10d", "--rdzv-endpoint=elsewhere:1234", "--node-rank=3", "--local-addr=10.0.0.1"],
        ["--master-addr=0.0.0.0", "--master-port=4321"],
    ],
)
def test_on_a_single_host_the_ranks_meet_on_loopback_and_without_pickles(words: list[str]) -> None:
    options = run.parse_args([*words, "script"])
    _choose_addresses(options)
    launch, *_ = run.config_from_args(options)
    address, _, port = launch.rdzv_endpoint.partition(":")
    assert (launch.rdzv_backend, address, launch.rdzv_configs["rank"]) == ("static", "127.0.0.1", 0)
    assert int(port) == 4321 if "--master-port=4321" in words else int(port) > 0
    assert not options.standalone


LOCAL = {"lo": ["127.0.0.1", "::1"], "docker0": ["172.17.0.1"], "eth0": ["10.9.0.2", "fd00::2"]}
NAMES = {
    "head": ["10.9.0.2"],
    "head6": ["fd00::2"],
    "dual-stack": ["fd00::2", "10.9.0.2"],
    "docker": ["172.17.0.1", "10.9.0.2"],
    "one-here": ["10.7.0.1", "10.9.0.2"],
    "debian": ["127.0.1.1"],
    "both": ["127.0.1.1", "10.9.0.2"],
    "behind-a-router": ["10.7.0.1"],
    "unknown": [],
    "localhost": ["::1", "127.0.0.1"],
}


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("head", "10.9.0.2"),
        ("head6", "fd00::2"),
        ("both", "10.9.0.2"),
        ("10.9.0.2", "10.9.0.2"),
        ("127.0.0.1", "127.0.0.1"),
        ("localhost", "::1"),
        ("one-here", "10.9.0.2"),
        ("fd00:0::2", "fd00::2"),
        ("dual-stack", None),
        ("docker", None),
        ("debian", None),
        ("behind-a-router", None),
        ("10.7.0.1", None),
        ("unknown", None),
    ],
)
def test_the_address_is_the_one_that_the_others_know(
    host: str, address: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent, "interfaces", lambda: LOCAL)
    monkeypatch.setattr(agent, "resolve", lambda name: NAMES[name] if name in NAMES else resolve(name))
    assert own_address(host) == address


def test_it_listens_there_alone_and_serves_the_ranks() -> None:
    store = open_store("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    listening = [c.laddr for c in psutil.Process().net_connections("tcp") if c.status == psutil.CONN_LISTEN]
    assert [address.ip for address in listening if address.port == store.port] == ["127.0.0.1"]
    store.set("key", "value")
    client = open_store("127.0.0.1", store.port, is_master=False, timeout=timedelta(seconds=10))
    assert client.get("key") == b"value"
    # torch's c10d takes this for a store that another process serves, and connects to it
    with pytest.raises(RuntimeError, match=rf"127\.0\.0\.1, port {store.port}: Address already in use"):
        open_store("127.0.0.1", store.port, is_master=True)
