"""The list of servers that a thread keeps up to date."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import pytest
from conftest import TIMEOUT, wait_for

from dist_eval.petals.client.directory import ServerDirectory
from dist_eval.petals.client.routes import Span

if TYPE_CHECKING:
    from dist_eval.petals.server.private import PrivateSwarm


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_the_thread_ends_with_the_node(demo_swarm: PrivateSwarm, swarm_client: Any) -> None:
    from dist_eval.petals.client.client import join_swarm, leave_swarm

    swarm_client.join(demo_swarm)  # waits for its servers
    dht = join_swarm(demo_swarm.initial_peers, TIMEOUT)
    directory = ServerDirectory(dht, demo_swarm.dht_prefix, demo_swarm.num_blocks)
    directory.start(TIMEOUT)
    assert {(span.start, span.end) for span in directory.spans()} == {*demo_swarm.spans}
    leave_swarm(dht, directory.p2p)
    directory.update()
    directory._thread.join(TIMEOUT)
    assert not directory._thread.is_alive()


def test_the_thread_ends_with_the_list(demo_swarm: PrivateSwarm, swarm_client: Any) -> None:
    directory = ServerDirectory(swarm_client.join(demo_swarm), demo_swarm.dht_prefix, demo_swarm.num_blocks)
    directory.start(TIMEOUT)
    thread, outdated, reference = directory._thread, directory._outdated, weakref.ref(directory)
    del directory  # as with a model that a program has evaluated and drops
    assert wait_for(lambda: reference() is None)
    outdated.set()
    thread.join(TIMEOUT)
    assert not thread.is_alive()


def test_the_thread_survives_an_error_of_the_node(
    demo_swarm: PrivateSwarm, swarm_client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    dht = swarm_client.join(demo_swarm)
    directory = ServerDirectory(dht, demo_swarm.dht_prefix, demo_swarm.num_blocks)
    directory.start(TIMEOUT)
    before, look_up, failures = directory.spans(), dht.run_coroutine, list[str]()

    def fail_once(*args: Any, **kwargs: Any) -> Any:
        if not failures:
            failures.append("can't start new thread")
            raise RuntimeError(*failures)
        return look_up(*args, **kwargs)

    monkeypatch.setattr(dht, "run_coroutine", fail_once)
    directory.update()
    assert wait_for(lambda: failures)
    assert directory.spans() is before
    directory.update()
    assert wait_for(lambda: directory.spans() is not before)
    directory.close()


@pytest.mark.parametrize("as_text", [True, False])
def test_only_servers_that_the_user_wants_count(as_text: bool, demo_swarm: PrivateSwarm, swarm_client: Any) -> None:
    dht = swarm_client.join(demo_swarm)

    def spans(**lists: Any) -> list[Span]:
        directory = ServerDirectory(dht, demo_swarm.dht_prefix, demo_swarm.num_blocks, **lists)
        return sorted(directory._read(TIMEOUT), key=lambda span: span.start)

    first, second = spans()
    one = [str(first.peer) if as_text else first.peer]
    assert spans(allowed_servers=one) == [first]
    assert spans(blocked_servers=one) == [second]
    assert spans(allowed_servers=one, blocked_servers=one) == spans(allowed_servers=[]) == []
