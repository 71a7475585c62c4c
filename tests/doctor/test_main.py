"""`python -m dist_eval.doctor`, as users start it, on real ranks and a real swarm."""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Launcher
from samples import DEAD_PEER

from dist_eval import demo
from dist_eval.arguments.commandline import parse_args
from dist_eval.doctor.__main__ import main
from dist_eval.doctor.config import DOCTOR
from dist_eval.errors import ConfigError
from dist_eval.petals.server.private import PrivateSwarm

LOCAL = ["--demo", "--backend", "local"]


def report_of(output: Path) -> dict[str, Any]:
    return json.loads((output / "doctor.json").read_text())


def messages(output: Path, level: str) -> list[str]:
    return [finding["message"] for finding in report_of(output)["findings"] if finding["level"] == level]


def test_a_healthy_run_is_found_fine_and_nothing_else_is_left_in_its_folder(
    launcher: Launcher, demo_swarm: PrivateSwarm, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    options = [word for name, value in demo.OPTIONS.items() for word in (f"--{name}", value)]
    options += ["--initial-peers", *demo_swarm.initial_peers, "--output", str(output), "--expect-hosts", "1"]
    done = launcher.run("-m", "dist_eval.doctor", *options, ranks=2)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "The run can start: 0 errors, 0 warnings." in done.stdout
    assert [path.name for path in output.iterdir()] == ["doctor.json"]
    found = " | ".join(messages(output, "fine"))
    assert "2 ranks (all on" in found
    assert "can be written, seen by all 2 ranks" in found
    assert "base model and tuned checkpoint can be read and fit together" in found
    assert "test.csv can be read" in found
    assert "2 servers hold all 4 blocks of base" in found
    assert not any(peer in (output / "doctor.json").read_text() for peer in demo_swarm.initial_peers)
    ranks = report_of(output)["ranks"]
    assert [rank["rank"] for rank in ranks] == [0, 1]
    assert all(finding["level"] == "fine" for rank in ranks for finding in rank["findings"])
    assert not launcher.leftovers()


def test_all_errors_are_reported_at_once(launcher: Launcher, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    options = ["--checkpoint", str(demo.CHECKPOINT), "--model", str(demo.BASE_MODEL), "--dataset", "/nowhere.csv"]
    options += ["--initial-peers", DEAD_PEER, "--output", str(tmp_path / "file" / "out"), "--check-timeout", "4"]
    done = launcher.run("-m", "dist_eval.doctor", *options, "--expect-hosts", "2")
    assert done.returncode == 1
    said = " ".join(done.stdout.split())
    for words in (
        "--expect-hosts says 2 hosts, but this group has 1",
        f"It cannot be used: Not a directory ({tmp_path / 'file' / 'out'})",
        "There is no file /nowhere.csv.",
        "None of the swarm's peers answered within 4 s (nothing listens there)",
        "The run would fail: 4 errors, 0 warnings.",
    ):
        assert words in said
    assert not launcher.leftovers()


@pytest.fixture
def rank_of_two(launcher: Launcher, tmp_path: Path) -> Iterator[Any]:
    """Starts one of two ranks, as torchrun would; nobody starts the other."""

    def start(rank: int, port: int, limit: int) -> Any:
        names = {"RANK": rank, "LOCAL_RANK": 0, "GROUP_RANK": rank, "WORLD_SIZE": 2, "GROUP_WORLD_SIZE": 2}
        store = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "GLOO_SOCKET_IFNAME": "lo"}
        os.environ.update({name: str(value) for name, value in {**names, **store}.items()})
        options = [*LOCAL, "--output", str(tmp_path / "out"), "--check-timeout", str(limit)]
        return launcher.run("-m", "dist_eval.doctor", *options)

    before = dict(os.environ)
    yield start
    os.environ.clear()
    os.environ.update(before)


def test_a_missing_rank_is_named_within_the_time_limit(rank_of_two: Any, tmp_path: Path) -> None:
    from torch.distributed import TCPStore

    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    done = rank_of_two(0, server.port, 3)
    assert done.returncode == 1
    assert any("No report from rank 1 within 3 s" in message for message in messages(tmp_path / "out", "error"))
    assert any(
        "MASTER_ADDR=127.0.0.1, resolves to 127.0.0.1" in message for message in messages(tmp_path / "out", "error")
    )


def test_a_store_that_accepts_and_never_answers_blocks_no_rank(rank_of_two: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        done = rank_of_two(1, server.getsockname()[1], 1)
    assert done.returncode == 1
    assert re.search(r"The ranks could not connect: (no answer within 3 s|The store at MASTER_ADDR)", done.stdout)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "The doctor takes the options of the run"),
        ([*LOCAL, "--check-timeout", "0"], "--check-timeout must be more than 0"),
        ([*LOCAL, "--expect-hosts", "0"], "--expect-hosts must be at least 1"),
    ],
)
def test_wrong_options_are_one_clear_message(
    options: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(options)
    assert ended.value.code == 2
    assert words in capsys.readouterr().err


def test_it_takes_the_options_and_the_file_of_the_run(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(f"dataset: test.csv\ncheckpoint: {demo.CHECKPOINT}\nbackend: local\noutput: {tmp_path}\n")
    config = parse_args(["--config", str(path), "--in-flight", "3", "--expect-hosts", "2"], DOCTOR)
    assert (config.dataset, config.in_flight, config.backend) == ("test.csv", 3, "local")
    with pytest.raises(ConfigError, match="--dataset is missing"):
        parse_args(["--backend", "local"], DOCTOR)
