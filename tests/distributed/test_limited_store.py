"""A store that does not answer is given up in time, and late answers are discarded."""

from __future__ import annotations

import threading

import pytest
import torch.distributed as dist

from dist_eval.distributed.rank_store import LimitedStore
from dist_eval.errors import RunError


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
