"""torchrun's stores, at one address each.

torch's store listens on all interfaces of a host, and obeys whoever reaches it: it lists and changes what the ranks
agree on, and one of torchrun's rendezvous keeps pickles there. Here a store listens at the address alone by which the
ranks know it: on a single host loopback, on several the address of the first host in the network of the run.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch.distributed import DistNetworkError, TCPStore
from torch.distributed.elastic.rendezvous import c10d_rendezvous_backend, static_tcp_rendezvous
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import DynamicRendezvousHandler

from dist_eval.cluster.hosts import interface_of, interfaces, is_loopback, resolve
from dist_eval.process.patching import patched

_BACKLOG = 4096


@contextmanager
def bound_stores() -> Iterator[None]:
    """Within this context, each store that torchrun opens listens at its own address."""
    with (
        patched(static_tcp_rendezvous, "TCPStore", open_store),
        patched(c10d_rendezvous_backend, "TCPStore", open_store),
        patched(DynamicRendezvousHandler, "_create_tcp_store_server", _open_shared_store),
    ):
        yield


def open_store(
    host_name: str, port: int, world_size: int | None = None, is_master: bool = False, *others: Any, **options: Any
) -> TCPStore:
    """Opens a store with the arguments of `TCPStore`."""
    address = own_address(host_name) if is_master else None
    if address is not None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        try:
            listener = socket.create_server((address, port), family=family, backlog=_BACKLOG)
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno else str(error)
            raise DistNetworkError(f"the store cannot listen at {address}, port {port}: {reason}") from error
        port = listener.getsockname()[1]
        options["master_listen_fd"] = listener.detach()  # the store closes it
    return TCPStore(host_name, port, world_size, is_master, *others, **options)


def _open_shared_store(_: DynamicRendezvousHandler, master_addr: str, master_port: int) -> TCPStore:
    return open_store(master_addr, master_port, is_master=True, multi_tenant=True)


def own_address(host: str) -> str | None:
    """Returns the address of this host by which the others know it; None if it cannot be told.

    That is so if the name leads to loopback here, as Debian and Ubuntu configure a host's own name, to an address that
    this host does not have, such as that of a router, or to several that it has, of which others may know any.
    """
    candidates = resolve(host)
    if host != "localhost" and host not in candidates:
        candidates = [address for address in candidates if not is_loopback(address)]
    local = interfaces()
    own = [address for address in candidates if is_loopback(address) or interface_of(address, local)]
    is_known = len(own) == 1 or all(map(is_loopback, own))  # who comes by loopback resolves the name as it is here
    return own[0] if own and is_known else None
