"""`python -m dist_eval.petals`, as a person uses it."""

from __future__ import annotations

import json
import signal
import socket
import threading
from pathlib import Path

import pytest
from conftest import TIMEOUT, Launcher, wait_for, with_options
from samples import DEAD_PEER

from dist_eval import demo
from dist_eval.errors import ConfigError
from dist_eval.petals.__main__ import _claim, _wait_for_peers, main
from dist_eval.petals.server import private
from dist_eval.petals.server.private import PrivateSwarm
from dist_eval.process.programs import FAILED, WRONG_OPTIONS

IN_BACKGROUND = """
import runpy, signal
signal.signal(signal.SIGINT, signal.SIG_IGN)  # as a shell starts jobs in the background of a script
runpy.run_module("dist_eval.petals", run_name="__main__", alter_sys=True)
"""


@pytest.mark.parametrize(
    "end", [signal.SIGINT, *(pytest.param(end, marks=pytest.mark.slow) for end in (signal.SIGTERM, signal.SIGKILL))]
)
def test_a_private_swarm_starts_shows_its_status_and_ends(
    end: signal.Signals, launcher: Launcher, tmp_path: Path
) -> None:
    peers_file = tmp_path / "peers.txt"
    blocks = ["0:4", "1:3"]
    options = ["--model", str(demo.BASE_MODEL), "--blocks", *blocks, "--peers-file", str(peers_file)]
    swarm = launcher.start("-c", IN_BACKGROUND, *options, preloaded=end != signal.SIGKILL)
    assert wait_for(lambda: _content(peers_file) or swarm.poll() is not None)
    assert swarm.poll() is None, swarm.communicate()
    peers = peers_file.read_text().split()
    if end == signal.SIGINT:
        status = launcher.run("-m", "dist_eval.petals", "status", "--initial-peers", *peers)
        assert status.returncode == 0, status.stderr
        assert "replicas per block: 1 (blocks 0, 3), 2 (blocks 1-2)" in status.stdout
        assert "missing blocks: none" in status.stdout
        assert status.stderr == ""
        watch = launcher.start(
            *("-m", "dist_eval.petals", "status", "--json", "--watch", "0.1", "--peers-file", str(peers_file)),
            preloaded=True,
        )
        assert watch.stdout
        first, second = (json.loads(watch.stdout.readline()) for _ in range(2))
        watch.send_signal(signal.SIGINT)
        assert (watch.wait(TIMEOUT), watch.communicate()[1]) == (0, "")
        assert first == second and first["not_looked_up"] == []
        assert [(model["dht_prefix"], model["missing_blocks"]) for model in first["models"]] == [("base", [])]
        assert [(server["start"], server["end"]) for server in first["models"][0]["servers"]] == [(0, 4), (1, 3)]
        assert all(server["free_cache"] > 0 and server["reachable"] for server in first["models"][0]["servers"])
    # more for moments: hivemind starts others to see whether an identity is taken
    assert wait_for(lambda: sum("p2pd" in command for command in launcher.processes().values()) == len(blocks))
    swarm.send_signal(end)
    out, err = swarm.communicate(timeout=TIMEOUT)
    assert swarm.returncode == (-9 if end == signal.SIGKILL else 0)
    assert f"base: 4 blocks, {len(blocks)} server" in out
    assert peers[0] in out
    assert all(f"loaded blocks {span} in float32: " in out for span in blocks)
    assert err == ""
    assert not launcher.leftovers()
    assert not peers_file.exists()


def _content(path: Path) -> str:
    return path.read_text() if path.exists() else ""


ELSEWHERE = ["--host", "203.0.113.7"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--host", "0.0.0.0"], "--host 0.0.0.0 is not an address at which this host can be reached"),
        (["--peers-file", "/nowhere/peers.txt"], "--peers-file /nowhere/peers.txt cannot be written"),
        (["--peers-file", __file__], "exists: another swarm may be using it"),
        (["--blocks", "0-4"], "'0-4' is not a span of blocks"),
        (["--blocks", "0:2", "3:4"], "block 2 is in none of these spans; the model has 4 blocks"),
        (["--blocks", "0:5"], "A server cannot hold blocks 0:5 of a model with 4 blocks"),
        (["--blocks", "0:4", "--part", "1/2", *ELSEWHERE], "--part 1/2 has no server to start: --blocks names only 1"),
        (["--servers", "2", "--part", "1/3", *ELSEWHERE], "6 servers cannot share 4 blocks"),
        (["--part", "3/2"], "'3/2' is not a part of a swarm"),
        (["--host", "no-such-host.invalid"], "'no-such-host.invalid' is not an IP address, and does not resolve"),
        (["--slurm"], "the environment variable SLURM_PROCID is missing"),
        (["--part", "2/2", "--timeout", "0.1", *ELSEWHERE], "The first part of the swarm did not write"),
        (["--part", "2/3"], "--host 127.0.0.1 is a loopback address, at which every host reaches itself"),
        (["--part", "1/2", "--host", "localhost"], "--host localhost resolves here to 127.0.0.1, a loopback address"),
    ],
)
def test_invalid_options_are_one_clear_message(
    options: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = ["--model", str(demo.BASE_MODEL), "--peers-file", str(tmp_path / "peers.txt")]
    assert main(with_options(own, options)) in (FAILED, WRONG_OPTIONS)
    said = capsys.readouterr()
    assert words in said.err
    assert len(said.err.strip().splitlines()) == 1
    assert said.out == ""
    assert Path(__file__).exists()


def test_the_status_names_missing_blocks_and_ends_with_status_1(
    demo_swarm: PrivateSwarm, tiny_models: dict[str, Path], launcher: Launcher
) -> None:
    words = ["--initial-peers", *demo_swarm.initial_peers, "--model", str(tiny_models["llama"])]
    status = launcher.run("-m", "dist_eval.petals", "status", *words)
    assert status.returncode == 1
    assert "llama: 4 blocks, 0 servers" in status.stdout
    assert "missing blocks: 0-3" in status.stdout


def test_peers_that_do_not_answer_are_one_clear_message(launcher: Launcher) -> None:
    status = launcher.run("-m", "dist_eval.petals", "status", "--initial-peers", DEAD_PEER, "--timeout", "1")
    assert status.returncode == 1
    assert DEAD_PEER in status.stderr
    assert len(status.stderr.strip().splitlines()) == 1


def test_a_model_that_does_not_exist_is_one_clear_message(launcher: Launcher, tmp_path: Path) -> None:
    swarm = launcher.run("-m", "dist_eval.petals", "--model", str(tmp_path / "nothing"))
    assert swarm.returncode == 1
    assert str(tmp_path / "nothing") in swarm.stderr
    assert len(swarm.stderr.strip().splitlines()) == 1
    assert not launcher.leftovers()


OUTWARD = {"lo": ["127.0.0.1", "::1"], "eth0": ["10.9.0.2", "fd00::2"]}


@pytest.mark.parametrize(
    ("local", "node_address", "used"),
    [
        (OUTWARD, "203.0.113.7", "203.0.113.7"),
        (OUTWARD, "127.0.0.2", "127.0.0.2"),  # an address from Slurm is kept: all nodes may be on one host
        (OUTWARD, "localhost", "10.9.0.2"),
        ({**OUTWARD, "docker0": ["172.17.0.1"]}, "localhost", None),
        ({"lo": ["127.0.0.1"]}, "localhost", None),
    ],
)
def test_under_slurm_a_part_listens_where_slurm_reaches_its_node(
    local: dict[str, list[str]],
    node_address: str,
    used: str | None,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    scontrol = tmp_path / "scontrol"
    scontrol.write_text(f"#!/bin/sh\necho NodeName=n1 NodeAddr={node_address} NodeHostName=n1\n")
    scontrol.chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    for name, value in {"SLURM_PROCID": "0", "SLURM_NTASKS": "2", "SLURMD_NODENAME": "n1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("dist_eval.petals.__main__.interfaces", lambda: local)
    started: list[str] = []

    def start_nothing(*_: object, host: str, **__: object) -> None:
        started.append(host)
        raise ConfigError("as far as this test goes")

    monkeypatch.setattr(private, "PrivateSwarm", start_nothing)
    options = ["--slurm", "--servers", "1", "--peers-file", str(tmp_path / "peers.txt")]
    assert main(["--model", str(demo.BASE_MODEL), *options]) == 2
    assert started == ([used] if used else [])
    said = capsys.readouterr().err
    if not used:
        assert "The NodeAddr from Slurm localhost resolves here to 127.0.0.1, a loopback address" in said
        assert all(address in said for address in ("10.9.0.2", "172.17.0.1")) or "this host has none" in said


def test_addresses_left_by_a_killed_swarm_are_not_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    peer = "/ip4/127.0.0.1/tcp/{}/p2p/QmZmNRxpVSgwCUQ1ncBqnmjUUzotKCQj6JPvWEd2YpBd57"
    peers_file, first = tmp_path / "peers.txt", tmp_path / "peers.txt.first"
    first.write_text(peer.format(9))
    part = ["--model", str(demo.BASE_MODEL), "--servers", "1", "--part", "2/2", *ELSEWHERE]
    assert main([*part, "--peers-file", str(peers_file), "--timeout", "0.1"]) == 1
    assert f"Nothing listens at the addresses in {first} ({peer.format(9)})" in capsys.readouterr().err
    with socket.create_server(("127.0.0.1", 0)) as server:
        peers = [peer.format(9), peer.format(server.getsockname()[1])]
        timer = threading.Timer(0.5, lambda: first.write_text("\n".join(peers)))
        timer.start()
        assert _wait_for_peers(first, TIMEOUT) == peers
    _claim(peers_file, first)
    assert peers_file.exists()
    assert not first.exists()
    with pytest.raises(ConfigError, match="a killed one left it behind"):
        _claim(peers_file, first)
