"""Makes Petals' server run on a current hivemind; import this before `petals` or `hivemind`.

hivemind 1.1.12 no longer re-exports some names that Petals imports from its top level. They still exist in their
modules, and are restored here. The p2p daemon, hivemind's helper process, ends with the process that starts it.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import types
from pathlib import Path
from typing import Any

from dist_eval.process.lifetime import die_with_parent

_MOVED = {
    "p2p": ("P2PContext", "PeerID"),
    "utils.timed_storage": ("MAX_DHT_TIME_DISCREPANCY_SECONDS", "TimedStorage", "get_dht_time"),
    "utils.logging": ("get_logger",),
    "utils.nested": ("nested_flatten", "nested_pack"),
    "utils.serializer": ("MSGPackSerializer",),
    "utils.tensor_descr": ("BatchTensorDescriptor", "TensorDescriptor"),
    "compression.serialization": ("deserialize_tensor_stream", "deserialize_torch_tensor", "serialize_torch_tensor"),
}

# Cores per Go thread of the daemon: with one thread for each of two cores, it spends 40 % of its time on switching
_CORES_PER_THREAD = 4


def prepare_hivemind(*, sockets: Path) -> None:
    """Restores the missing names, and configures this process' p2p daemon.

    `sockets` is the folder for the Unix sockets of the daemon and its clients.
    """
    import hivemind

    for module_name, names in _MOVED.items():
        module = importlib.import_module(f"hivemind.{module_name}")
        for name in names:
            if not hasattr(hivemind, name):
                setattr(hivemind, name, getattr(module, name))
    if "USE_LEGACY_BFLOAT16" not in os.environ:  # Petals' servers send two bytes, not four
        compression: Any = importlib.import_module("hivemind.compression.base")
        compression.USE_LEGACY_BFLOAT16 = False
    _patch_p2p_daemon(sockets)


def _patch_p2p_daemon(sockets: Path) -> None:
    """Sets the daemon's socket folder, ties its lifetime to its parent process, and tunes its Go runtime.

    By default, a daemon that keeps little and forwards megabytes spends half of its CPU time on garbage collection.
    """
    from hivemind.p2p import p2p_daemon

    p2p_daemon.P2P._UNIX_SOCKET_PREFIX = f"/unix{sockets}/"

    async def create_subprocess_exec(*args: Any, **kwargs: Any) -> asyncio.subprocess.Process:
        kwargs["env"] = {**_go_settings(), **kwargs["env"]}
        return await asyncio.subprocess.create_subprocess_exec(*args, preexec_fn=die_with_parent, **kwargs)

    # the module's only use of asyncio.subprocess is to start the daemon
    patched_asyncio = types.ModuleType("asyncio")
    patched_asyncio.__dict__.update(vars(asyncio))
    patched_asyncio.subprocess = types.SimpleNamespace(  # type: ignore[attr-defined]
        **{**vars(asyncio.subprocess), "create_subprocess_exec": create_subprocess_exec}
    )
    p2p_daemon.asyncio = patched_asyncio


def _go_settings() -> dict[str, str]:
    """Returns settings of the daemon's Go runtime: garbage collection (percent, size) and threads."""
    threads = max(1, len(os.sched_getaffinity(0)) // _CORES_PER_THREAD)
    return {"GOGC": "1600", "GOMEMLIMIT": "256MiB", "GOMAXPROCS": str(threads)}
