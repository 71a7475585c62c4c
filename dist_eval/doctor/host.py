"""Facts about a rank's host: names, interfaces, versions, limits, memory. Needs no other rank."""

from __future__ import annotations

import hashlib
import os
import resource
import socket
from collections.abc import Mapping
from pathlib import Path

from dist_eval.cluster.hosts import address_towards, interfaces, is_loopback, outward, resolve
from dist_eval.doctor.facts import RankFacts
from dist_eval.errors import os_reason
from dist_eval.process.files import most_open_files

_CGROUP = Path("/sys/fs/cgroup")
_UNLIMITED = 1 << 60
_SCHEDULER_HOSTS = ("SLURM_JOB_NUM_NODES", "SLURM_NNODES", "PET_NNODES")


def collect_host(facts: RankFacts, environment: Mapping[str, str] = os.environ) -> None:
    """Records names, interfaces and limits.

    Args:
        facts: where to record them.
        environment: the environment variables of this process.
    """
    facts.name_addresses = resolve(facts.host)
    facts.interfaces = outward(interfaces())
    facts.gloo_interfaces = environment.get("GLOO_SOCKET_IFNAME") or None
    facts.head = environment.get("MASTER_ADDR")
    if facts.head:
        facts.head_addresses = resolve(facts.head)
        ways = [address_towards(a) for a in facts.head_addresses if not is_loopback(a)]
        facts.way_to_head = next((way for way in ways if way is not None), None)
    counts = [environment[name] for name in _SCHEDULER_HOSTS if environment.get(name, "").isdigit()]
    facts.scheduler_hosts = int(counts[0]) if counts else None
    facts.open_files = most_open_files()
    facts.launcher_files = _limit_of_torchrun() if "TORCHELASTIC_RUN_ID" in environment and facts.rank == 0 else None
    facts.memory = available_memory()


def _limit_of_torchrun() -> int | None:
    """Returns the limit of open files of torchrun, which has the ranks' store and, unlike a rank, does not raise it."""
    try:
        limit, _ = resource.prlimit(os.getppid(), resource.RLIMIT_NOFILE)
    except OSError:  # another user's process, or ended
        return None
    return None if limit == resource.RLIM_INFINITY else limit


def collect_versions(facts: RankFacts) -> None:
    """Records the versions of Python and of the libraries that results depend on."""
    from dist_eval.runs.environment import environment

    found = environment()
    facts.versions = {"python": found.python, **found.packages, "dist_eval source": source_digest()}


def source_digest() -> str:
    """Returns a hash of this package's modules: two checkouts may have the same version."""
    root, digest = Path(__file__).parents[1], hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def available_memory() -> int:
    """Returns the bytes that new processes on this host may use: free memory, or what a control group has left."""
    import psutil

    return min([int(psutil.virtual_memory().available), *_left_in_control_groups()])


def _left_in_control_groups() -> list[int]:
    """Returns the bytes that each limiting control group of this process has left.

    Source: "Memory Interface Files" in the kernel's admin-guide/cgroup-v2, and admin-guide/cgroup-v1/memory.
    """
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        _, controllers, place = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        root = _CGROUP / controllers
        limit_file, used_file = ("memory.limit_in_bytes", "memory.usage_in_bytes")
        if not controllers:
            limit_file, used_file = ("memory.max", "memory.current")
        inner = Path(place.strip("/"))
        for folder in (root / inner, *(root / parent for parent in inner.parents)):
            try:
                limit, used = (int((folder / name).read_text()) for name in (limit_file, used_file))
            except (OSError, ValueError):  # not mounted here, or "max"
                continue
            if limit < _UNLIMITED:
                found.append(max(0, limit - used + _file_cache(folder)))
    return found


def _file_cache(folder: Path) -> int:
    """Returns the bytes of file cache that a control group is charged with, but that the kernel can reclaim."""
    try:
        entries = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return 0
    return int(entries.get("inactive_file", 0))


def probe_rendezvous(host: str, port: int, timeout: float) -> str:
    """Checks whether this host reaches the planned rendezvous.

    Args:
        host: name or address of the rendezvous.
        port: its port.
        timeout: seconds to wait for a connection.

    Returns:
        "listening" if a process is listening there already, "free" if the address is this host's and its port is free,
        "reachable" if its host answers but nothing is listening there yet, else "error: " and the reason.
    """
    addresses = resolve(host)
    if not addresses:
        return f"error: the name {host} is unknown here"
    try:
        socket.create_connection((host, port), timeout).close()
        return "listening"
    except ConnectionRefusedError:
        pass
    except OSError as error:
        return f"error: {os_reason(error)}"
    family = socket.AF_INET6 if ":" in addresses[0] else socket.AF_INET
    with socket.socket(family) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((addresses[0], port))
        except OSError:
            return "reachable"
    return "error: loopback" if is_loopback(addresses[0]) else "free"
