"""What servers announce about how they compute, and how it differs within a swarm."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

from dist_eval.results.work import Announcement


def announcement_of(server_info: Any) -> Announcement:
    """Reads what a server announces.

    Args:
        server_info: Petals' `ServerInfo`, as found in the DHT.
    """
    adapters = tuple(server_info.adapters or ())
    return _announcement(server_info.torch_dtype, server_info.quant_type, server_info.version, adapters)


@functools.lru_cache
def _announcement(
    dtype: str | None, quantization: str | None, version: str | None, adapters: tuple[str, ...]
) -> Announcement:
    return Announcement(dtype=dtype, quantization=quantization, version=version, adapters=adapters)


def mixed_precisions(servers: Iterable[Announcement]) -> str:
    """Says which different precisions servers compute in; empty if it is the same one."""
    names = sorted({server.precision for server in servers})
    if len(names) < 2:
        return ""
    return f"Servers compute differently ({', '.join(names)}): results will depend on the routes."


def mixed_versions(servers: Iterable[Announcement]) -> str:
    """Says which different versions of Petals servers run; empty if it is the same one."""
    names = sorted({server.version or "unknown" for server in servers})
    return f"Servers run different versions of Petals ({', '.join(names)})." if len(names) > 1 else ""
