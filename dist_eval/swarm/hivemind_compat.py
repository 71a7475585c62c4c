"""Makes Petals run on a current hivemind; import this before `petals` or `hivemind`.

hivemind 1.1.12 no longer re-exports some names that Petals imports from its top level. They still exist in their
modules, so they are put back, for clients and servers alike. Petals' own look-up of servers is replaced (see
`dht_records`).
"""

from __future__ import annotations

import importlib
import types
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dist_eval.swarm.p2p_daemon import patch_p2p_daemon

_MOVED = {
    "p2p": ("P2P", "P2PContext", "PeerID"),
    "utils.timed_storage": ("MAX_DHT_TIME_DISCREPANCY_SECONDS", "TimedStorage", "get_dht_time"),
    "utils.logging": ("get_logger",),
    "utils.nested": ("nested_compare", "nested_flatten", "nested_pack"),
    "utils.asyncio": ("anext",),
    "utils.serializer": ("MSGPackSerializer",),
    "utils.tensor_descr": ("BatchTensorDescriptor", "TensorDescriptor"),
    "compression.serialization": (
        "deserialize_tensor_stream",
        "deserialize_torch_tensor",
        "serialize_torch_tensor",
    ),
}

_LOOK_UP_SECONDS = 30.0


def import_petals(*, sockets: Path) -> types.ModuleType:
    """Imports Petals with the missing names put back and its daemon's sockets in a given folder.

    Args:
        sockets: folder in which the p2p daemon of this process and its clients create their Unix sockets.

    Returns:
        The `petals` package.
    """
    import hivemind

    for module_name, names in _MOVED.items():
        module = importlib.import_module(f"hivemind.{module_name}")
        for name in names:
            if not hasattr(hivemind, name):
                setattr(hivemind, name, getattr(module, name))
    patch_p2p_daemon(sockets)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)  # of an assertion in Petals main, where it is not precompiled
        import petals
    _read_announcements_safely()
    return petals


def _read_announcements_safely() -> None:
    """Makes Petals' client find servers by `dht_records`: by itself it fails on a single implausible record."""
    from petals.client.routing import sequence_manager

    sequence_manager.get_remote_module_infos = _module_infos


def _module_infos(dht: Any, uids: Sequence[str], *, active_adapter: str | None, latest: bool) -> list[Any]:
    """Takes the place of `petals.utils.dht.get_remote_module_infos`, where it reads all blocks of a model."""
    from hivemind.p2p import PeerID
    from petals.data_structures import RemoteModuleInfo, ServerInfo, ServerState

    from dist_eval.swarm.dht_records import read_blocks

    prefix, _, first = uids[0].rpartition(".")
    records = read_blocks(dht, prefix, int(first) + len(uids), _LOOK_UP_SECONDS).blocks[int(first) :]
    return [
        RemoteModuleInfo(
            uid,
            {
                PeerID.from_base58(peer): ServerInfo(**{**dict(found), "state": ServerState[found.state.upper()]})
                for peer, found in servers.items()
                if active_adapter is None or active_adapter in found.adapters
            },
        )
        for uid, servers in zip(uids, records, strict=True)
    ]
