"""The exchange between ranks, with real torchrun processes."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from conftest import Launcher

from dist_eval.collectives import Board, Launch
from dist_eval.errors import RunError

WORKER = str(Path(__file__).parent / "workers" / "collectives_worker.py")


@pytest.fixture(params=[1, 2, 3, 4], ids=lambda ranks: f"{ranks} ranks")
def known(request: pytest.FixtureRequest, launcher: Launcher, tmp_path: Path) -> list[dict]:
    """What each rank knows after the exchange."""
    result = launcher.run(WORKER, str(tmp_path), ranks=request.param)
    assert result.returncode == 0, result.stderr
    return [json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in range(request.param)]


def test_ranks_exchange_everything_exactly(known: list[dict]) -> None:
    world_size = len(known)
    expected = sum(range(world_size))
    for knowledge in known:
        assert knowledge["word"] == "shared before any process group"
        assert knowledge["ranks"] == list(range(world_size))
        assert knowledge["index"] == list(range(expected))
        assert knowledge["samples"] == expected == sum(map(sum, knowledge["confusion"]))
        assert knowledge["confusion"] == knowledge["same_confusion"]
        assert knowledge["loss"] == pytest.approx(knowledge["same_loss"], rel=1e-12)
        assert knowledge["dtypes"] == ["int64", "int64", "float64"]
        assert "nobody-writes-this" in knowledge["missing"]
        assert "another rank failed" in knowledge["gave_up"]
    assert sum(knowledge["claimed"] for knowledge in known) == 1
    if world_size > 1:
        for knowledge in known:
            assert "weights differs between ranks" in knowledge["disagreement"]
            assert f"rank {world_size - 1} has odd" in knowledge["disagreement"]
    else:
        assert "disagreement" not in known[0]


def test_without_torchrun_the_process_is_the_only_rank() -> None:
    launch = Launch.from_environment({})
    assert (launch.rank, launch.world_size, launch.hosts, launch.is_leader, launch.is_host_leader) == (
        0,
        1,
        1,
        True,
        True,
    )
    board = Board(launch)
    board.publish("key", "value")
    assert board.wait_for("key", 1.0) == "value"
    assert [board.claim_failure(), board.claim_failure()] == [True, False]


def test_ranks_without_an_address_of_the_store_are_told_to_use_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(RunError, match="start the run with torchrun"):
        Board(Launch.from_environment({"RANK": "0", "WORLD_SIZE": "2"}))


def test_runs_of_one_process_do_not_see_each_others_values() -> None:
    launch = Launch.from_environment({})
    first, second = Board(launch, "first"), Board(launch, "second")
    first.publish("key", "value")
    with pytest.raises(RunError, match="'key'"):
        second.wait_for("key", 0.2)
    assert os.environ.get("WORLD_SIZE") is None
