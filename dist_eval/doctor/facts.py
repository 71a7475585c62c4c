"""What the doctor knows: the facts that a rank collects, and the findings that follow from everybody's."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Level = Literal["fine", "warning", "error"]


@dataclass(frozen=True)
class Finding:
    """Something that was found.

    Attributes:
        level: "error" if it will make the run fail, or be another run than was meant.
        subject: what it is about, a word or two.
        message: what was found.
        advice: what to do about it; empty where it is fine.
    """

    level: Level
    subject: str
    message: str
    advice: str = ""


@dataclass
class RankFacts:
    """What one rank found out; what it could not find out is None or empty, and the reason is in `errors`.

    Attributes:
        rank: its number.
        local_rank: its number on its host.
        node: number of its host.
        host: name of its host.
        world_size: ranks of the group, as torchrun says.
        hosts: hosts of the group, as torchrun says.
        scheduler_hosts: hosts that the scheduler has given, if there is one.
        name_addresses: IP addresses that the host's name has on the host itself.
        interfaces: IP addresses by network interface, loopback left out.
        gloo_interfaces: GLOO_SOCKET_IFNAME.
        head: MASTER_ADDR.
        head_addresses: IP addresses of it.
        way_to_head: address of this host that packets to it carry.
        rendezvous: without torchrun, what there is at --rendezvous.
        versions: of Python and of the libraries that results depend on; `dist_eval source` is a hash of our code.
        open_files: how many files a rank may have open; it raises its limit as far as the system lets it.
        launcher_files: the same of torchrun on the first host, which has the ranks' store; None for no limit.
        memory: bytes of memory that are available to this host's ranks.
        gpu: index, name, free and total bytes of the GPU that the rank would use.
        clock: seconds since 1970 at a moment that is the same on all ranks, to about 0.2 s.
        output: the output folder.
        output_free: bytes free there.
        temporary: folder for temporary files.
        temporary_free: bytes free there.
        unseen: ranks whose probes were not seen in the output folder.
        strangers: live probes of another group that checks the same folder, in words.
        lock_of: a rank on another host whose lock in the output folder was tried.
        lock_holds: whether it held.
        run_status: status of the run that the folder holds, if any.
        in_use: who holds the folder's lock, if anybody.
        digests: hash by input; the same on all ranks if the inputs are.
        dataset_bytes: size of the dataset, if it is a file.
        memory_needed: bytes that this rank will need, on a GPU for `gpu_needed`.
        gpu_needed: bytes that it will need on a GPU.
        servers_needed: bytes that an embedded swarm needs on the leader's host.
        swarm: {seconds, dht_prefix, num_blocks, missing, replicas, servers: [{peer, blocks, dtype, state, seconds}]}.
        group: {seconds, members: [[rank, host]], all_reduce, all_gather}, in seconds; members on rank 0 only.
        absent: ranks that this one waited for in vain.
        errors: for each check that failed, why.
    """

    rank: int = 0
    local_rank: int = 0
    node: int = 0
    host: str = ""
    world_size: int = 1
    hosts: int = 1
    scheduler_hosts: int | None = None
    name_addresses: list[str] = field(default_factory=list)
    interfaces: dict[str, list[str]] = field(default_factory=dict)
    gloo_interfaces: str | None = None
    head: str | None = None
    head_addresses: list[str] = field(default_factory=list)
    way_to_head: str | None = None
    rendezvous: str | None = None
    versions: dict[str, str | None] = field(default_factory=dict)
    open_files: int | None = None
    launcher_files: int | None = None
    memory: int | None = None
    gpu: dict[str, Any] | None = None
    clock: float | None = None
    output: str = ""
    output_free: int | None = None
    temporary: str = ""
    temporary_free: int | None = None
    unseen: list[int] | None = None
    strangers: list[str] = field(default_factory=list)
    lock_of: int | None = None
    lock_holds: bool | None = None
    run_status: str | None = None
    in_use: str | None = None
    digests: dict[str, str] = field(default_factory=dict)
    dataset_bytes: int | None = None
    memory_needed: int | None = None
    gpu_needed: int | None = None
    servers_needed: int | None = None
    swarm: dict[str, Any] | None = None
    group: dict[str, Any] | None = None
    absent: list[int] = field(default_factory=list)
    errors: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> str:
        """Returns the facts as JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> RankFacts:
        """Reads what `to_json` wrote."""
        return cls(**json.loads(text))

    @property
    def place(self) -> str:
        """Rank and host, in words."""
        return f"rank {self.rank} on {self.host}"


@dataclass(frozen=True)
class Asked:
    """What a run is going to be, as far as the findings depend on it.

    Attributes:
        expect_hosts: hosts that it should have, if that was said.
        uses_swarm: whether requests go to servers.
        starts_swarm: whether the run starts them itself.
        overwrite: whether the output folder is to be begun afresh.
        check_timeout: seconds that each check had.
    """

    expect_hosts: int | None = None
    uses_swarm: bool = False
    starts_swarm: bool = False
    overwrite: bool = False
    check_timeout: float = 30.0


def leaders(ranks: list[RankFacts]) -> list[RankFacts]:
    """Returns one rank of each host, the first."""
    found: dict[int, RankFacts] = {}
    for one in sorted(ranks, key=lambda facts: facts.rank):
        found.setdefault(one.node, one)
    return list(found.values())
