"""Derives findings from facts about hosts: names and interfaces, clocks, versions, memory, limits. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from dist_eval.cluster.hosts import interface_of, is_loopback
from dist_eval.doctor.facts import Asked, Finding, RankFacts, Subject, leaders
from dist_eval.tables import format_count

_NAMES = Subject("names")
_CLOCKS = Subject("clocks")
_VERSIONS = Subject("versions")
_OPEN_FILES = Subject("open files")
_MEMORY = Subject("memory")

_CLOCK_WARNING, _CLOCK_ERROR = 1.0, 3.0
"""In seconds. Servers refuse clients beyond the second one (`MAX_DHT_TIME_DISCREPANCY_SECONDS` of hivemind 1.1.12)."""

_FILES_OF_A_PROCESS, _FILES_FOR_A_RANK, _FILES_OF_STORE_FOR_A_RANK = 256, 1, 3
"""Open files of a process: libraries and sockets of the swarm; gloo's for each rank; those of torchrun's store for each
rank."""

_FULL = 0.9
_DIFFERENCES_SHOWN = 5


def check_names(ranks: Sequence[RankFacts], asked: Asked) -> Iterator[Finding]:
    """Finds host names that resolve to loopback, interfaces that do not exist, and a head that hosts cannot resolve."""
    hosts = leaders(ranks)
    # only one of two ranks connects to the other, so a wrong address may never be used
    came_together = all(facts.group is not None for facts in ranks)
    faults = [finding for facts in hosts if facts.hosts > 1 for finding in _name_faults(facts, came_together)]
    faults += [finding for facts in hosts for finding in _rendezvous_faults(facts)]
    yield from faults
    twice = sorted({facts.host for facts in hosts if [other.host for other in hosts].count(facts.host) > 1})
    if twice:
        yield _NAMES.warning(
            f"Several hosts are called {', '.join(twice)}: messages and results.json cannot tell them apart.",
            "Give them different host names.",
        )
    if not faults and not twice:
        yield _NAMES.fine("; ".join(_way(facts) for facts in hosts[:_DIFFERENCES_SHOWN]))


def _name_faults(facts: RankFacts, came_together: bool) -> Iterator[Finding]:
    if "host" in facts.errors:
        return
    fault = _NAMES.warning if came_together else _NAMES.error
    suggestion = _suggested_interface(facts)
    all_the_same = " They came together this time, but need not with other hosts." if came_together else ""
    advice = f"On {facts.host}: export GLOO_SOCKET_IFNAME={suggestion or 'INTERFACE'}"
    address = next(iter(facts.interfaces.get(suggestion or "", ())), "ADDRESS")
    chosen = [name for name in (facts.gloo_interfaces or "").split(",") if name]
    unknown = [name for name in chosen if name not in facts.interfaces]
    if unknown:
        yield fault(
            f"{facts.host} has no interface {', '.join(unknown)} with an address that others reach, which "
            f"GLOO_SOCKET_IFNAME names. It has {_listed(facts)}.",
            advice + ".",
        )
    elif not chosen and (not facts.name_addresses or all(map(is_loopback, facts.name_addresses))):
        leads = f"leads to {facts.name_addresses[0]}" if facts.name_addresses else "is unknown"
        yield fault(
            f"On {facts.host} the host's own name {leads}: others cannot reach it at the address that it announces."
            + all_the_same,
            f"{advice}, and start torchrun there with --local-addr={address}.",
        )
    if facts.head and not facts.head_addresses:
        yield fault(
            f"{facts.host} does not know {facts.head}, the rendezvous of the ranks (MASTER_ADDR).",
            "Name the first host by its IP address.",
        )
    elif facts.head and all(map(is_loopback, facts.head_addresses)):
        yield fault(
            f"On {facts.host} the rendezvous of the ranks, MASTER_ADDR={facts.head}, leads to "
            f"{facts.head_addresses[0]}: each host would connect to itself only." + all_the_same,
            "Name the first host by its IP address, and start torchrun on it with --local-addr=ADDRESS.",
        )


def _suggested_interface(facts: RankFacts) -> str | None:
    """Returns the interface over which the host reaches the head; on the head itself, the one with its address."""
    if facts.way_to_head and (name := interface_of(facts.way_to_head, facts.interfaces)):
        return name
    return next(iter(facts.interfaces), None)


def _rendezvous_faults(facts: RankFacts) -> Iterator[Finding]:
    state = facts.rendezvous or ""
    if state == "error: loopback":
        yield _NAMES.error(
            f"On {facts.host} the name of the --rendezvous leads to a loopback address: each host would connect to "
            "itself.",
            "Give the IP address of the first host.",
        )
    elif state.startswith("error: "):
        yield _NAMES.error(
            f"{facts.host} cannot reach the --rendezvous: {state.removeprefix('error: ')}.",
            "Check the address, the route and the firewall between the hosts.",
        )
    elif state == "listening":
        yield _NAMES.warning(
            f"Seen from {facts.host}, a process is listening at the --rendezvous already.",
            "If that is not the first host's torchrun, choose another port.",
        )


def _way(facts: RankFacts) -> str:
    if facts.rendezvous == "free":
        return f"the --rendezvous is on {facts.host} and free"
    if facts.rendezvous == "reachable":
        return f"{facts.host} reaches the host of the --rendezvous"
    addresses = [f"{a} ({name})" for name, addresses in facts.interfaces.items() for a in addresses]
    return f"{facts.host} has {', '.join(addresses[:3]) or 'loopback only'}"


def _listed(facts: RankFacts) -> str:
    return ", ".join(f"{name} ({', '.join(a)})" for name, a in facts.interfaces.items()) or "none"


def check_clocks(ranks: Sequence[RankFacts], asked: Asked) -> Iterator[Finding]:
    """Finds clocks that differ between hosts."""
    known = [(facts, facts.clock) for facts in leaders(ranks) if facts.clock is not None]
    if len(known) < 2:
        return
    first, reference = known[0]
    worst, clock = max(known, key=lambda pair: abs(pair[1] - reference))
    seconds = clock - reference
    if abs(seconds) <= _CLOCK_WARNING:
        yield _CLOCKS.fine(f"at most {abs(seconds):.1f} s apart")
        return
    where = "ahead of" if seconds > 0 else "behind"
    message = f"The clock of {worst.host} is {abs(seconds):.1f} s {where} that of {first.host}."
    advice = "Synchronize the clocks of all hosts (chrony, ntpd or systemd-timesyncd)."
    if asked.uses_swarm and abs(seconds) > _CLOCK_ERROR:
        yield _CLOCKS.error(message + " Servers refuse clients whose clocks are more than 3 s off.", advice)
    else:
        yield _CLOCKS.warning(message, advice)


def check_versions(ranks: Sequence[RankFacts], asked: Asked) -> Iterator[Finding]:
    """Finds versions that differ between ranks."""
    known = [facts for facts in ranks if facts.versions]
    if not known:
        return
    first, differs = known[0], []
    for name in first.versions:
        differing = [facts for facts in known if facts.versions.get(name) != first.versions[name]]
        if differing:
            differs.append(
                f"{name} is {first.versions[name]} at {first.place} and {differing[0].versions.get(name)} at "
                f"{differing[0].place}" + (f" and {len(differing) - 1} more" if len(differing) > 1 else "")
            )
    if differs:
        yield _VERSIONS.error(
            "Ranks run different software: " + "; ".join(differs[:_DIFFERENCES_SHOWN]) + ". A prediction would "
            "depend on the rank that computes it.",
            "Install the same environment on all hosts, or start from one on a shared folder.",
        )
    else:
        shown = ", ".join(f"{name} {first.versions.get(name)}" for name in ("python", "torch", "petals"))
        yield _VERSIONS.fine(f"equal on all ranks: {shown}")


def check_open_files(ranks: Sequence[RankFacts], asked: Asked) -> Iterator[Finding]:
    """Finds limits of open files that are too low for the number of ranks."""
    known = [facts for facts in leaders(ranks) if facts.open_files is not None]
    needed = _FILES_OF_A_PROCESS + _FILES_FOR_A_RANK * ranks[0].world_size
    of_store = _FILES_OF_A_PROCESS + _FILES_OF_STORE_FOR_A_RANK * ranks[0].world_size
    low = [facts for facts in known if (facts.open_files or 0) < needed]
    if low:
        yield _OPEN_FILES.error(
            f"{low[0].host} lets a process have {low[0].open_files} files open at most; a rank of "
            f"{low[0].world_size} needs about {needed}.",
            "Have the hard limit there raised (`ulimit -Hn` shows it).",
        )
    launcher = ranks[0].launcher_files
    if launcher is not None and launcher < of_store:
        yield _OPEN_FILES.error(
            f"On {ranks[0].host} torchrun may have {launcher} files open; with the store of {ranks[0].world_size} "
            f"ranks it needs about {of_store}.",
            f"Before torchrun there: ulimit -n {2 * of_store}. Or use `python -m dist_eval.cluster.agent` instead, "
            "which does that itself.",
        )
    elif known and not low:
        yield _OPEN_FILES.fine(f"a rank may have {min(facts.open_files or 0 for facts in known)}")


def check_memory(ranks: Sequence[RankFacts], asked: Asked) -> Iterator[Finding]:
    """Finds hosts and GPUs whose ranks need more memory than there is."""
    hosts: dict[int, list[RankFacts]] = {}
    for facts in ranks:
        hosts.setdefault(facts.node, []).append(facts)
    fits = []
    for here in hosts.values():
        needed, available = sum(facts.memory_needed or 0 for facts in here), here[0].memory
        servers = sum(facts.servers_needed or 0 for facts in here if facts.rank == 0)
        if not needed or available is None:
            continue
        what = f"{_ranks(here)} on {here[0].host}" + (" and the servers of --swarm embedded" if servers else "")
        text = f"{what}: about {_gigabytes(needed + servers)} are needed, {_gigabytes(available)} are available"
        if needed + servers > _FULL * available:
            fault = _MEMORY.error if needed + servers > available else _MEMORY.warning
            yield fault(text + ".", "Start fewer ranks there, or let other programs end.")
        else:
            fits.append(text)
        yield from _check_gpus(here)
    if fits:
        yield _MEMORY.fine("; ".join(fits[:_DIFFERENCES_SHOWN]))


def _check_gpus(here: Sequence[RankFacts]) -> Iterator[Finding]:
    gpus = [(facts.gpu, facts.gpu_needed or 0) for facts in here if facts.gpu is not None]
    for index in dict.fromkeys(gpu.index for gpu, _ in gpus):
        sharing = [(gpu, needed) for gpu, needed in gpus if gpu.index == index]
        needed, free = sum(needed for _, needed in sharing), min(gpu.free for gpu, _ in sharing)
        text = (
            f"{_ranks(sharing)} on GPU {index} ({sharing[0][0].name}) of {here[0].host}: about {_gigabytes(needed)} "
            f"are needed, {_gigabytes(free)} are free"
        )
        if needed > free:
            yield _MEMORY.error(text + ".", "Start fewer ranks there, or free the GPU.")
        else:
            yield _MEMORY.fine(text)


def _ranks(ranks: Sequence[object]) -> str:
    return format_count(len(ranks), "rank")


def _gigabytes(count: int) -> str:
    return f"{count / (1 << 30):.1f} GiB"


HOST_CHECKS: tuple[Callable[[Sequence[RankFacts], Asked], Iterator[Finding]], ...] = (
    check_names,
    check_clocks,
    check_versions,
    check_open_files,
    check_memory,
)
