"""The exchange between ranks, in a process group (gloo) that is opened after the model is built.

With `rank_store`, through which ranks tell each other small things before and beside it, the only module that imports
torch.distributed.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from dist_eval.distributed.rank_store import RankStore, Topology
from dist_eval.errors import ExactnessError, LostRankError, first_line
from dist_eval.metrics.computing import Totals
from dist_eval.metrics.predictions import Collector, Predictions
from dist_eval.process.files import allow_many_files

_BYTES_IN_A_ROUND, _BYTES_OF_A_RANK = 1 << 22, 1 << 15
"""Of predictions of all ranks together that travel at a time, which bounds what a rank has to hold of the others'; and
of each rank at least, because a round takes its time however little travels."""

_CALL_SECONDS = 6 * 3600.0
"""Longest wait for another rank in a group that is opened for one call; if a rank dies, torchrun ends the others."""

_MEETING_SECONDS = 1800.0
"""Longest wait for all ranks to make a call, which some programs make on one rank only."""

_LAST_WORDS_SECONDS, _POLL_SECONDS = 15.0, 0.1
"""What a rank that fails may need until it says so: it leaves the swarm first."""

_BROKEN_OFF = ("gloo", "connection", "socket", "timed out")
"""What torch says when an exchange between ranks breaks off; its errors have no kind of their own."""

_group: dist.ProcessGroup | None = None
"""What collectives go through, if it is not the default group."""
_calls = 0


@contextmanager
def group_of_program() -> Iterator[Topology]:
    """Uses the process group that the program has opened, or opens one for the time of the context.

    Objects travel through gloo, also where the program's own group is for GPUs. Every rank calls it.

    Yields:
        Where this process stands.

    Raises:
        RunError: the environment names several ranks, but torchrun's store cannot be reached, or they did not all come.
    """
    global _group, _calls
    if not dist.is_initialized():
        topology, _calls = Topology.from_environment(), _calls + 1
        rank_store = RankStore(topology, f"call-{_calls}")
        rank_store.barrier("in the same call", _MEETING_SECONDS)
        with process_group(topology, rank_store, _CALL_SECONDS):
            yield topology
        return
    before = _group
    own: Any = None
    if dist.get_backend() != "gloo":
        own = dist.new_group(backend="gloo", timeout=timedelta(seconds=_CALL_SECONDS))
    _group = own or before
    try:
        yield Topology(rank=dist.get_rank(), world_size=dist.get_world_size(), host=socket.gethostname())
    finally:
        _group = before
        if own is not None:
            dist.destroy_process_group(own)


@contextmanager
def process_group(topology: Topology, rank_store: RankStore, timeout: float) -> Iterator[None]:
    """Opens the gloo process group of all ranks for the time of the context.

    Open it only after everything that forks (the swarm's DHT) has been started: a fork would inherit its sockets.

    Args:
        topology: where this process stands.
        rank_store: the ranks' store.
        timeout: seconds after which a collective that waits for another rank fails.
    """
    allow_many_files()  # each rank is connected with every other one
    dist.init_process_group(
        "gloo",
        store=rank_store.store_of_group(timeout),
        rank=topology.rank,
        world_size=topology.world_size,
        timeout=timedelta(seconds=timeout),
    )
    try:
        yield
    finally:
        dist.destroy_process_group()


@contextmanager
def explaining_lost_ranks(
    topology: Topology, rank_store: RankStore, suspicion: Callable[[], str] = lambda: ""
) -> Iterator[None]:
    """Lets the rank speak that knows why an exchange broke off: to the others its end looks like a lost connection.

    Args:
        topology: where this process stands.
        rank_store: the ranks' store.
        suspicion: returns who is not heard of any more, if that is known.

    Raises:
        LostRankError: the exchange with another rank broke off; the message says who is suspected.
    """
    try:
        yield
    except RuntimeError as error:
        if topology.world_size == 1 or not any(word in str(error).lower() for word in _BROKEN_OFF):
            raise
        deadline = time.monotonic() + _LAST_WORDS_SECONDS
        while time.monotonic() < deadline and not suspicion() and not rank_store.failure():
            time.sleep(_POLL_SECONDS)
        raise LostRankError(
            f"Rank {topology.rank} on {topology.host} cannot go on with the other ranks ({first_line(error)}): "
            f"{suspicion() or 'one of them may have ended.'}"
        ) from error


def require_agreement(facts: Mapping[str, str]) -> None:
    """Compares facts that must be equal on all ranks, such as the hash of the tuned weights.

    Args:
        facts: value by name, the same names on all ranks.

    Raises:
        ExactnessError: a value differs; the message names the fact and the ranks, on every rank.
    """
    everybody = all_gather(dict(facts))
    for name, expected in everybody[0].items():
        differing = [rank for rank, theirs in enumerate(everybody) if theirs.get(name) != expected]
        if differing:
            raise ExactnessError(
                f"The {name} differs between ranks: rank 0 has {expected[:16]}, "
                + ", ".join(f"rank {rank} has {str(everybody[rank].get(name))[:16]}" for rank in differing[:5])
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
    keeps what it receives: the memory of the other ranks does not depend on how many examples there are. Rank 0's own
    ones, which after a restart may be nearly all, do not travel.

    Args:
        local: this rank's predictions, possibly of no example.

    Returns:
        On rank 0 all predictions, in dataset order; elsewhere none.
    """
    counts, leads = all_gather(len(local)), dist.get_rank() == 0
    collector = Collector(sum(counts) if leads else 0, local.num_labels, local.problem)
    if leads:
        collector.add(local)
        local = local.rows(0, 0)
    step = _rows_of_a_rank(len(counts), local.num_labels)
    for start in range(0, max(counts[1:], default=0), step):
        for columns in all_gather(local.rows(start, start + step).packed()):
            if leads:
                collector.add(Predictions.unpacked(columns))
    return collector.in_dataset_order()


def _rows_of_a_rank(ranks: int, num_labels: int) -> int:
    """Returns how many predictions each rank gives in a round."""
    in_a_row = 24 + 8 * num_labels  # at most: labels may be numbers, too
    return max(1, max(_BYTES_IN_A_ROUND // ranks, _BYTES_OF_A_RANK) // in_a_row)


def least_over_ranks(local: np.ndarray) -> np.ndarray:
    """Returns the least of all ranks' values at each place.

    Args:
        local: int32 of any shape, the same on all ranks; it is left as it is.
    """
    tensor = torch.from_numpy(local.astype(np.int32))
    if tensor.numel():
        dist.all_reduce(tensor, op=dist.ReduceOp.MIN, group=_group)
    return tensor.numpy()


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
