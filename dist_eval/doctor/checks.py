"""Derives findings from the facts of all ranks: missing ranks, the process group, and all other checks. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from dist_eval.doctor.facts import Asked, Finding, RankFacts, Subject
from dist_eval.doctor.host_checks import HOST_CHECKS
from dist_eval.doctor.run_checks import RUN_CHECKS

_GROUP = Subject("group")
_SLOW_SECONDS, _SHOWN = 1.0, 10
_REPORTED_ELSEWHERE = {"store", "group", "output folder", "models", "dataset", "swarm"}
"""Steps whose failure is reported by their own check."""


def examine(ranks: Sequence[RankFacts], asked: Asked) -> list[Finding]:
    """Derives all findings from the facts.

    Args:
        ranks: facts of all ranks that reported, in rank order; at least one.
        asked: properties of the planned run.

    Returns:
        Findings, in the order in which the run would depend on them.
    """
    findings = [*_check_presence(ranks, asked), *_check_group(ranks, asked)]
    for check in (*HOST_CHECKS, *RUN_CHECKS):
        findings += check(ranks, asked)
    for facts in ranks:
        for step, reason in facts.errors.items():
            if step not in _REPORTED_ELSEWHERE:
                findings.append(Subject(step).error(f"At {facts.place}: {reason}"))
    return findings


def _check_presence(ranks: Sequence[RankFacts], asked: Asked) -> Iterator[Finding]:
    first = ranks[0]
    present = {facts.rank for facts in ranks}
    missing = [rank for rank in range(first.world_size) if rank not in present]
    if "store" in first.errors:  # a rank on its own: it can only report itself
        yield _GROUP.error(
            f"At {first.place}: {first.errors['store']}",
            f"See whether this host reaches {first.head or 'the first host'}, and what the first host's log says.",
        )
    elif missing:
        here = ", ".join(sorted({facts.host for facts in ranks}))
        yield _GROUP.error(
            f"No report from rank{'s' if missing[1:] else ''} {', '.join(map(str, missing[:_SHOWN]))} within "
            f"{asked.check_timeout:g} s; the others are on {here}.",
            f"Look at the log of the host that is missing, and whether it reaches {first.head or 'the first host'}.",
        )
    expected = asked.expect_hosts or first.scheduler_hosts
    if expected is not None and expected != first.hosts:
        source = "--expect-hosts says" if asked.expect_hosts else "the scheduler gave"
        yield _GROUP.error(
            f"{source[0].upper()}{source[1:]} {expected} hosts, but this group has {first.hosts}"
            + (
                ": each host may have made a group of its own, and would evaluate everything."
                if first.hosts == 1
                else "."
            ),
            "Start torchrun on each host with the same --nnodes, --master-addr and --master-port, and --node-rank.",
        )


def _check_group(ranks: Sequence[RankFacts], asked: Asked) -> Iterator[Finding]:
    first = ranks[0]
    if first.world_size == 1:
        if "launch" not in first.errors:
            yield _GROUP.fine(f"one rank on {first.host}")
        return
    failed = [facts for facts in ranks if "group" in facts.errors]
    if failed:
        where = ", ".join(facts.place for facts in failed[:_SHOWN])
        yield _GROUP.error(
            f"The ranks do not come together in a process group; it failed at {where}: {failed[0].errors['group']}",
            "See the findings about names; ranks connect to each other directly, at ports that the system chooses: a "
            "firewall between the hosts must let them pass.",
        )
    group = first.group
    if group is None:
        return
    members = dict(group.members)
    if sorted(members) != list(range(first.world_size)):
        yield _GROUP.error(
            f"The group has {len(members)} members instead of {first.world_size}.",
            "See that no other run uses the same port.",
        )
        return
    slowest = max(max(facts.group.all_reduce, facts.group.all_gather) for facts in ranks if facts.group)
    ranks_of_host = list(Counter(members.values()).items())
    hosts = ", ".join(f"{count} on {host}" for host, count in ranks_of_host[:_SHOWN])
    text = (
        f"{len(members)} ranks ({hosts}) come together in {group.seconds:.1f} s; a collective takes up to "
        f"{slowest * 1000:.1f} ms"
    )
    if slowest > _SLOW_SECONDS:
        yield _GROUP.warning(text + ".", "See what slows the network between the hosts down.")
    else:
        yield _GROUP.fine(text)
