"""What the ranks tell each other through the store that torchrun keeps, or one of our own without torchrun.

It works before a process group exists (see `collectives`), and opens no connection that outlives a call, so that
processes forked meanwhile inherit none. It carries the swarm's peers, the place of the tokenized data, progress, and
who reports an error.
"""

from __future__ import annotations

import json
import os
import socket
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from dist_eval.distributed.limited_store import LimitedStore
from dist_eval.errors import LostRankError, RunError, first_line

_CONNECT_SECONDS, _AGAIN_SECONDS, _POLL_SECONDS = 60.0, 5.0, 0.1

_SECONDS_FOR_A_RANK = 0.0005
"""By so much less often each rank asks the store, for each rank there is: one store answers all of them."""

_FAILURE, _STARTED = "failure", "started"


@dataclass(frozen=True)
class Topology:
    """Where this process stands among the ranks, as torchrun tells it through the environment.

    Attributes:
        rank: number of this rank among all.
        world_size: number of ranks.
        local_rank: number of this rank on its host.
        node: number of this host among the hosts.
        hosts: number of hosts.
        attempt: how often torchrun has restarted the group.
        host: name of this host.
    """

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    node: int = 0
    hosts: int = 1
    attempt: int = 0
    host: str = ""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Topology:
        """Reads torchrun's variables; without them the process is the only rank.

        Raises:
            RunError: the environment names several ranks, but was not made by torchrun, or asks for restarts that
                cannot be told apart.
        """
        world_size = int(environment.get("WORLD_SIZE", 1))
        missing = [
            n for n in ("RANK", "LOCAL_RANK", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT") if n not in environment
        ]
        if world_size > 1 and missing:
            raise RunError(
                f"The environment names {world_size} ranks but no {missing[0]}: start the run with torchrun."
            )
        hosts = int(environment.get("GROUP_WORLD_SIZE", 1))
        if hosts > 1 and int(environment.get("TORCHELASTIC_MAX_RESTARTS", 0)) > 0:
            raise RunError(
                "On several hosts, start torchrun with --max-restarts=0: its hosts count restarts differently, so the "
                "ranks could not agree on which start they are in. Let the scheduler start the run again."
            )
        return cls(
            rank=int(environment.get("RANK", 0)),
            world_size=world_size,
            local_rank=int(environment.get("LOCAL_RANK", 0)),
            node=int(environment.get("GROUP_RANK", 0)),
            hosts=hosts,
            attempt=int(environment.get("TORCHELASTIC_RESTART_COUNT", 0)),
            host=socket.gethostname(),
        )

    @property
    def is_leader(self) -> bool:
        """Whether this rank reports for all."""
        return self.rank == 0

    @property
    def is_host_leader(self) -> bool:
        """Whether this rank prepares what the ranks of its host share."""
        return self.local_rank == 0


class RankStore:
    """A store of small strings that all ranks can write and read without a process group.

    Args:
        topology: where this process stands.
        run: a name that tells runs of one process apart.
    """

    def __init__(self, topology: Topology, run: str = "run") -> None:
        self._topology = topology
        self._prefix = f"dist_eval/{run}/{topology.attempt}"
        self._groups, self._known = 0, False
        self._start = uuid.uuid4().hex  # tells this process from the one that a later start has for the same rank
        self.poll_seconds = max(_POLL_SECONDS, topology.world_size * _SECONDS_FOR_A_RANK)
        self._scratch_dir = dist.HashStore() if topology.world_size == 1 else None
        self._is_lost = False

    @contextmanager
    def connect(self, limit: float = _CONNECT_SECONDS) -> Iterator[LimitedStore]:
        """Opens a connection for the time of the context.

        Args:
            limit: seconds until it must be open, and for each answer. Less, once there was none: then a rank that is
                cut off should come to its end.

        Raises:
            RunError: the store that torchrun keeps cannot be reached, does not answer (any more), or is not, or not
                only, that of this start.
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
        """Makes sure that two starts never use one store: what one of them has written would mislead the other.

        Where hosts come and go, torchrun may start the ranks of those that stayed again with the same store, and a
        scheduler may start a host again while the others still run.
        """
        key, rank = f"{_STARTED}/{self._topology.rank}", self._topology.rank
        if self._scratch_dir is not None:
            return
        was_known = self._known  # read first: another thread of this rank may be making itself known
        if not store.check([key]):
            if was_known:
                raise LostRankError(
                    f"Rank {rank} on {self._topology.host} gave up: its ranks' store was replaced by another start's."
                )
            store.set(key, self._start)
        elif store.get(key).decode() != self._start:
            message = (
                f"Rank {rank} was started on {self._topology.host} while an earlier start of it was still known to the "
                "other ranks. All of them end now: start the same command again on all hosts."
            )
            reason = {
                "message": message,
                "rank": rank,
                "host": self._topology.host,
                "transient": True,
                "coverage": None,
            }
            if not store.check([_FAILURE]):
                store.set(_FAILURE, json.dumps(reason))
            raise LostRankError(message)
        self._known = True

    def _open(self, timeout: float) -> dist.Store:
        store: dist.Store = _torchrun_store(timeout) if self._scratch_dir is None else self._scratch_dir
        store.set_timeout(timedelta(seconds=timeout))
        return dist.PrefixStore(self._prefix, store)

    def _unanswered(self) -> str:
        self._is_lost = True
        return f"{_store_in_words()} does not answer rank {self._topology.rank} on {self._topology.host} any more."

    def store_of_group(self, timeout: float) -> dist.Store:
        """Returns the store for a process group, under a name that no earlier one of this board had.

        Args:
            timeout: seconds that a wait may take.

        Raises:
            RunError: the store that torchrun keeps cannot be reached.
        """
        self._groups += 1
        return dist.PrefixStore(f"group-{self._groups}", self._open(timeout))

    def publish(self, key: str, value: str) -> None:
        """Writes a value that other ranks wait for."""
        with self.connect() as store:
            store.set(key, value)

    def wait_for(self, key: str, timeout: float) -> str:
        """Waits for a value.

        Args:
            key: the name under which another rank publishes.
            timeout: seconds.

        Returns:
            The value.

        Raises:
            RunError: nobody published it in time, or a rank has failed.
        """
        deadline = time.monotonic() + timeout
        with self.connect() as store:
            while time.monotonic() < deadline:
                if store.check([key]):
                    return store.get(key).decode()
                self.require_no_failure(store)
                time.sleep(self.poll_seconds)
        raise LostRankError(
            f"Rank {self._topology.rank} on {self._topology.host} waited {timeout:g} s in vain for {key!r} "
            "from another rank."
        )

    def require_no_failure(self, store: LimitedStore) -> None:
        """Raises a `RunError` if a rank has failed; asked of an open connection while waiting for others."""
        if store.check([_FAILURE]):
            raise RunError(f"Rank {self._topology.rank} gave up, because another rank failed.")

    @staticmethod
    def failed_rank(store: LimitedStore) -> str:
        """Returns which rank has failed, for a message; empty if none has. Asked of an open connection."""
        if not store.check([_FAILURE]):
            return ""
        reason = json.loads(store.get(_FAILURE))
        return f"rank {reason['rank']} on {reason['host']}"

    def claim_failure(self, reason: Mapping[str, Any]) -> bool:
        """Announces that this rank has failed, so that the others stop waiting.

        Args:
            reason: what `failure` gives to the other ranks, ready for JSON.

        Returns:
            Whether this rank is the first to fail, the one that speaks for all.
        """
        with self.connect() as store:
            first = store.add(f"{_FAILURE}/claims", 1) == 1
            if first:
                store.set(_FAILURE, json.dumps(reason))
            return first

    def failure(self) -> dict[str, Any] | None:
        """Returns the reason of the rank that failed first, or None if none has."""
        with self.connect() as store:
            return json.loads(store.get(_FAILURE)) if store.check([_FAILURE]) else None

    def barrier(self, name: str, timeout: float) -> None:
        """Waits until all ranks have come to the same point.

        Unlike a collective it can be interrupted, ends when a rank fails, and can name who is missing.

        Args:
            name: the point's name, used once.
            timeout: seconds.

        Raises:
            RunError: a rank has failed, or did not come in time; the message names the missing ones.
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
                        f"Rank {self._topology.rank} on {self._topology.host} waited {timeout:g} s for all ranks to be "
                        f"{name}; missing are ranks {', '.join(map(str, missing[:10]))}."
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
        raise LostRankError(f"{_store_in_words()} does not answer: {first_line(error)}") from error
