"""The facts that a rank collects for the doctor, and the findings that are derived from those of all ranks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Literal

from pydantic import TypeAdapter

from dist_eval.results.work import Announcement

Level = Literal["fine", "warning", "error"]


@dataclass(frozen=True)
class Finding:
    """A result of a check.

    Attributes:
        level: "error" if the run will fail, or will not be the run that was meant; "warning", or "fine".
        subject: what it is about, a word or two.
        message: what was found.
        advice: what to do about it; empty if nothing.
    """

    level: Level
    subject: str
    message: str
    advice: str = ""


@dataclass(frozen=True)
class Subject:
    """Makes the findings about one thing.

    Attributes:
        name: what they are about, a word or two.
    """

    name: str

    def error(self, message: str, advice: str = "") -> Finding:
        """Returns a finding with which the run will fail, or will not be the run that was meant."""
        return Finding("error", self.name, message, advice)

    def warning(self, message: str, advice: str = "") -> Finding:
        """Returns a finding that the user should know of."""
        return Finding("warning", self.name, message, advice)

    def fine(self, message: str) -> Finding:
        """Returns a finding that nothing is wrong."""
        return Finding("fine", self.name, message)


@dataclass(frozen=True)
class Gpu:
    """A GPU, with its free and total memory in bytes."""

    index: int
    name: str
    free: int
    total: int


@dataclass(frozen=True)
class AnnouncedServer:
    """An online server.

    Attributes:
        peer: its peer ID.
        blocks: its blocks, START:END.
        dtype: dtype that it computes in.
        quantization: how its weights are quantized.
        seconds: how long it takes to answer; None if it does not.
        version: version of Petals.
        adapters: LoRA adapters that it holds.
    """

    peer: str
    blocks: str
    dtype: str | None
    quantization: str | None
    seconds: float | None
    version: str | None = None
    adapters: list[str] = field(default_factory=list)

    @property
    def announced(self) -> Announcement:
        """How it computes."""
        return Announcement(
            dtype=self.dtype, quantization=self.quantization, version=self.version, adapters=tuple(self.adapters)
        )


@dataclass(frozen=True)
class SwarmView:
    """The swarm as a rank sees it.

    Attributes:
        seconds: how long joining it took.
        dht_prefix: name under which the blocks are announced.
        num_blocks: blocks of the model.
        missing: blocks without an online server.
        replicas: number of online servers of each block.
        servers: the online servers.
        adapter_fault: why requests cannot use the adapter that was asked for; empty if they can.
    """

    seconds: float
    dht_prefix: str
    num_blocks: int
    missing: list[int]
    replicas: list[int]
    servers: list[AnnouncedServer]
    adapter_fault: str = ""


@dataclass(frozen=True)
class GroupTimes:
    """The process group as a rank sees it.

    Attributes:
        seconds: how long opening it took.
        members: rank and host of each member; on rank 0 only.
        all_reduce: seconds of this collective.
        all_gather: seconds of this collective.
    """

    seconds: float
    members: list[tuple[int, str]]
    all_reduce: float
    all_gather: float


@dataclass
class RankFacts:
    """The facts that one rank collects; unknown ones are None or empty, and `errors` has the reason.

    Attributes:
        rank: number of this rank.
        local_rank: number of this rank on its host.
        node: number of its host.
        host: name of its host.
        world_size: number of ranks in the group, according to torchrun.
        hosts: number of hosts in the group, according to torchrun.
        scheduler_hosts: number of hosts that the scheduler has allocated, if there is one.
        name_addresses: IP addresses that the host's own name resolves to on this host.
        interfaces: IP addresses by network interface, without loopback.
        gloo_interfaces: GLOO_SOCKET_IFNAME.
        head: MASTER_ADDR.
        head_addresses: IP addresses of the head.
        way_to_head: source address of packets from this host to the head.
        rendezvous: without torchrun, the state of --rendezvous.
        versions: of Python and of the libraries that results depend on; `dist_eval source` is a hash of this package.
        open_files: how many files a rank may have open, with its limit raised as far as possible.
        launcher_files: how many files torchrun, which has the ranks' store, may have open on the first host; None
            without a limit.
        memory: bytes of memory that are available to this host's ranks.
        gpu: the GPU that the rank would use.
        clock: seconds since 1970 at a moment that is the same on all ranks, to about 0.2 s.
        output: the output folder.
        output_free: free bytes in the output folder.
        temporary: folder for temporary files.
        temporary_free: free bytes in the folder for temporary files.
        unseen: ranks whose probes were not seen in the output folder.
        strangers: live probes of another group that checks the same folder, in words.
        lock_of: a rank on another host whose lock in the output folder was tried.
        lock_holds: whether that lock was effective on this host.
        run_status: status of the run in the folder, if any.
        in_use: who holds the folder's lock, if anyone.
        digests: hash by input; equal on all ranks if the inputs are.
        dataset_bytes: size of the dataset, if it consists of files.
        memory_needed: bytes of memory that this rank will need, without `gpu_needed`.
        gpu_needed: bytes that it will need on a GPU.
        servers_needed: bytes that an embedded swarm needs on the leader's host.
        swarm: the swarm as this rank sees it.
        group: the process group as this rank sees it.
        absent: ranks that did not reach the first barrier in time.
        errors: reason of the failure, by failed step.
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
    gpu: Gpu | None = None
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
    swarm: SwarmView | None = None
    group: GroupTimes | None = None
    absent: list[int] = field(default_factory=list)
    errors: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> str:
        """Returns the facts as JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> RankFacts:
        """Reads what `to_json` wrote."""
        return TypeAdapter(cls).validate_json(text)

    @property
    def place(self) -> str:
        """Rank and host, in words."""
        return f"rank {self.rank} on {self.host}"


@dataclass(frozen=True)
class Asked:
    """The properties of the planned run that the findings depend on.

    Attributes:
        expect_hosts: `--expect-hosts`, if given.
        uses_swarm: whether the run sends requests to servers.
        starts_swarm: whether the run starts these servers itself.
        overwrite: whether the run overwrites the output folder.
        check_timeout: time limit of each check, in seconds.
    """

    expect_hosts: int | None = None
    uses_swarm: bool = False
    starts_swarm: bool = False
    overwrite: bool = False
    check_timeout: float = 30.0


def leaders(ranks: Sequence[RankFacts]) -> list[RankFacts]:
    """Returns the first rank of each host."""
    found: dict[int, RankFacts] = {}
    for facts in sorted(ranks, key=lambda facts: facts.rank):
        found.setdefault(facts.node, facts)
    return list(found.values())
