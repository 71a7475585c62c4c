"""Collectives between ranks, with real torchrun processes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import psutil
import pytest
from conftest import Launcher

from dist_eval.distributed import collectives
from dist_eval.distributed.collectives import process_group, require_known_interfaces
from dist_eval.distributed.rank_store import RankStore, Topology
from dist_eval.errors import RunError

WORKER = str(Path(__file__).parents[1] / "workers" / "collectives_worker.py")


@pytest.fixture(params=[None, 3], ids=["one process", "3 ranks"])
def known(request: pytest.FixtureRequest, launcher: Launcher, tmp_path: Path) -> list[dict]:
    """What each rank knows after the collectives."""
    result = launcher.run(WORKER, str(tmp_path), ranks=request.param)
    assert result.returncode == 0, result.stderr
    return [json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in range(request.param or 1)]


def test_ranks_exchange_everything_exactly(known: list[dict]) -> None:
    world_size = len(known)
    expected = sum(range(world_size))
    leader = known[0]
    assert leader["gathered"]["index"] == list(range(expected))
    assert leader["gathered"] == leader["gathered_in_rounds"] == leader["expected"] == leader["gathered_at_home"]
    for knowledge in known[1:]:
        assert set(map(len, knowledge["gathered"].values())) == {0}  # only the leader keeps what it receives
        assert knowledge["gathered"] == knowledge["gathered_in_rounds"]
    for knowledge in known:
        assert knowledge["rounds_at_home"] == 1, "what the leader has does not travel, only how much each rank has"
        assert knowledge["least"] == [5, 6 - world_size]
        assert knowledge["word"] == "shared before any process group"
        assert knowledge["ranks"] == list(range(world_size))
        assert knowledge["broadcast"] == "AaAbAc"
        assert knowledge["samples"] == expected == sum(map(sum, knowledge["confusion"]))
        assert knowledge["confusion"] == leader["same_confusion"]
        counts, shared = knowledge["many_classes"], world_size - 1
        assert counts == {f"{row}, 1999": (2**60 + 1) * (1 if row else shared) for row in range(shared and world_size)}
        assert knowledge["loss"] == pytest.approx(leader["same_loss"], rel=1e-12)
        assert knowledge["dtypes"] == ["int64", "int64", "float64"]
        assert "nobody-writes-this" in knowledge["missing"]
        assert "another rank failed" in knowledge["gave_up"]
    assert sum(knowledge["claimed"] for knowledge in known) == 1
    first = next(rank for rank, knowledge in enumerate(known) if knowledge["claimed"])
    assert {knowledge["reason"] for knowledge in known} == {f"rank {first} failed"}
    if world_size > 1:
        for knowledge in known:
            assert "weights differs between ranks" in knowledge["disagreement"]
            assert f"rank {world_size - 1} has odd" in knowledge["disagreement"]
    else:
        assert "disagreement" not in known[0]


def test_a_rank_that_hangs_in_a_collective_is_named(launcher: Launcher, tmp_path: Path) -> None:
    said = tmp_path / "said"
    result = launcher.run(str(Path(WORKER).with_name("silent_worker.py")), str(said), ranks=2)
    assert result.returncode == 0, result.stderr
    assert "lost contact with the other ranks" in said.read_text()
    assert re.search(r"no (heartbeat|progress) for [\d.]+ s from rank 1 on ", said.read_text())
    assert "(7 examples done, the last ones in batch 2)" in said.read_text()


@pytest.mark.parametrize(("ranks", "labels"), [(1, 2), (4, 2), (64, 2), (1000, 2), (4, 100_000), (1000, 1000)])
def test_a_round_is_worth_its_time_and_fits_into_memory(ranks: int, labels: int) -> None:
    in_a_row = 24 + 8 * labels
    rows = collectives._rows_of_a_rank(ranks, in_a_row)
    assert rows >= 1
    assert rows == 1 or ranks * rows * in_a_row <= max(
        collectives._BYTES_IN_A_ROUND, ranks * collectives._BYTES_OF_A_RANK
    )
    assert (rows + 1) * in_a_row > collectives._BYTES_OF_A_RANK


@pytest.mark.parametrize(("chosen", "unknown"), [("^lo,docker", "^lo, docker"), ("lo,=lo", "=lo"), ("lo,x9", "x9")])
def test_an_interface_that_does_not_exist_is_named_at_once(
    chosen: str, unknown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", chosen)
    with pytest.raises(RunError, match=re.escape(f"GLOO_SOCKET_IFNAME names {unknown}, but ")):
        require_known_interfaces()
    for fine in ("", "lo"):
        monkeypatch.setenv("GLOO_SOCKET_IFNAME", fine)
        require_known_interfaces()


def test_the_ranks_of_one_host_listen_on_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    process, topology = psutil.Process(), Topology()
    before = process.net_connections("tcp")
    with process_group(topology, RankStore(topology), 60.0):
        opened = [c.laddr.ip for c in process.net_connections("tcp") if c not in before]
    assert set(opened) == {"127.0.0.1"}
