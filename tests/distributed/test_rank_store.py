"""The ranks' store: values, barriers, failures, separation of several starts, and answers that do not come."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest
import torch.distributed as dist

from dist_eval.distributed.rank_store import LimitedStore, RankStore, Topology
from dist_eval.errors import RunError


def test_without_torchrun_the_process_is_the_only_rank() -> None:
    topology = Topology.from_environment({})
    assert (topology.rank, topology.world_size, topology.hosts, topology.is_leader, topology.is_host_leader) == (
        0,
        1,
        1,
        True,
        True,
    )
    rank_store = RankStore(topology)
    rank_store.publish("key", "value")
    assert rank_store.wait_for("key", 1.0) == "value"
    rank_store.barrier("here", 1.0)
    assert rank_store.failure() is None
    assert [rank_store.claim_failure({"message": text}) for text in ("first", "second")] == [True, False]
    assert rank_store.failure() == {"message": "first"}


TORCHRUN = {
    "RANK": "3",
    "LOCAL_RANK": "1",
    "GROUP_RANK": "1",
    "WORLD_SIZE": "4",
    "GROUP_WORLD_SIZE": "2",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "9",
    "TORCHELASTIC_MAX_RESTARTS": "0",
}


@pytest.mark.parametrize("missing", ["LOCAL_RANK", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT"])
def test_ranks_that_torchrun_did_not_start_are_told_to_use_it(missing: str) -> None:
    assert Topology.from_environment(TORCHRUN).node == 1
    with pytest.raises(RunError, match=f"not {missing}: start the run with torchrun"):
        Topology.from_environment({name: value for name, value in TORCHRUN.items() if name != missing})


def test_restarts_across_hosts_are_refused() -> None:
    with pytest.raises(RunError, match="--max-restarts=0"):
        Topology.from_environment({**TORCHRUN, "TORCHELASTIC_MAX_RESTARTS": "3"})


@pytest.mark.parametrize("name", ["RANK", "WORLD_SIZE", "GROUP_WORLD_SIZE"])
def test_what_is_no_number_is_named(name: str) -> None:
    with pytest.raises(RunError, match=f"{name}=x, not a number"):
        Topology.from_environment({**TORCHRUN, name: "x"})


def test_a_barrier_names_the_missing_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.distributed import TCPStore

    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(server.port))
    rank_store = RankStore(Topology(rank=1, world_size=3, host="here"))
    with pytest.raises(
        RunError, match=r"Rank 1 on here timed out after 0\.5 s waiting for all ranks to be ready; missing: ranks 0, 2"
    ):
        rank_store.barrier("ready", 0.5)


def test_runs_of_one_process_do_not_see_each_others_values() -> None:
    topology = Topology.from_environment({})
    first, second = RankStore(topology, "first"), RankStore(topology, "second")
    first.publish("key", "value")
    with pytest.raises(RunError, match="'key'"):
        second.wait_for("key", 0.2)
    assert os.environ.get("WORLD_SIZE") is None


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[dist.TCPStore]:
    """A store as torchrun keeps it for two ranks."""
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(server.port))
    yield server


def store_of(rank: int) -> RankStore:
    return RankStore(Topology(rank=rank, world_size=2, host=f"host-{rank}"))


def test_a_rank_that_is_started_again_beside_the_others_ends_them_all(store: dist.TCPStore) -> None:
    stayed, replaced = store_of(0), store_of(1)
    stayed.publish("opened", "")
    replaced.publish("counted", "7")
    with pytest.raises(
        RunError, match="Rank 1 was started on host-1 while the other ranks still used an earlier start"
    ):
        store_of(1).wait_for("opened", 5.0)
    with pytest.raises(RunError, match="another rank failed"):
        stayed.wait_for("never", 5.0)
    assert (stayed.failure() or {})["rank"] == 1


def test_two_threads_of_a_rank_may_make_it_known_at_once(store: dist.TCPStore, monkeypatch: pytest.MonkeyPatch) -> None:
    rank_store = store_of(1)

    def check_while_another_thread_connects(self: LimitedStore, keys: list[str]) -> bool:
        monkeypatch.delattr(LimitedStore, "check")
        answer: bool = self.check(keys)
        rank_store.publish("from the other thread", "")
        return answer

    monkeypatch.setattr(LimitedStore, "check", check_while_another_thread_connects, raising=False)
    rank_store.publish("from this thread", "")
    assert store.check(["dist_eval/run/0/from this thread", "dist_eval/run/0/from the other thread"])


def test_a_rank_refuses_the_store_of_another_start(store: dist.TCPStore, monkeypatch: pytest.MonkeyPatch) -> None:
    rank_store = store_of(1)
    rank_store.publish("counted", "7")
    another = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    monkeypatch.setenv("MASTER_PORT", str(another.port))
    with pytest.raises(RunError, match="another start replaced the store of its ranks"):
        rank_store.publish("counted", "8")
    assert not another.check(["dist_eval/run/0/counted"])


def test_many_ranks_ask_less_often_each() -> None:
    few, many = (RankStore(Topology(world_size=count)).poll_seconds for count in (2, 1000))
    assert many / few >= 5
    assert few == store_of(0).poll_seconds


def limited(store: object, limit: float = 60.0) -> LimitedStore:
    return LimitedStore(store, limit, lambda: "nobody is there")


def test_calls_pass_through_with_their_answers_and_errors() -> None:
    store = limited(dist.HashStore())
    store.set("key", "value")
    assert store.get("key") == b"value"
    assert [store.add("sum", amount) for amount in (2, 3, 0)] == [2, 5, 5]
    assert store.multi_get(["key", "sum"]) == [b"value", b"5"]
    assert (store.check(["key"]), store.check(["key", "none"])) == (True, False)
    assert store.delete_key("key")
    assert not store.check(["key"])
    with pytest.raises(TypeError):
        store.add("sum", "no number")
    assert store.add("sum", 1) == 6
    store.close()


def test_no_answer_in_time_is_an_error_for_good() -> None:
    asked, answer = threading.Event(), threading.Event()

    class Deaf:
        def add(self, key: str, amount: int) -> int:
            asked.set()
            answer.wait()
            return 41

        def get(self, key: str) -> bytes:
            return b"an answer"

    store = limited(Deaf(), 0.2)
    with pytest.raises(RunError, match="nobody is there"):
        store.add("key", 1)
    assert asked.is_set()
    answer.set()
    with pytest.raises(RunError, match="nobody is there"):
        store.get("key")
    store.close()
