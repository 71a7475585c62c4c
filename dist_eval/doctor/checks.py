"""The checks of a single rank.

Each returns its finding, or raises a `Fault` or the original error; `Equal` has values that must be equal on all ranks.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple, cast

from dist_eval.analysis.options import columns_asked_for
from dist_eval.data.readers import open_rows
from dist_eval.distributed.rank_store import Topology
from dist_eval.doctor.config import DoctorConfig
from dist_eval.doctor.findings import Fault
from dist_eval.evaluation.job import Job
from dist_eval.evaluation.kinds import kind_of
from dist_eval.model.base_model_spec import BaseModelSpec, EvalTarget
from dist_eval.process.addresses import address_among, interface_of, interfaces, is_loopback, resolve
from dist_eval.process.files import samples_of
from dist_eval.revisions import HubKind, pin, resolve_commit
from dist_eval.runs.environment import environment
from dist_eval.tables import format_count
from dist_eval.tracking import require_trackers

_LEAST_FREE = 20 << 20


class Equal(NamedTuple):
    """A message, and values by name that should be equal on all ranks."""

    message: str
    values: dict[str, str]


def check_versions() -> Equal:
    """Finds the software versions that results depend on."""
    found = environment()
    versions = {"python": found.python, **{name: str(version) for name, version in found.packages.items()}}
    shown = ", ".join(f"{name} {versions[name]}" for name in ("python", "torch", "petals"))
    source = Path(__file__).parents[1]  # two checkouts may have the same version
    return Equal(shown, {**versions, "the source of dist_eval": sample_digest(*sorted(source.rglob("*.py")))})


def sample_digest(*paths: Path) -> str:
    """Returns a SHA-256 of files' sizes and samples, because reading a large file takes too long for a check."""
    digest = hashlib.sha256()
    for path in paths:
        for sample in samples_of(path):
            digest.update(sample)
    return digest.hexdigest()


def check_space(output: Path) -> str:
    """Checks the free space for results, temporary files and shared memory."""
    existing = next(folder for folder in (output.absolute(), *output.absolute().parents) if folder.exists())
    places = [existing, Path(tempfile.gettempdir()), Path("/dev/shm")]
    free = {folder: shutil.disk_usage(folder).free for folder in places if folder.exists()}
    for folder, size in free.items():
        if size < _LEAST_FREE:
            raise Fault(
                f"Only {size >> 20} MiB are free in {folder}.",
                "Free some, or choose another place: --output for results, TMPDIR for temporary files. Docker gives a "
                "container more shared memory with --shm-size.",
            )
    return f"at least {min(free.values()) / (1 << 30):.1f} GiB free for results, temporary files and shared memory"


def check_names(topology: Topology) -> str:
    """Checks that host names do not resolve to loopback, or not at all, which would isolate ranks on other hosts."""
    head, local = os.environ.get("MASTER_ADDR", ""), interfaces()
    if not os.environ.get("GLOO_SOCKET_IFNAME") and all(map(is_loopback, resolve(topology.host))):
        address = address_among(head, local) or "ADDRESS"
        raise Fault(
            f"The host's own name {_resolution(topology.host)}: others cannot reach it at the address that it "
            "announces.",
            f"There, export GLOO_SOCKET_IFNAME={interface_of(address, local) or 'INTERFACE'}, and start torchrun with "
            f"--local-addr={address}.",
        )
    if all(map(is_loopback, resolve(head))):
        raise Fault(
            f"The rendezvous of the ranks, MASTER_ADDR={head}, {_resolution(head)}.",
            "Name the first host by its IP address.",
        )
    return f"{topology.host} has {', '.join(a for addresses in local.values() for a in addresses)}"


def _resolution(name: str) -> str:
    addresses = resolve(name)
    return f"resolves to {addresses[0]}" if addresses else "is unknown"


def _pin(config: DoctorConfig, kind: HubKind) -> None:
    if kind in config.revisions:
        name, revision = config.revisions[kind]
        pin(kind, name, resolve_commit(kind, name, revision))


def read_model(config: DoctorConfig) -> Job[Any, Any]:
    """Reads the files of base model and checkpoint, and checks that they and the metrics fit together."""
    require_trackers(config.tracker)
    _pin(config, "model")
    job = kind_of(config)(config)
    job.prepare()
    return job


def check_model(config: DoctorConfig, job: Job[Any, Any]) -> Equal:
    """Finds the hashes of base model and checkpoint."""
    digests = {"base model": job.base.digest()}
    if config.generate:
        return Equal("base model can be read", digests)
    target = cast(EvalTarget, job.target)
    if config.prompt:
        words = {**digests, "prompt and label words": target.digest()}
        return Equal("base model, prompt and label words can be read and fit together", words)
    tuned = {**digests, "tuned checkpoint": target.digest()}
    return Equal("base model and tuned checkpoint can be read and fit together", tuned)


def check_dataset(config: DoctorConfig) -> Equal:
    """Opens the dataset and its columns, and hashes it."""
    _pin(config, "dataset")
    asked_for = columns_asked_for(config.slice_by, config.group_column)
    columns = dict.fromkeys([*config.text_column, config.label_column, *asked_for])
    source = open_rows(config.dataset or (), list(columns), subset=config.subset, split=config.split)
    next(iter(source.batches), None)
    paths = [shard.path for shard in source.shards]
    return Equal(f"{source.name} can be read", {"dataset": sample_digest(*paths)} if paths else {})


def check_rows(config: DoctorConfig, job: Job[Any, Any], seconds: float) -> str:
    """Reads texts and labels of all rows, for at most some `seconds`."""
    if (config.limit, config.sample, config.precision) != (None, None, None):
        return "not read, because only a part of them is evaluated, and others may lack a text or label"
    begin, rows = time.monotonic(), 0
    for rows in job.read_rows():
        if time.monotonic() - begin > seconds:
            return f"the first {format_count(rows, 'row has', 'rows have')} usable texts and labels"
    return f"all {format_count(rows, 'row has', 'rows have')} usable texts and labels"


def check_swarm(config: DoctorConfig, topology: Topology, base: BaseModelSpec, sockets: Path) -> str:
    """Joins the swarm, checks that servers hold all blocks and answer this rank, and leaves it."""
    if config.starts_swarm:
        if topology.hosts == 1:
            return "the run starts its own swarm on this host"
        raise Fault(
            "--swarm embedded starts servers that other hosts cannot reach.",
            "Start one with `dist-eval swarm --host ADDRESS`, and name it with --initial-peers.",
        )
    from dist_eval.petals.client.hivemind_compat import prepare_hivemind

    prepare_hivemind(sockets=sockets)
    from dist_eval.petals.client.announcements import mixed_precisions, mixed_versions
    from dist_eval.petals.client.client import join_swarm, leave_swarm, public_peers
    from dist_eval.petals.client.coverage import measure_distances, wait_until_covered
    from dist_eval.petals.client.reachability import CONTACT_SECONDS

    deadline = time.monotonic() + config.check_timeout
    option = "--check-timeout"
    dht = join_swarm(config.initial_peers or public_peers(), config.check_timeout, timeout_option=option)
    try:
        left, blocks = max(1.0, deadline - time.monotonic()), base.config.num_hidden_layers
        coverage = wait_until_covered(
            dht, base.dht_prefix, blocks, left, config=base.config, adapter=base.adapter, timeout_option=option
        )
        seconds = measure_distances(dht, [server.peer_id for server in coverage.online], CONTACT_SECONDS)
    finally:
        leave_swarm(dht)
    for server in coverage.online:
        if seconds[server.peer_id] is None:
            raise Fault(
                f"Server ...{server.peer_id[-8:]} (blocks {server.start}:{server.end}) is announced but does not "
                "answer.",
                "Check which address it announces, and whether this host reaches it.",
            )
    if mixed := mixed_precisions(coverage.online) or mixed_versions(coverage.online):
        raise Fault(mixed, "Start all servers with the same options and versions, if you can.", "warning")
    single = sum(count == 1 for count in coverage.replicas)
    return (
        f"{format_count(len(coverage.online), 'server holds', 'servers hold')} all {format_count(blocks, 'block')} of "
        f"{base.dht_prefix}"
        + (f" ({format_count(single, 'block has', 'blocks have')} no second server)" if single else "")
        + f"; they answer within {1000 * max(filter(None, seconds.values())):.0f} ms"
    )
