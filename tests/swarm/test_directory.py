"""The list of servers that a thread keeps up to date."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from conftest import TIMEOUT

from dist_eval.swarm.directory import ServerDirectory
from dist_eval.swarm.router import Span

if TYPE_CHECKING:
    from dist_eval.swarm.private import PrivateSwarm


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_the_thread_ends_with_the_node(demo_swarm: PrivateSwarm, swarm_client: Any) -> None:
    from dist_eval.swarm.client import join_swarm, leave_swarm

    swarm_client.join(demo_swarm)  # waits for its servers
    dht = join_swarm(demo_swarm.initial_peers, TIMEOUT)
    directory = ServerDirectory(dht, demo_swarm.dht_prefix, demo_swarm.num_blocks)
    directory.start(TIMEOUT)
    assert {(span.start, span.end) for span in directory.spans()} == {*demo_swarm.spans}
    leave_swarm(dht, directory.p2p)
    directory.update()
    directory._thread.join(TIMEOUT)
    assert not directory._thread.is_alive()


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
