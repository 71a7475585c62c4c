"""A model's connection to its swarm: opened within a time limit; closed by the program, at exit or with the model."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from dist_eval.errors import ConfigError
from dist_eval.petals.client.reachability import Say
from dist_eval.petals.client.router import Router
from dist_eval.petals.model.shared import Shared
from dist_eval.process.lifetime import MultiprocessingFiles, workspace
from dist_eval.process.logging_setup import silence_petals

if TYPE_CHECKING:
    from dist_eval.petals.client.coverage import SwarmCoverage
    from dist_eval.petals.client.requests import SwarmRequests

Result = TypeVar("Result")


@dataclass
class Connection:
    """An open connection of a model."""

    dht: Any  # the DHT node
    requests: SwarmRequests
    coverage: SwarmCoverage  # the servers that were found

    def close(self) -> None:
        """Leaves the swarm."""
        from dist_eval.petals.client.client import leave_swarm

        leave_swarm(self.dht, self.requests.servers.connection, self.requests.close)


def connect(
    addresses: Sequence[str],
    dht_prefix: str,
    config: Any,
    *,
    adapter: str | None = None,
    timeout: float,
    allowed_servers: Sequence[str] | None = None,
    blocked_servers: Sequence[str] = (),
    check: Callable[[], None] = lambda: None,
    say: Say | None = None,
    timeout_option: str = "--swarm-timeout",
    **options: Any,
) -> Connection:
    """Joins a swarm, and waits until it has a server for each block of a model.

    Call `prepare_hivemind` before.

    Args:
        addresses: addresses of the swarm's peers.
        dht_prefix: name under which the swarm announces the model.
        config: the model's `transformers` config.
        adapter: a LoRA adapter that servers must have and apply, or None.
        timeout: seconds to wait for the swarm, and for servers of all blocks.
        allowed_servers: the only servers to use, as peer ids; None for all.
        blocked_servers: servers not to use.
        check: called at every poll; raises when waiting has become pointless.
        say: called with notices if the swarm or its servers do not answer for a few seconds.
        timeout_option: the option that sets the timeout, for messages.
        **options: those of `SwarmRequests`.
    """
    from dist_eval.petals.client.client import join_swarm, leave_swarm, rejoin_swarm
    from dist_eval.petals.client.coverage import wait_until_covered
    from dist_eval.petals.client.directory import ServerDirectory
    from dist_eval.petals.client.requests import SwarmRequests

    def rejoin() -> None:
        check()
        rejoin_swarm(dht, addresses)

    dht = join_swarm(addresses, timeout, check=check, say=say, timeout_option=timeout_option)
    model = (dht, dht_prefix, config.num_hidden_layers)
    try:
        coverage = wait_until_covered(
            *model, timeout, config=config, adapter=adapter, check=check, say=say, timeout_option=timeout_option
        )
        rejoin_swarm(dht, addresses)  # the daemon may not know servers that started after it joined
        directory = ServerDirectory(*model, adapter, allowed_servers=allowed_servers, blocked_servers=blocked_servers)
        requests = SwarmRequests(directory, config, outage_timeout=timeout, rejoin=rejoin, **options)
        requests.start()
    except BaseException:
        leave_swarm(dht)
        raise
    return Connection(dht, requests, coverage)


class _Home:
    """A folder for sockets and temporary files, shared by all open models of a process and removed with the last."""

    def __init__(self) -> None:
        self._lock, self._users, self._stack = threading.RLock(), 0, ExitStack()
        self._files: MultiprocessingFiles

    def open(self, action: Callable[[], Result]) -> Result:
        """Calls a function that connects to a swarm; its files are kept until `leave`."""
        from dist_eval.petals.client.hivemind_compat import prepare_hivemind

        with self._lock:
            if not self._users:
                silence_petals()
                folder = self._stack.enter_context(workspace())
                self._files = MultiprocessingFiles(folder)
                self._stack.callback(self._files.remove)
                prepare_hivemind(sockets=folder)
            self._users += 1
            try:
                with self._files.begun():
                    return action()
            except BaseException:
                self.leave()
                raise

    def leave(self) -> None:
        with self._lock:
            self._users -= 1
            if not self._users:
                self._stack.close()


_home = _Home()


class OpenConnection(Shared):
    """A connection that is closed at exit at the latest; for the arguments see `connect`."""

    def __init__(self, addresses: Sequence[str], dht_prefix: str, config: Any, **options: Any) -> None:
        self._pid, self._lock = os.getpid(), threading.Lock()
        router = Router(int(os.environ.get("RANK", 0)))  # so that ranks start with different servers
        connection, self._end = _home.open(
            lambda: in_lasting_thread(
                lambda: connect(addresses, dht_prefix, config, router=router, timeout_option="timeout", **options)
            )
        )
        self._connection: Connection | None = connection
        self.requests = connection.requests
        atexit.register(self.close)

    def require_open(self) -> None:
        """Raises a `ConfigError` if the connection is closed or this process was forked after it was opened."""
        if os.getpid() != self._pid:
            raise ConfigError(
                "This process was forked from the one that opened the model, and cannot use its connection to the "
                "swarm: open the model after the fork, in the process that uses it."
            )
        if self._connection is None:
            raise ConfigError("The model is closed, and has left the swarm: open it again with from_pretrained.")

    def close(self) -> None:
        """Leaves the swarm once; does nothing in a process that was forked after the connection was opened."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            connection, self._connection = self._connection, None
        if connection is not None:
            atexit.unregister(self.close)
            connection.close()
            self._end.set()
            _home.leave()

    def close_when_collected(self) -> None:
        """Closes the connection in any thread in which a model may be garbage-collected."""
        from hivemind.moe.client.remote_expert_worker import RemoteExpertWorker

        if threading.current_thread() is RemoteExpertWorker._event_thread:  # `close` waits for this thread
            threading.Thread(target=self.close, daemon=True).start()
        else:
            self.close()


def in_lasting_thread(action: Callable[[], Result]) -> tuple[Result, threading.Event]:
    """Calls a function in a thread that lives until an event is set; returns the result and the event.

    The kernel ends forked helpers together with the thread that started them, which may belong to a pool.
    """
    end, done = threading.Event(), threading.Event()
    results: list[Result] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(action())
        except BaseException as error:  # raised below
            errors.append(error)
            end.set()
        done.set()
        end.wait()

    threading.Thread(target=run, daemon=True, name="swarm").start()
    done.wait()
    if errors:
        raise errors[0]
    return results[0], end
