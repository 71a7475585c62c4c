"""`python -m dist_eval.swarm`, as a person uses it."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from conftest import TIMEOUT, Launcher, wait_for

from dist_eval import demo
from dist_eval.swarm.__main__ import main
from dist_eval.swarm.private import PrivateSwarm


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_swarm_of_ones_own_starts_shows_itself_and_ends(
    end: signal.Signals, launcher: Launcher, tmp_path: Path
) -> None:
    peers_file = tmp_path / "peers.txt"
    options = ["--model", str(demo.BASE_MODEL), "--blocks", "0:4", "1:3", "--peers-file", str(peers_file)]
    swarm = launcher.start("-m", "dist_eval.swarm", *options)
    assert wait_for(lambda: _content(peers_file) or swarm.poll() is not None)
    assert swarm.poll() is None, swarm.communicate()
    peers = peers_file.read_text().split()
    if end == signal.SIGINT:
        status = launcher.run("-m", "dist_eval.swarm", "status", "--initial-peers", *peers)
        assert status.returncode == 0, status.stderr
        assert "replicas per block: 1 (blocks 0, 3), 2 (blocks 1-2)" in status.stdout
        assert "missing blocks: none" in status.stdout
        assert status.stderr == ""
    swarm.send_signal(end)
    out, err = swarm.communicate(timeout=TIMEOUT)
    assert swarm.returncode == (-9 if end == signal.SIGKILL else 0)
    assert "base: 4 blocks, 2 servers" in out
    assert peers[0] in out
    assert err == ""
    assert not launcher.leftovers()
    assert not peers_file.exists()


def _content(path: Path) -> str:
    return path.read_text() if path.exists() else ""


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--host", "0.0.0.0"], "--host 0.0.0.0 is no address to reach this host at"),
        (["--peers-file", "/nowhere/peers.txt"], "--peers-file /nowhere/peers.txt cannot be written"),
        (["--peers-file", __file__], "exists: it may be that of another swarm"),
        (["--blocks", "0-4"], "'0-4' is no span of blocks"),
        (["--blocks", "0:2", "3:4"], "block 2 is in none of these spans; the model has 4 blocks"),
        (["--blocks", "0:5"], "A server cannot hold blocks 0:5 of a model with 4 blocks"),
        (["--blocks", "0:4", "--part", "1/2"], "--part 1/2 has no server to start: --blocks names only 1"),
        (["--servers", "9"], "9 servers cannot share 4 blocks"),
        (["--servers", "2", "--part", "1/3"], "6 servers cannot share 4 blocks"),
        (["--part", "3/2"], "'3/2' is no part of a swarm"),
        (["--host", "no-such-host.invalid"], "'no-such-host.invalid' is no IP address, and no name"),
        (["--slurm"], "there is no variable SLURM_PROCID"),
        (["--part", "2/2", "--timeout", "0.1"], "The first part of the swarm wrote no"),
    ],
)
def test_options_that_make_no_sense_are_one_clear_message(
    options: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = signal.getsignal(signal.SIGTERM)
    try:
        assert main(["--model", str(demo.BASE_MODEL), "--peers-file", str(tmp_path / "peers.txt"), *options]) == 1
    finally:
        signal.signal(signal.SIGTERM, before)
    said = capsys.readouterr()
    assert words in said.err
    assert len(said.err.strip().splitlines()) == 1
    assert said.out == ""
    assert Path(__file__).exists()


def test_the_status_names_missing_blocks_and_ends_with_status_1(
    demo_swarm: PrivateSwarm, tiny_models: dict[str, Path], launcher: Launcher
) -> None:
    words = ["--initial-peers", *demo_swarm.initial_peers, "--model", str(tiny_models["llama"])]
    status = launcher.run("-m", "dist_eval.swarm", "status", *words)
    assert status.returncode == 1
    assert "llama: 4 blocks, 0 servers" in status.stdout
    assert "missing blocks: 0-3" in status.stdout


def test_peers_that_do_not_answer_are_one_clear_message(launcher: Launcher) -> None:
    peer = "/ip4/127.0.0.1/tcp/9/p2p/QmZmNRxpVSgwCUQ1ncBqnmjUUzotKCQj6JPvWEd2YpBd57"
    status = launcher.run("-m", "dist_eval.swarm", "status", "--initial-peers", peer, "--timeout", "1")
    assert status.returncode == 1
    assert peer in status.stderr
    assert len(status.stderr.strip().splitlines()) == 1


def test_a_model_that_does_not_exist_is_one_clear_message(launcher: Launcher, tmp_path: Path) -> None:
    swarm = launcher.run("-m", "dist_eval.swarm", "--model", str(tmp_path / "nothing"))
    assert swarm.returncode == 1
    assert str(tmp_path / "nothing") in swarm.stderr
    assert len(swarm.stderr.strip().splitlines()) == 1
    assert not launcher.leftovers()
