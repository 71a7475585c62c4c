"""Joining a swarm within a time limit."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import time
from typing import Any

import pytest
from conftest import SwarmClient

from dist_eval.errors import SwarmError
from dist_eval.petals.client.client import join_swarm, leave_swarm, rejoin_swarm, wait_until_listening
from dist_eval.petals.server.private import PrivateSwarm

PEER_ID = "QmZmNRxpVSgwCUQ1ncBqnmjUUzotKCQj6JPvWEd2YpBd57"
SILENT_PEER_ID = "QmUSM37AX1yBJsHHanqFgS7dTMLhqJRAX1PmRpFkLu7z87"  # this process knows no address of it


def test_waiting_ends_when_something_listens_and_when_time_is_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        address = f"/ip4/127.0.0.1/tcp/{port}/p2p/{PEER_ID}"
        nobody = f"/ip4/127.0.0.1/tcp/9/p2p/{PEER_ID}"
        assert wait_until_listening([nobody, address], time.monotonic() + 10) == [address]
    assert not wait_until_listening([address], time.monotonic() + 0.5)


def test_addresses_that_are_not_plain_tcp_are_not_probed() -> None:
    assert wait_until_listening([f"/dnsaddr/example.invalid/p2p/{PEER_ID}"], time.monotonic() + 1)


def test_a_listener_that_is_not_a_peer_is_reported_in_time(swarm_client: SwarmClient) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"/ip4/127.0.0.1/tcp/{server.getsockname()[1]}/p2p/{PEER_ID}"
        start = time.monotonic()
        with pytest.raises(SwarmError, match="None of the swarm's peers answered within 3 s") as caught:
            join_swarm([address], 3.0)
    assert address in str(caught.value)
    assert time.monotonic() - start < 20


def test_a_server_with_another_identity_is_said(demo_swarm: PrivateSwarm, swarm_client: SwarmClient) -> None:
    address = f"{demo_swarm.initial_peers[0].rpartition('/')[0]}/{PEER_ID}"
    with pytest.raises(SwarmError, match=r"no server with that peer ID .* Copy addresses that servers print"):
        join_swarm([address], 3.0)


def test_waiting_stops_as_soon_as_the_check_raises(swarm_client: SwarmClient) -> None:
    def check() -> None:
        raise SwarmError("the server ended")

    with pytest.raises(SwarmError, match="the server ended"):
        join_swarm([f"/ip4/127.0.0.1/tcp/9/p2p/{PEER_ID}"], 60.0, check=check)


def test_a_swarm_can_be_left_and_joined_again(demo_swarm: PrivateSwarm, swarm_client: SwarmClient) -> None:
    for _ in range(2):
        dht = join_swarm(demo_swarm.initial_peers, 60.0, check=demo_swarm.require_alive)
        assert dht.is_alive()
        leave_swarm(dht)
        assert not dht.is_alive()


async def _others_after_a_collection(dht: Any, node: Any) -> int:
    """Runs in the node's process."""
    await asyncio.sleep(0.5)  # until they wait for the daemon, which gives up after seconds
    gc.collect()
    return sum("DHT._run_coroutine" in repr(task) for task in asyncio.all_tasks() - {asyncio.current_task()})


def test_a_ping_of_a_peer_that_does_not_answer_is_not_collected(
    demo_swarm: PrivateSwarm, swarm_client: SwarmClient
) -> None:
    dht = join_swarm(demo_swarm.initial_peers, 60.0, check=demo_swarm.require_alive)
    with socket.create_server(("127.0.0.1", 0)) as server:
        rejoin_swarm(dht, [f"/ip4/127.0.0.1/tcp/{server.getsockname()[1]}/p2p/{SILENT_PEER_ID}"])
        assert dht.run_coroutine(_others_after_a_collection) == 1
    leave_swarm(dht)


async def _hold_the_lock_forever(dht: Any, node: Any) -> None:
    """Runs in the node's process."""
    from hivemind.utils.mpfuture import MPFuture

    MPFuture._update_lock.acquire()
    time.sleep(10_000)


@pytest.mark.parametrize("killed", ["when we leave", "from outside"])
def test_a_node_killed_while_it_holds_a_lock_leaves_it_usable(
    killed: str, demo_swarm: PrivateSwarm, swarm_client: SwarmClient
) -> None:
    from hivemind.utils.mpfuture import MPFuture

    dht = join_swarm(demo_swarm.initial_peers, 60.0, check=demo_swarm.require_alive)
    dht.run_coroutine(_hold_the_lock_forever, return_future=True)
    while MPFuture._update_lock.acquire(block=False):
        MPFuture._update_lock.release()
        time.sleep(0.01)
    if killed == "from outside":
        os.kill(dht.pid, signal.SIGKILL)
    leave_swarm(dht)
    leave_swarm(join_swarm(demo_swarm.initial_peers, 60.0, check=demo_swarm.require_alive))
