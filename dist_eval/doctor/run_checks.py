"""Derives findings from facts about a run's output folder, inputs and swarm. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from dist_eval.doctor.facts import Asked, Finding, RankFacts, Subject, SwarmView, leaders
from dist_eval.swarm.announcements import mixed_precisions, mixed_versions
from dist_eval.swarm.coverage import format_ranges
from dist_eval.tables import format_count

_FOLDER = Subject("output folder")
_SPACE = Subject("disk space")
_INPUTS = Subject("inputs")
_SWARM = Subject("swarm")

_LEAST_FREE, _LITTLE_FREE = 20 << 20, 1 << 30
_FAR_SECONDS = 0.5
_SHOWN = 5


def check_folder(ranks: Sequence[RankFacts], asked: Asked) -> Iterator[Finding]:
    """Finds an output folder that cannot be written, is not shared by all hosts, or belongs to another run."""
    unwritable = [facts for facts in ranks if "output folder" in facts.errors]
    for places, reason in _by_reason(unwritable, "output folder"):
        yield _FOLDER.error(
            f"At {places} {unwritable[0].output} cannot be used: {reason}.",
            "Choose another --output, or fix its permissions or its mount.",
        )
    strangers = sorted({words for facts in ranks for words in facts.strangers})
    if strangers:
        yield _FOLDER.error(
            f"Another group checks the same folder right now: {', '.join(strangers[:_SHOWN])}. Hosts that were to be "
            "one group may have made one each.",
            "See that all hosts name the same first host (torchrun's --master-addr or --rdzv-endpoint) and --nnodes.",
        )
    users = [facts for facts in ranks if facts.in_use]
    if users:
        yield _FOLDER.error(
            f"{users[0].output} is in use by another run ({users[0].in_use}).",
            "Wait for its end, or choose another --output.",
        )
    blind = [facts for facts in ranks if facts.unseen]
    lost = [facts for facts in ranks if facts.lock_holds is False]
    if blind:
        facts = blind[0]
        rank = (facts.unseen or [0])[0]
        author = next((f"{writer.place} wrote" for writer in ranks if writer.rank == rank), f"rank {rank} wrote")
        yield _FOLDER.warning(
            f"It is not the same on all hosts: what {author} to {facts.output} did not show at {facts.place} within "
            "10 s. Results will be on the first host only, and a run that is started again finds what is finished only "
            "if it has the same hosts.",
            "Give an --output on a folder that all hosts share, by its full path.",
        )
    elif lost:
        yield _FOLDER.warning(
            f"Locks do not hold between hosts there: {lost[0].place} could take that of rank {lost[0].lock_of}. Two "
            "runs in the same folder would not notice each other.",
            "Mount it with locks (for NFS without nolock), or take care yourself.",
        )
    elif not (unwritable or users) and all(facts.unseen is not None for facts in ranks):
        several = f", seen by all {len(ranks)} ranks" if len(ranks) > 1 else ""
        held = ", locks hold between hosts" if any(facts.lock_holds for facts in ranks) else ""
        yield _FOLDER.fine(f"{ranks[0].output} can be written{several}{held}")
    yield from _check_what_it_holds(ranks[0], asked)


def _check_what_it_holds(leader: RankFacts, asked: Asked) -> Iterator[Finding]:
    if leader.run_status == "complete" and not asked.overwrite:
        yield _FOLDER.warning(
            f"{leader.output} holds a complete run: the same command only shows its results, another one is refused.",
            "Choose another --output, or replace them with --overwrite.",
        )
    elif leader.run_status and not asked.overwrite:
        yield _FOLDER.fine(f"it holds a run that is {leader.run_status}: the same command resumes it")


def check_space(ranks: Sequence[RankFacts], asked: Asked) -> Iterator[Finding]:
    """Finds disks with too little space for what the host's first rank writes."""
    least: list[int] = []
    for facts in leaders(ranks):
        output_free = None if "output folder" in facts.errors else facts.output_free
        for folder, free in ((facts.output, output_free), (facts.temporary, facts.temporary_free)):
            if free is None:
                continue
            least.append(free)
            wanted = max(_LITTLE_FREE, 2 * (facts.dataset_bytes or 0))
            if free < wanted:
                fault = _SPACE.error if free < _LEAST_FREE else _SPACE.warning
                yield fault(
                    f"On {facts.host} {free / (1 << 20):.0f} MiB are free in {folder}.",
                    "Free some space, or name another place with --output, for temporary files with TMPDIR.",
                )
    if least and min(least) >= _LITTLE_FREE:
        yield _SPACE.fine(f"at least {min(least) / (1 << 30):.1f} GiB free")


def check_inputs(ranks: Sequence[RankFacts], asked: Asked) -> Iterator[Finding]:
    """Finds inputs that cannot be read on a rank, or differ between ranks."""
    faults = False
    for subject in ("models", "dataset"):
        failed = [facts for facts in ranks if subject in facts.errors]
        somewhere = {facts.node for facts in failed} != {facts.node for facts in ranks}
        for places, message in _by_reason(failed, subject):
            faults = True
            advice = "Other hosts have it: give a path that is the same on all of them." if somewhere else ""
            yield _INPUTS.error(f"At {places}: {message}", advice)
    for name in dict.fromkeys(name for facts in ranks for name in facts.digests):
        known = [facts for facts in ranks if name in facts.digests]
        differing = [facts for facts in known if facts.digests[name] != known[0].digests[name]]
        if differing:
            faults = True
            yield _INPUTS.error(
                f"The {name} differs: {known[0].place} has {known[0].digests[name][:12]}, {differing[0].place} has "
                f"{differing[0].digests[name][:12]}.",
                "Copy it again, or give a path on a folder that all hosts share.",
            )
    names = dict.fromkeys(name for facts in ranks for name in facts.digests)
    if names and not faults:
        yield _INPUTS.fine(f"{', '.join(names)}: readable" + (", equal on all ranks" if ranks[1:] else ""))


def check_swarm(ranks: Sequence[RankFacts], asked: Asked) -> Iterator[Finding]:
    """Finds a swarm that a rank cannot reach, or that lacks blocks, and servers that do not answer or differ."""
    if not asked.uses_swarm:
        return
    if asked.starts_swarm:
        if any(facts.hosts > 1 for facts in ranks):
            yield _SWARM.error(
                "--swarm embedded starts servers that other hosts cannot reach.",
                "Start one with `dist-eval swarm --host ADDRESS`, and name it with --initial-peers.",
            )
        else:
            yield _SWARM.fine("the run starts its own on this host")
        return
    failed = [facts for facts in ranks if "swarm" in facts.errors]
    for places, message in _by_reason(failed, "swarm"):
        advice = "Other ranks reach it: see the route and the firewall." if len(failed) < len(ranks) else ""
        yield _SWARM.error(f"At {places}: {message}", advice)
    known = [(facts, facts.swarm) for facts in ranks if facts.swarm is not None]
    for facts, swarm in known:
        if swarm.adapter_fault:
            yield _SWARM.error(f"Seen from {facts.place}: {swarm.adapter_fault}")
            break
        if swarm.missing:
            yield _SWARM.error(
                f"Seen from {facts.place}, no server holds blocks {format_ranges(swarm.missing)} of "
                f"{swarm.dht_prefix}.",
                "Start servers for them, or give the model's name in the swarm with --dht-prefix.",
            )
            break
    if known:
        yield from _check_servers(known)


def _check_servers(known: Sequence[tuple[RankFacts, SwarmView]]) -> Iterator[Finding]:
    seen = [(facts, server) for facts, swarm in known for server in swarm.servers]
    servers = {server.peer: server for _, server in seen}
    silent = [(facts, server) for facts, server in seen if server.seconds is None]
    times = [server.seconds for _, server in seen if server.seconds is not None]
    for facts, server in silent[:_SHOWN]:
        yield _SWARM.error(
            f"{facts.place[0].upper()}{facts.place[1:]} gets no answer from server ...{server.peer[-8:]} (blocks "
            f"{server.blocks}), which announces itself.",
            "See at what address it announces itself, and whether that host reaches it.",
        )
    announced = [server.announced for server in servers.values()]
    if words := mixed_precisions(announced):
        yield _SWARM.warning(words, "Start all servers with the same --torch-dtype and quantization.")
    if words := mixed_versions(announced):
        yield _SWARM.warning(words, "Install the same one on all of them, if you can.")
    if times and max(times) > _FAR_SECONDS:
        yield _SWARM.warning(f"A server takes {max(times):.2f} s to answer.", "Use servers nearby.")
    _, swarm = known[0]
    if not swarm.missing and not silent and times:
        versions = sorted({server.version for server in announced if server.version})
        alone = [number for number, count in enumerate(swarm.replicas) if count == 1]
        yield _SWARM.fine(
            f"{format_count(len(servers), 'server holds', 'servers hold')} all "
            f"{format_count(swarm.num_blocks, 'block')} of {swarm.dht_prefix}"
            + (f" ({format_count(len(alone), 'block has', 'blocks have')} one server only)" if alone else "")
            + f"; they answer within {max(times) * 1000:.0f} ms"
            + (f"; Petals {', '.join(versions)}" if versions else ""),
        )


def _by_reason(failed: Sequence[RankFacts], step: str) -> Iterator[tuple[str, str]]:
    """Yields each reason for which a step failed, preceded by the ranks, in words."""
    for reason in dict.fromkeys(facts.errors[step] for facts in failed):
        here = [facts for facts in failed if facts.errors[step] == reason]
        yield here[0].place + (f" and {len(here) - 1} more" if here[1:] else ""), reason


RUN_CHECKS: tuple[Callable[[Sequence[RankFacts], Asked], Iterator[Finding]], ...] = (
    check_folder,
    check_space,
    check_inputs,
    check_swarm,
)
