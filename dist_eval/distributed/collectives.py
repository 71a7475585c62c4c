"""Collectives between ranks, in a gloo process group that is opened after the model is built.

Ranks communicate only here and in `rank_store`, which passes small values between them without a group.
Gathered objects are pickles, and gloo's connections have neither authentication nor encryption: a rank trusts any peer
that reaches its port while the group opens. On a single host, the port is on loopback.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from dist_eval.data.collector import Collector, Columns, narrowed, row_bytes, rows_in
from dist_eval.distributed.rank_store import RankStore, Topology
from dist_eval.errors import ExactnessError, LostRankError, RunError, one_line
from dist_eval.process.files import allow_many_files
from dist_eval.process.patching import environment_with

# Size of a round of gathered rows: maximum for all ranks together, which bounds memory; and minimum for each rank,
# because a round has a fixed cost
_BYTES_IN_A_ROUND, _BYTES_OF_A_RANK = 1 << 22, 1 << 15

_MOST_DENSE_CELLS = 1 << 20  # larger sparse arrays are sent as such

# Maximum wait for another rank in a group that is opened for one call; if a rank dies, torchrun ends the others
_CALL_SECONDS = 6 * 3600.0

# Maximum wait for all ranks to make a call, because some programs make it on one rank only, by mistake
_BARRIER_SECONDS = 1800.0

# Maximum time for a failing rank to report its error, because it leaves the swarm first
_ROOT_CAUSE_SECONDS, _POLL_SECONDS = 15.0, 0.1

# Words in torch's messages for a collective that lost its connection; these errors have no type of their own
_LOST_CONNECTION = ("gloo", "connection", "socket", "timed out")

# Environment variable: names of the network interfaces that gloo listens on, separated by commas
_INTERFACES = "GLOO_SOCKET_IFNAME"

_group: dist.ProcessGroup | None = None  # The group for collectives, if it is not the default group
_calls = 0


@contextmanager
def group_of_program() -> Iterator[Topology]:
    """Uses the program's process group, or opens one within the context; yields this process's place among the ranks.

    Every rank calls it. Collectives use gloo, even if the program's own group is for GPUs.
    """
    global _group, _calls
    if not dist.is_initialized():
        require_known_interfaces()
        topology, _calls = Topology.from_environment(), _calls + 1
        rank_store = RankStore(topology, f"call-{_calls}")
        rank_store.barrier("in the same call", _BARRIER_SECONDS)
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
    """Opens the gloo process group of all ranks within the context.

    A collective waits at most `timeout` seconds for another rank. Open the group only after starting everything that
    forks (the swarm's DHT), because a fork would inherit its sockets.
    """
    allow_many_files()  # each rank connects to every other
    with _interface_of(topology):
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


def _interface_of(topology: Topology) -> AbstractContextManager[None]:
    """Makes gloo listen only on loopback if all ranks are on one host and the user chose no interface."""
    if topology.hosts > 1 or os.environ.get(_INTERFACES):
        return nullcontext()
    return environment_with(_INTERFACES, "lo")  # otherwise on the address of the host's name


def require_known_interfaces() -> None:
    """Checks the names in GLOO_SOCKET_IFNAME early; gloo uses them only after the model is loaded."""
    known = [name for _, name in socket.if_nameindex()]
    unknown = [name for name in os.environ.get(_INTERFACES, "").split(",") if name and name not in known]
    if unknown:
        raise RunError(
            f"{_INTERFACES} names {', '.join(unknown)}, but {socket.gethostname()} has no such network interface. Set "
            f"names, not patterns. The interfaces are {', '.join(known)}."
        )


@contextmanager
def explaining_lost_ranks(
    topology: Topology, rank_store: RankStore, suspicion: Callable[[], str] = lambda: ""
) -> Iterator[None]:
    """Waits for the rank that caused a failure to report before raising LostRankError.

    To the other ranks, a failing rank looks like a lost connection. The message includes `suspicion`, which describes
    the rank that has stopped sending heartbeats; empty if unknown.
    """
    try:
        yield
    except RuntimeError as error:
        if topology.world_size == 1 or not any(word in str(error).lower() for word in _LOST_CONNECTION):
            raise
        deadline = time.monotonic() + _ROOT_CAUSE_SECONDS
        while time.monotonic() < deadline and not suspicion() and not rank_store.failure():
            time.sleep(_POLL_SECONDS)
        raise LostRankError(
            f"Rank {topology.rank} on {topology.host} lost contact with the other ranks ({one_line(error)}): "
            f"{suspicion() or 'one of them may have ended.'}"
        ) from error


def require_agreement(facts: Mapping[str, str]) -> None:
    """Checks that values are equal on all ranks, such as the hash of the tuned weights; every rank calls it.

    All ranks have the same names. If a value differs, every rank raises an ExactnessError that names it and the ranks.
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
    """Gathers one picklable object from every rank on every rank, in rank order."""
    gathered: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, value, group=_group)
    return gathered


def of_leader(value: Any) -> Any:
    """Returns rank 0's picklable object on every rank; other ranks' values are ignored."""
    shared = [value]
    dist.broadcast_object_list(shared, src=0, group=_group)
    return shared[0]


def gather_columns(local: Columns) -> dict[str, np.ndarray]:
    """Returns the rows of all ranks on rank 0, sorted by the column "index", and none on others; every rank calls it.

    Names, dtypes and shapes of a row are the same on all ranks, also on those without rows. The arrays are compact.

    all_gather_object sends every rank's object to every rank. So rows are sent in rounds of bounded size, and only rank
    0 keeps them: the memory of the other ranks does not grow with the number of examples. Rank 0 does not send its own
    rows, which after a restart may be nearly all.
    """
    counts, leads = all_gather(rows_in(local)), dist.get_rank() == 0
    collector, step = Collector(sum(counts) if leads else 0, local), _rows_of_a_rank(len(counts), row_bytes(local))
    if leads:
        collector.add(local)
        local = narrowed(local, 0, 0)
    for start in range(0, max(counts[1:], default=0), step):
        for part in all_gather(narrowed(local, start, start + step)):
            if leads:
                collector.add(part)
    return collector.sorted_by("index")


def _rows_of_a_rank(ranks: int, in_a_row: int) -> int:
    """Returns the number of rows that each rank sends in a round, given the bytes of a row."""
    return max(1, max(_BYTES_IN_A_ROUND // ranks, _BYTES_OF_A_RANK) // in_a_row)


def broadcast(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Sends rank 0's chunks to all ranks and ignores those of others; every rank calls it and reads all chunks."""
    leads, source = dist.get_rank() == 0, iter(chunks)
    while True:
        if (part := of_leader(next(source, None) if leads else None)) is None:
            return
        yield part


def all_reduce_min(local: np.ndarray) -> np.ndarray:
    """Returns the elementwise minimum over all ranks; `local` is int32, of the same shape on all, and not changed."""
    tensor = torch.from_numpy(local.astype(np.int32))
    if tensor.numel():
        dist.all_reduce(tensor, op=dist.ReduceOp.MIN, group=_group)
    return tensor.numpy()


def sum_arrays(local: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the elementwise sums of the arrays of all ranks by name, sparse ones in rows (CSR); every rank calls it.

    Names, dtypes (int64 or float64) and shapes are the same on all ranks, even without examples. The arrays are not
    changed. A matrix may be a SciPy sparse array; large ones are sent as such.
    """
    return {name: _sum(array) if isinstance(array, np.ndarray) else _sum_sparse(array) for name, array in local.items()}


def _sum(local: np.ndarray) -> np.ndarray:
    return all_reduce_sum(torch.from_numpy(local)).numpy() if local.size else local


def _sum_sparse(local: Any) -> Any:
    from scipy import sparse

    rows, columns = local.shape
    if rows * columns <= _MOST_DENSE_CELLS:
        return sparse.csr_array(_sum(local.toarray()))
    cells = local.tocoo()
    places = torch.from_numpy(np.stack([cells.row, cells.col]).astype(np.int64))
    tensor = torch.sparse_coo_tensor(places, torch.from_numpy(cells.data), cells.shape, check_invariants=True)
    tensor = tensor.coalesce()
    dist.all_reduce(tensor, op=dist.ReduceOp.SUM, group=_group)
    tensor = tensor.coalesce()
    return sparse.csr_array((tensor.values().numpy(), tuple(tensor.indices().numpy())), shape=local.shape)


def all_reduce_sum(local: torch.Tensor) -> torch.Tensor:
    """Returns the sum of one tensor of each rank, such as gradients summed over the rank's examples.

    The tensors are float64 or int64, of the same shape on all ranks, on the CPU, and not changed. The sum has their
    shape and dtype, and is bit-identical on all ranks.
    """
    total = local.clone()
    dist.all_reduce(total, op=dist.ReduceOp.SUM, group=_group)
    return total
