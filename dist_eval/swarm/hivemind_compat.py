"""Makes Petals' server run on a current hivemind; import this before `petals` or `hivemind`.

hivemind 1.1.12 no longer re-exports some names that Petals imports from its top level. They still exist in their
modules, so they are put back.
"""

from __future__ import annotations

import importlib
import os
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


def prepare_hivemind(*, sockets: Path) -> None:
    """Puts the missing names back, and the daemon's sockets into a given folder.

    Args:
        sockets: folder in which the p2p daemon of this process and its clients create their Unix sockets.
    """
    import hivemind

    for module_name, names in _MOVED.items():
        module = importlib.import_module(f"hivemind.{module_name}")
        for name in names:
            if not hasattr(hivemind, name):
                setattr(hivemind, name, getattr(module, name))
    if "USE_LEGACY_BFLOAT16" not in os.environ:  # servers of Petals send two bytes, not four
        compression: Any = importlib.import_module("hivemind.compression.base")
        compression.USE_LEGACY_BFLOAT16 = False
    patch_p2p_daemon(sockets)
