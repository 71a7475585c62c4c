"""A rank's place in a run (`Topology`), and the key-value store that ranks share (`RankStore`).

The store is torchrun's, or a local one without torchrun. It works before a process group exists (see `collectives`).
No connection outlives a call, so forked processes inherit none. It contains the swarm's peers, the path of the
tokenized data, progress, and the first failure.
"""

from __future__ import annotations

import json
import os
import queue
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from dist_eval.errors import LostRankError, RunError, one_line


class LimitedStore:
    """Forwards calls to a store, such as `set` and `get`, with a time limit for each.

    torch's TCP client waits forever for an answer from a host that was cut off: the connection reports no error, and
    most calls have no time limit. So a thread makes each call, and is abandoned if the call does not return.
    """

    def __init__(self, store: Any, limit: float, unanswered: Callable[[], str]) -> None:
        self._store, self._limit, self._unanswered = store, limit, unanswered
        self._calls: queue.SimpleQueue[Callable[[], Any] | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[tuple[Any, Exception | None]] = queue.SimpleQueue()
        self._is_lost = False
        threading.Thread(target=self._serve, name="store", daemon=True).start()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *arguments: self._ask(lambda: getattr(self._store, name)(*arguments))

    def close(self) -> None:
        """Ends the thread, which closes the connection."""
        self._calls.put(None)

    def _ask(self, call: Callable[[], Any]) -> Any:
        if not self._is_lost:
            self._calls.put(call)
            try:
                answer, error = self._answers.get(timeout=self._limit)
            except queue.Empty:
                self._is_lost = True  # permanently, because a late answer could be mistaken for that of another call
            else:
                if error is not None:
                    raise error
                return answer
        raise LostRankError(self._unanswered())

    def _serve(self) -> None:
        while (call := self._calls.get()) is not None:
            try:
                self._answers.put((call(), None))
            except Exception as error:  # raised again in the calling thread
                self._answers.put((None, error))


_CONNECT_SECONDS, _AGAIN_SECONDS, _POLL_SECONDS = 60.0, 5.0, 0.1

_SECONDS_FOR_A_RANK = 0.0005  # Added per rank to the polling interval, because one store answers all ranks

_FAILURE, _STARTED = "failure", "started"


@dataclass(frozen=True)
class Topology:
    """This process's place among the ranks, from torchrun's environment variables."""

    rank: int = 0  # number of this rank among all
    world_size: int = 1  # number of ranks
    local_rank: int = 0  # number of this rank on its host
    node: int = 0  # number of this host among the hosts
    hosts: int = 1  # number of hosts
    attempt: int = 0  # number of restarts by torchrun
    host: str = ""  # name of this host

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Topology:
        """Reads torchrun's variables; without them the process is the only rank.

        Raises RunError if there are several ranks but not all variables, one is not a number, or restarts that are
        allowed cannot be distinguished.
        """

        def number(name: str, default: int = 0) -> int:
            try:
                return int(environment.get(name, default))
            except ValueError:
                raise RunError(
                    f"The environment has {name}={environment[name]}, not a number: unset it, or start the run "
                    "with torchrun."
                ) from None

        world_size = number("WORLD_SIZE", 1)
        missing = [
            n for n in ("RANK", "LOCAL_RANK", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT") if n not in environment
        ]
        if world_size > 1 and missing:
            raise RunError(
                f"The environment sets {world_size} ranks but not {missing[0]}: start the run with torchrun."
            )
        hosts = number("GROUP_WORLD_SIZE", 1)
        if hosts > 1 and number("TORCHELASTIC_MAX_RESTARTS") > 0:
            raise RunError(
                "On several hosts, start torchrun with --max-restarts=0 and let the scheduler restart the run: "
                "torchrun's hosts count restarts differently, so ranks could not agree on the current start."
            )
        return cls(
            rank=number("RANK"),
            world_size=world_size,
            local_rank=number("LOCAL_RANK"),
            node=number("GROUP_RANK"),
            hosts=hosts,
            attempt=number("TORCHELASTIC_RESTART_COUNT"),
            host=socket.gethostname(),
        )

    @property
    def is_leader(self) -> bool:
        """Whether this rank reports for all."""
        return self.rank == 0

    @property
    def is_host_leader(self) -> bool:
        """Whether this rank prepares the files that the ranks of its host share."""
        return self.local_rank == 0

    def share_of(self, count: int) -> int:
        """Returns how many of `count` things this rank gets: an equal share, or one more for the first ranks."""
        return count // self.world_size + (self.rank < count % self.world_size)


class RankStore:
    """A key-value store of small strings that all ranks can read and write without a process group.

    The name `run` distinguishes several runs of one process.
    """

    def __init__(self, topology: Topology, run: str = "run") -> None:
        self._topology = topology
        self._prefix = f"dist_eval/{run}/{topology.attempt}"
        self._groups, self._known = 0, False
        self._start = uuid.uuid4().hex  # distinguishes this process from the same rank's process in a later start
        self.poll_seconds = max(_POLL_SECONDS, topology.world_size * _SECONDS_FOR_A_RANK)
        self._local_store = dist.HashStore() if topology.world_size == 1 else None
        self._is_lost = False

    @contextmanager
    def connect(self, limit: float = _CONNECT_SECONDS) -> Iterator[LimitedStore]:
        """Opens a connection within the context.

        `limit` is the maximum wait for the connection and for each answer, in seconds. It is shorter after a timeout,
        so that a rank that was cut off ends soon. A store that another start uses is refused with a RunError.
        """
        limit = min(limit, _AGAIN_SECONDS) if self._is_lost else limit
        try:
            store = LimitedStore(self._open(limit), limit, self._unanswered)
        except RunError:
            self._is_lost = True
            raise
        self._is_lost = False
        try:
            self._require_this_start(store)
            yield store
        finally:
            store.close()

    def _require_this_start(self, store: LimitedStore) -> None:
        """Checks that no other start uses this store, because its values would mislead this one.

        With an elastic number of hosts, torchrun may restart the ranks of the remaining hosts with the same store, and
        a scheduler may restart a host while the others are still running.
        """
        key, rank = f"{_STARTED}/{self._topology.rank}", self._topology.rank
        if self._local_store is not None:
            return
        was_known = self._known  # read first: another thread of this rank may be registering
        if not store.check([key]):
            if was_known:
                raise LostRankError(
                    f"Rank {rank} on {self._topology.host} gave up: another start replaced the store of its ranks."
                )
            store.set(key, self._start)
        elif store.get(key).decode() != self._start:
            message = (
                f"Rank {rank} was started on {self._topology.host} while the other ranks still used an earlier start "
                "of it. All ranks end now: start the same command again on all hosts."
            )
            if not store.check([_FAILURE]):
                host = self._topology.host
                reason = {"message": message, "rank": rank, "host": host, "transient": True, "coverage": None}
                store.set(_FAILURE, json.dumps(reason))
            raise LostRankError(message)
        self._known = True

    def _open(self, timeout: float) -> dist.Store:
        store: dist.Store = _torchrun_store(timeout) if self._local_store is None else self._local_store
        store.set_timeout(timedelta(seconds=timeout))
        return dist.PrefixStore(self._prefix, store)

    def _unanswered(self) -> str:
        self._is_lost = True
        return f"{_store_in_words()} has stopped answering rank {self._topology.rank} on {self._topology.host}."

    def store_of_group(self, timeout: float) -> dist.Store:
        """Returns the store for a new process group, with its own prefix."""
        self._groups += 1
        return dist.PrefixStore(f"group-{self._groups}", self._open(timeout))

    def publish(self, key: str, value: str) -> None:
        """Publishes a value that other ranks wait for."""
        with self.connect() as store:
            store.set(key, value)

    def wait_for(self, key: str, timeout: float) -> str:
        """Returns a value that another rank publishes within `timeout` seconds; a rank that fails ends the wait."""
        deadline = time.monotonic() + timeout
        with self.connect() as store:
            while time.monotonic() < deadline:
                if store.check([key]):
                    return store.get(key).decode()
                self.require_no_failure(store)
                time.sleep(self.poll_seconds)
        raise LostRankError(
            f"Rank {self._topology.rank} on {self._topology.host} timed out after {timeout:g} s waiting for {key!r} "
            "from another rank."
        )

    def require_no_failure(self, store: LimitedStore) -> None:
        """Raises a `RunError` if a rank has failed; called while waiting for other ranks."""
        if store.check([_FAILURE]):
            raise RunError(f"Rank {self._topology.rank} gave up because another rank failed.")

    @staticmethod
    def failed_rank(store: LimitedStore) -> str:
        """Returns the failed rank, for messages; empty if none has failed."""
        if not store.check([_FAILURE]):
            return ""
        reason = json.loads(store.get(_FAILURE))
        return f"rank {reason['rank']} on {reason['host']}"

    def claim_failure(self, reason: Mapping[str, Any]) -> bool:
        """Announces that this rank has failed, so that others stop waiting; returns whether it is the first to fail.

        The first one reports for all ranks. `reason`, serializable as JSON, is the value of `failure` on the other
        ranks.
        """
        with self.connect() as store:
            first = store.add(f"{_FAILURE}/claims", 1) == 1
            if first:
                store.set(_FAILURE, json.dumps(reason))
            return first

    def failure(self) -> dict[str, Any] | None:
        """Returns the reason of the first failure; None if no rank has failed."""
        with self.connect() as store:
            return json.loads(store.get(_FAILURE)) if store.check([_FAILURE]) else None

    def barrier(self, name: str, timeout: float) -> None:
        """Waits until all ranks have reached the same point, at most `timeout` seconds.

        Unlike a collective, it can be interrupted, ends when a rank fails, and names the missing ranks. The name, which
        is used once, completes "all ranks to be ..." in the error message.
        """
        world_size, deadline = self._topology.world_size, time.monotonic() + timeout
        with self.connect() as store:
            store.set(f"{name}/{self._topology.rank}", self._topology.host)
            store.add(name, 1)
            while store.add(name, 0) < world_size:
                self.require_no_failure(store)
                if time.monotonic() > deadline:
                    missing = [rank for rank in range(world_size) if not store.check([f"{name}/{rank}"])]
                    raise LostRankError(
                        f"Rank {self._topology.rank} on {self._topology.host} timed out after {timeout:g} s waiting "
                        f"for all ranks to be {name}; missing: ranks {', '.join(map(str, missing[:10]))}."
                    )
                time.sleep(self.poll_seconds)


def _store_in_words() -> str:
    return f"The store at MASTER_ADDR={os.environ.get('MASTER_ADDR')} MASTER_PORT={os.environ.get('MASTER_PORT')}"


def _torchrun_store(timeout: float) -> dist.Store:
    host, port = os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]
    connecting = timedelta(seconds=min(timeout, _CONNECT_SECONDS))
    try:
        return dist.TCPStore(host, int(port), is_master=False, timeout=connecting, wait_for_workers=False)
    except (RuntimeError, ValueError) as error:
        raise LostRankError(f"{_store_in_words()} does not answer: {one_line(error)}") from error
