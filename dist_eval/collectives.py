"""What the ranks tell each other; the only module that imports torch.distributed.

Two means, in this order:

1. The *store* that torchrun keeps (or one of our own without torchrun). It works before a process group exists, and
   opens no connection that outlives a call, so that processes forked meanwhile inherit none. It carries the swarm's
   peers, the place of the tokenized data, progress, and who reports an error.
2. The *process group* (gloo), opened after the model is built, for the exact exchange at the end.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from dist_eval.errors import ExactnessError, LostRankError, RunError
from dist_eval.metrics import Totals
from dist_eval.predictions import Collector, Predictions

_CONNECT_SECONDS, _POLL_SECONDS = 60.0, 0.1
_ROWS_IN_A_ROUND = 1 << 16
"""Predictions of all ranks together that travel at a time, which bounds what a rank has to hold of the others'."""

_CALL_SECONDS = 6 * 3600.0
"""Longest wait for another rank in a group that is opened for one call; if a rank dies, torchrun ends the others."""

_MEETING_SECONDS = 1800.0
"""Longest wait for all ranks to make a call, which some programs make on one rank only."""

_FAILURE = "failure"

_group: dist.ProcessGroup | None = None
"""What collectives go through, if it is not the default group."""
_calls = 0


@dataclass(frozen=True)
class Launch:
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
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Launch:
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


class Board:
    """A store of small strings that all ranks can write and read without a process group.

    Args:
        launch: where this process stands.
        run: a name that tells runs of one process apart.
    """

    def __init__(self, launch: Launch, run: str = "run") -> None:
        self._launch = launch
        self._prefix = f"dist_eval/{run}/{launch.attempt}"
        self._groups = 0
        self._own = dist.HashStore() if launch.world_size == 1 else None

    @contextmanager
    def connect(self, timeout: float = _CONNECT_SECONDS) -> Iterator[dist.Store]:
        """Opens a connection for the time of the context.

        Args:
            timeout: seconds that a wait on this connection may take.

        Raises:
            RunError: the store that torchrun keeps cannot be reached.
        """
        if self._own is not None:
            self._own.set_timeout(timedelta(seconds=timeout))
            yield dist.PrefixStore(self._prefix, self._own)
            return
        yield dist.PrefixStore(self._prefix, _torchrun_store(timeout))

    def next_group(self) -> str:
        """Returns a name for a process group that no earlier one of this board had, the same on all ranks."""
        self._groups += 1
        return f"group-{self._groups}"

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
                time.sleep(_POLL_SECONDS)
        raise LostRankError(
            f"Rank {self._launch.rank} on {self._launch.host} waited {timeout:g} s in vain for {key!r} "
            "from another rank."
        )

    def require_no_failure(self, store: dist.Store) -> None:
        """Raises a `RunError` if a rank has failed; asked of an open connection while waiting for others."""
        if store.check([_FAILURE]):
            raise RunError(f"Rank {self._launch.rank} gave up, because another rank failed.")

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

    def meet(self, name: str, timeout: float) -> None:
        """Waits until all ranks have come to the same point.

        Unlike a collective it can be interrupted, ends when a rank fails, and can name who is missing.

        Args:
            name: the point's name, used once.
            timeout: seconds.

        Raises:
            RunError: a rank has failed, or did not come in time; the message names the missing ones.
        """
        world_size, deadline = self._launch.world_size, time.monotonic() + timeout
        with self.connect() as store:
            store.set(f"{name}/{self._launch.rank}", self._launch.host)
            store.add(name, 1)
            while store.add(name, 0) < world_size:
                self.require_no_failure(store)
                if time.monotonic() > deadline:
                    missing = [rank for rank in range(world_size) if not store.check([f"{name}/{rank}"])]
                    raise LostRankError(
                        f"Rank {self._launch.rank} on {self._launch.host} waited {timeout:g} s for all ranks to be "
                        f"{name}; missing are ranks {', '.join(map(str, missing[:10]))}."
                    )
                time.sleep(_POLL_SECONDS)


def _torchrun_store(timeout: float) -> dist.Store:
    host, port = os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]
    connecting = timedelta(seconds=min(timeout, _CONNECT_SECONDS))
    try:
        store = dist.TCPStore(host, int(port), is_master=False, timeout=connecting, wait_for_workers=False)
        store.set_timeout(timedelta(seconds=timeout))
        return store
    except (RuntimeError, ValueError) as error:
        raise LostRankError(f"The store at MASTER_ADDR={host} MASTER_PORT={port} does not answer: {error}") from error


@contextmanager
def group_of_program() -> Iterator[Launch]:
    """Uses the process group that the program has opened, or opens one for the time of the context.

    Objects travel through gloo, also where the program's own group is for GPUs. Every rank calls it.

    Yields:
        Where this process stands.

    Raises:
        RunError: the environment names several ranks, but torchrun's store cannot be reached, or they did not all come.
    """
    global _group, _calls
    if not dist.is_initialized():
        launch, _calls = Launch.from_environment(), _calls + 1
        board = Board(launch, f"call-{_calls}")
        board.meet("in the same call", _MEETING_SECONDS)
        with process_group(launch, board, _CALL_SECONDS):
            yield launch
        return
    before = _group
    own: Any = None
    if dist.get_backend() != "gloo":
        own = dist.new_group(backend="gloo", timeout=timedelta(seconds=_CALL_SECONDS))
    _group = own or before
    try:
        yield Launch(rank=dist.get_rank(), world_size=dist.get_world_size(), host=socket.gethostname())
    finally:
        _group = before
        if own is not None:
            dist.destroy_process_group(own)


@contextmanager
def process_group(launch: Launch, board: Board, timeout: float) -> Iterator[None]:
    """Opens the gloo process group of all ranks for the time of the context.

    Open it only after everything that forks (the swarm's DHT) has been started: a fork would inherit its sockets.

    Args:
        launch: where this process stands.
        board: the ranks' store.
        timeout: seconds after which a collective that waits for another rank fails.
    """
    with board.connect(timeout) as store:
        dist.init_process_group(
            "gloo",
            store=dist.PrefixStore(board.next_group(), store),
            rank=launch.rank,
            world_size=launch.world_size,
            timeout=timedelta(seconds=timeout),
        )
        try:
            yield
        finally:
            dist.destroy_process_group()


def require_agreement(facts: Mapping[str, str]) -> None:
    """Compares facts that must be equal on all ranks, such as the hash of the tuned weights.

    Args:
        facts: value by name, the same names on all ranks.

    Raises:
        ExactnessError: a value differs; the message names the fact and the ranks, on every rank.
    """
    everybody = all_gather(dict(facts))
    for name, expected in everybody[0].items():
        odd = [rank for rank, theirs in enumerate(everybody) if theirs.get(name) != expected]
        if odd:
            raise ExactnessError(
                f"The {name} differs between ranks: rank 0 has {expected[:16]}, "
                + ", ".join(f"rank {rank} has {str(everybody[rank].get(name))[:16]}" for rank in odd[:5])
                + ". All ranks must evaluate the same model on the same data."
            )


def all_gather(value: Any) -> list[Any]:
    """Brings one picklable object of every rank to every rank, in the order of the ranks."""
    gathered: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, value, group=_group)
    return gathered


def gather_predictions(local: Predictions) -> Predictions:
    """Brings the predictions of all ranks to rank 0, as compact arrays.

    all_gather_object gives every rank what any rank gives. So they travel in rounds of bounded size, and only rank 0
    keeps what it receives: the memory of the other ranks does not depend on how many examples there are.

    Args:
        local: this rank's predictions, possibly of no example.

    Returns:
        On rank 0 all predictions, in dataset order; elsewhere none.
    """
    counts, leads = all_gather(len(local)), dist.get_rank() == 0
    step = max(1, _ROWS_IN_A_ROUND // len(counts))
    collector = Collector(sum(counts) if leads else 0, local.num_labels, local.problem)
    for start in range(0, max(counts), step):
        for columns in all_gather(local.rows(start, start + step).packed()):
            if leads:
                collector.add(Predictions.unpacked(columns))
    return collector.in_dataset_order()


def sum_over_ranks(local: Totals) -> Totals:
    """Adds the totals of all ranks up; each rank weighs as many samples as it has.

    Dtypes and shapes are pinned (int64 counts, float64 sums), also on a rank without examples.
    """
    reduced = {}
    for name, dtype in (("counts", np.int64), ("confusion", np.int64), ("loss", np.float64), ("errors", np.float64)):
        tensor = torch.from_numpy(np.array(getattr(local, name), dtype=dtype))
        if tensor.numel():  # some problems have no confusion, others no errors; all ranks have the same problem
            dist.all_reduce(tensor, op=dist.ReduceOp.SUM, group=_group)
        reduced[name] = tensor.numpy()
    return replace(local, **reduced)


def sum_vectors(local: torch.Tensor) -> torch.Tensor:
    """Adds a vector of each rank up, such as gradients summed over the rank's examples.

    Args:
        local: float64 of shape [n], the same n on all ranks, on the CPU; it is left as it is.

    Returns:
        The sum, equal on all ranks to the last bit.
    """
    total = local.clone()
    dist.all_reduce(total, op=dist.ReduceOp.SUM, group=_group)
    return total
