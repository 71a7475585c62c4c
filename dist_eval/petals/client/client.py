"""Joins a swarm as a client within a time limit, and leaves it gracefully."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import functools
import itertools
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from dist_eval.errors import SwarmError, one_line
from dist_eval.petals.client.reachability import LateNotice, Say, may_listen, probe_before_dialing, why_unreachable
from dist_eval.process.lifetime import helpers_die_with_us
from dist_eval.process.logging_setup import forking_without_warnings

_POLL_SECONDS, _LEAST_PROBE_SECONDS, _PROBE_SECONDS, _PROBES_AT_ONCE = 0.1, 0.1, 5.0, 16
_RETRY_SECONDS, _LEAVE_SECONDS, _END_SECONDS, _FIRST_ATTEMPT_SECONDS = 0.5, 4.0, 1.0, 15.0

_pinging: set[Any] = set()  # keeps running tasks of a node's process from being garbage-collected


def public_peers() -> list[str]:
    """Returns addresses of Petals' public swarm."""
    from dist_eval.petals.client.protocol import PUBLIC_PEERS

    return list(PUBLIC_PEERS)


def join_swarm(
    initial_peers: Sequence[str],
    timeout: float,
    *,
    check: Callable[[], None] = lambda: None,
    say: Say | None = None,
    timeout_option: str = "--swarm-timeout",
) -> Any:
    """Starts this process' DHT node, a `hivemind.DHT` in client mode, and returns it once it runs.

    hivemind runs it in a forked process, so join before opening connections that must not be inherited.

    Args:
        initial_peers: addresses of the swarm; at least one must answer.
        timeout: seconds, including the wait for a swarm that is still starting.
        check: called at every poll; raises when waiting has become pointless.
        say: called once with a notice if no peer answers for a few seconds.
        timeout_option: the option that sets the timeout, for messages.
    """
    import hivemind

    notice = LateNotice(say)

    def poll() -> None:
        check()
        if notice.is_due():
            why = reason or why_unreachable(initial_peers[0], _LEAST_PROBE_SECONDS)
            what = "no peer of the swarm has answered yet" + (f" ({why})" if why else "")
            notice.say(f"waiting up to {timeout:g} s ({timeout_option}): {what}.")

    probe_before_dialing(initial_peers)
    deadline, wait = time.monotonic() + timeout, _FIRST_ATTEMPT_SECONDS
    reason = ""
    while listening := wait_until_listening(initial_peers, deadline, check=poll):
        dht = None
        within = max(1.0, min(wait, deadline - time.monotonic()))
        try:
            with helpers_die_with_us(apart=True), forking_without_warnings():
                dht = hivemind.DHT(
                    initial_peers=listening,
                    client_mode=True,
                    num_workers=32,
                    startup_timeout=within,
                    start=True,
                    await_ready=False,
                )
            dht.wait_until_ready(within)
            return dht
        except Exception as error:  # any error of the daemon or the bootstrap
            reason = one_line(error)
            if dht is not None:
                _stop_node(dht)
        # a server that already listens may need a moment to answer; and the forked node can deadlock on a lock that
        # another thread of this process held
        wait *= 2
        if time.monotonic() + _RETRY_SECONDS > deadline:
            break
        time.sleep(_RETRY_SECONDS)
    if listening and "bootstrap" in reason:  # the daemon's word where it reaches none of the peers
        raise SwarmError(
            f"Something listens at {', '.join(listening)}, but no server with that peer ID "
            f"answered within {timeout:g} s. Copy addresses that servers print, or wait longer with {timeout_option}."
        )
    reason = reason or why_unreachable(initial_peers[0], _LEAST_PROBE_SECONDS) or "nothing listened there"
    raise SwarmError(
        f"None of the swarm's peers answered within {timeout:g} s ({reason}): {', '.join(initial_peers)}. "
        f"Check the addresses and that the swarm is running, or wait longer with {timeout_option}."
    )


def wait_until_listening(
    initial_peers: Sequence[str], deadline: float, *, check: Callable[[], None] = lambda: None
) -> list[str]:
    """Waits until something listens at one of the addresses."""
    while time.monotonic() < deadline:
        check()
        wait = max(_LEAST_PROBE_SECONDS, min(_PROBE_SECONDS, deadline - time.monotonic()))
        with concurrent.futures.ThreadPoolExecutor(_PROBES_AT_ONCE) as pool:
            answers = list(pool.map(functools.partial(may_listen, timeout=wait), initial_peers))
        if any(answers):
            return list(itertools.compress(initial_peers, answers))
        time.sleep(_POLL_SECONDS)
    return []


def rejoin_swarm(dht: Any, initial_peers: Sequence[str]) -> None:
    """Pings the peers again without waiting, because a node drops peers that did not answer for a while."""
    dht.run_coroutine(functools.partial(_ping, list(initial_peers)), return_future=True)


async def _ping(addresses: list[str], dht: Any, node: Any) -> None:
    """Runs in the node's process."""
    from hivemind.p2p import PeerID
    from hivemind.utils.multiaddr import Multiaddr

    _pinging.add(task := asyncio.current_task())
    for address in addresses:
        with contextlib.suppress(Exception):  # a peer that is not up yet is pinged the next time
            location, _, name = address.rpartition("/p2p/")
            peer = PeerID.from_base58(name)
            await node.p2p._client.connect(peer, [Multiaddr(location)])
            if await node.protocol.call_ping(peer) is not None:
                node.blacklist.register_success(peer)
    _pinging.remove(task)


def leave_swarm(dht: Any, connection: Any = None, stop: Callable[[], Any] = lambda: None) -> None:
    """Stops this process' DHT node, its p2p daemon, and their users, even if no peer answers any more.

    `connection` is the `hivemind.P2P` of a model that used the node, if any. It is closed on the loop that opened it,
    because closing it elsewhere prints tracebacks. `stop` stops the thread that looks up servers; it may wait for a
    look-up.
    """
    if connection is not None:
        from hivemind.moe.client.remote_expert_worker import RemoteExpertWorker

        async def close() -> None:
            await connection.shutdown()
            await asyncio.sleep(0)  # its cancelled tasks end in the loop's next iteration

        _run_briefly(stop)
        with contextlib.suppress(concurrent.futures.TimeoutError):
            RemoteExpertWorker.run_coroutine(close(), return_future=True).result(_LEAVE_SECONDS)
    _run_briefly(dht.shutdown)
    _stop_node(dht)


def _stop_node(dht: Any) -> None:
    """Waits briefly for a node's process to exit, then kills it.

    A node reports a failure under a lock that it shares with this process and all later nodes. If it is killed before
    it releases the lock, all of them would deadlock, so the lock is released here.
    """
    from hivemind.utils.mpfuture import MPFuture, SharedBytes

    dht.join(_END_SECONDS)
    if dht.is_alive():
        dht.kill()
        dht.join(_LEAVE_SECONDS)
    if dht.exitcode:
        for lock in (MPFuture._update_lock, MPFuture._initialization_lock, SharedBytes._lock):
            lock.acquire(timeout=_END_SECONDS)  # times out if the node held it
            lock.release()


def _run_briefly(action: Callable[[], Any]) -> None:
    thread = threading.Thread(target=action, daemon=True)
    try:
        thread.start()
    except RuntimeError:  # the interpreter is exiting and starts no more threads
        action()
    else:
        thread.join(_LEAVE_SECONDS)
