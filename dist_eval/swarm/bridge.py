"""Makes Petals 2.2 run on a current hivemind; import this before `petals` or `hivemind`.

hivemind 1.1.12 no longer re-exports at its top level some names that Petals imports from there. They still exist in
their modules, so they are put back. The same bridge serves clients and servers.
"""

from __future__ import annotations

import asyncio
import importlib
import types
from pathlib import Path
from typing import Any

from dist_eval.lifetime import die_with_parent

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

_GARBAGE_COLLECTION = {"GOGC": "1600", "GOMEMLIMIT": "256MiB"}
"""Settings of the daemon's Go runtime: collect when the heap has grown by this many percent, or to this size."""


def import_petals(*, sockets: Path) -> types.ModuleType:
    """Imports Petals with the missing names put back and its daemon's sockets in our folder.

    Args:
        sockets: folder in which the p2p daemon of this process and its clients make their Unix sockets.

    Returns:
        The `petals` package.
    """
    import hivemind

    for module_name, names in _MOVED.items():
        module = importlib.import_module(f"hivemind.{module_name}")
        for name in names:
            if not hasattr(hivemind, name):
                setattr(hivemind, name, getattr(module, name))
    _tame_p2p_daemon(sockets)
    import petals

    return petals


def _tame_p2p_daemon(sockets: Path) -> None:
    """Makes the daemon a good helper of this process.

    Its sockets go to our folder, it dies with the process that started it, and it collects garbage less often: a daemon
    that holds little and passes on megabytes spent half of its processor time on that.
    """
    from hivemind.p2p import p2p_daemon

    p2p_daemon.P2P._UNIX_SOCKET_PREFIX = f"/unix{sockets}/"

    async def create_subprocess_exec(*args: Any, **kwargs: Any) -> asyncio.subprocess.Process:
        kwargs["env"] = {**_GARBAGE_COLLECTION, **kwargs["env"]}
        return await asyncio.subprocess.create_subprocess_exec(*args, preexec_fn=die_with_parent, **kwargs)

    # the module's only use of asyncio.subprocess is to start the daemon
    own_asyncio = types.ModuleType("asyncio")
    own_asyncio.__dict__.update(vars(asyncio))
    own_asyncio.subprocess = types.SimpleNamespace(  # type: ignore[attr-defined]
        **{**vars(asyncio.subprocess), "create_subprocess_exec": create_subprocess_exec}
    )
    p2p_daemon.asyncio = own_asyncio
