"""What the ranks tell each other; the only module that imports torch.distributed.

Two means, in this order:

1. The *store* that torchrun keeps (or one of our own without torchrun). It works before a process group exists, and
   opens no connection that outlives a call, so that processes forked meanwhile inherit none. It carries the swarm's
   peers, the place of the tokenized data, progress, and who reports an error.
2. The *process group* (gloo), opened after the model is built, for the exact exchange at the end.
"""

from __future__ import annotations

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

from dist_eval.errors import ExactnessError, RunError
from dist_eval.metrics import Totals
from dist_eval.predictions import Predictions

_CONNECT_SECONDS, _POLL_SECONDS = 60.0, 0.1
_FAILURE = "failure"


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
        """Reads torchrun's variables; without them the process is the only rank."""
        world_size = int(environment.get("WORLD_SIZE", 1))
        return cls(
            rank=int(environment.get("RANK", 0)),
            world_size=world_size,
            local_rank=int(environment.get("LOCAL_RANK", 0)),
            node=int(environment.get("GROUP_RANK", 0)),
            hosts=int(environment.get("GROUP_WORLD_SIZE", 1)),
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
        if launch.is_leader and self._own is None and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
            self._server = _tcp_store(is_master=True, timeout=_CONNECT_SECONDS)  # launched by hand: nobody keeps one

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
        yield dist.PrefixStore(self._prefix, _tcp_store(is_master=False, timeout=timeout))

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
        raise RunError(
            f"Rank {self._launch.rank} on {self._launch.host} waited {timeout:g} s in vain for {key!r} "
            "from another rank."
        )

    def require_no_failure(self, store: dist.Store) -> None:
        """Raises a `RunError` if a rank has failed; asked of an open connection while waiting for others."""
        if store.check([_FAILURE]):
            raise RunError(f"Rank {self._launch.rank} gave up, because another rank failed.")

    def claim_failure(self) -> bool:
        """Returns whether this rank is the first to fail, the one that speaks for all; the others stop waiting."""
        with self.connect() as store:
            return store.add(_FAILURE, 1) == 1


def _tcp_store(*, is_master: bool, timeout: float) -> dist.Store:
    try:
        host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    except (KeyError, ValueError) as error:
        raise RunError(f"The environment names several ranks but not {error}: start the run with torchrun.") from error
    try:
        return dist.TCPStore(
            host, port, is_master=is_master, timeout=timedelta(seconds=timeout), wait_for_workers=False
        )
    except (RuntimeError, ValueError) as error:
        raise RunError(f"The store at MASTER_ADDR={host} MASTER_PORT={port} does not answer: {error}") from error


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
    dist.all_gather_object(gathered, value)
    return gathered


def gather_predictions(local: Predictions) -> Predictions:
    """Brings the predictions of all ranks to every rank, as compact arrays.

    Args:
        local: this rank's predictions, possibly of no example.

    Returns:
        All predictions, in dataset order.
    """
    columns = {name: getattr(local, name) for name in Predictions.__dataclass_fields__}
    parts = [Predictions(**theirs) for theirs in all_gather(columns)]
    return Predictions.concatenate(parts).in_dataset_order()


def sum_over_ranks(local: Totals) -> Totals:
    """Adds the totals of all ranks up; each rank weighs as many samples as it has.

    Dtypes and shapes are pinned (int64 counts, float64 sums), also on a rank without examples.
    """
    reduced = {}
    for name, dtype in (("counts", np.int64), ("confusion", np.int64), ("loss", np.float64)):
        tensor = torch.from_numpy(np.array(getattr(local, name), dtype=dtype))
        dist.all_reduce(tensor, op=dist.ReduceOp.SUM)
        reduced[name] = tensor.numpy()
    return replace(local, **reduced)
