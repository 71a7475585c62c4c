"""The doctor's findings: none for healthy facts, and for each fault one that names the host and what to do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dist_eval.doctor.checks import examine
from dist_eval.doctor.facts import AnnouncedServer, Asked, Finding, Gpu, GroupTimes, RankFacts, SwarmView
from dist_eval.doctor.report import describe, has_errors

GIB = 1 << 30
SERVER = AnnouncedServer("QmPeerOfServer1", "0:4", "float32", "none", 0.002, "2.2.0.post1")
SWARM = SwarmView(1.0, "base-hf", 4, missing=[], replicas=[1, 1, 2, 2], servers=[SERVER])
ASKED = Asked(uses_swarm=True)


def healthy(hosts: int = 2, ranks_of_host: int = 2) -> list[RankFacts]:
    count = hosts * ranks_of_host
    return [
        RankFacts(
            rank=rank,
            local_rank=rank % ranks_of_host,
            node=rank // ranks_of_host,
            host=f"host-{rank // ranks_of_host}",
            world_size=count,
            hosts=hosts,
            name_addresses=[f"10.9.0.{rank // ranks_of_host + 1}"],
            interfaces={"eth7": [f"10.9.0.{rank // ranks_of_host + 1}"]},
            head="10.9.0.1",
            head_addresses=["10.9.0.1"],
            way_to_head=f"10.9.0.{rank // ranks_of_host + 1}",
            versions={"python": "3.11.7", "torch": "2.15.0", "petals": "2.2.0"},
            open_files=1024,
            memory=16 * GIB,
            clock=1000.0 + 0.01 * rank,
            output="/shared/run",
            output_free=50 * GIB,
            temporary="/tmp",
            temporary_free=50 * GIB,
            unseen=[],
            lock_of=0 if rank >= ranks_of_host else None,
            lock_holds=True if rank >= ranks_of_host else None,
            digests={"base model": "b", "tuned checkpoint": "t", "dataset": "d"},
            dataset_bytes=1000,
            memory_needed=GIB,
            swarm=SWARM,
            group=GroupTimes(
                seconds=0.2,
                members=[(r, f"host-{r // ranks_of_host}") for r in range(count)],
                all_reduce=0.001,
                all_gather=0.002,
            ),
        )
        for rank in range(count)
    ]


def changed(ranks: list[RankFacts], which: Any, **changes: Any) -> list[RankFacts]:
    return [replace(one, **changes) if which(one) else one for one in ranks]


def on_host_1(one: RankFacts) -> bool:
    return one.node == 1


def rank_3(one: RankFacts) -> bool:
    return one.rank == 3


def everywhere(one: RankFacts) -> bool:
    return True


def complaints(ranks: list[RankFacts], asked: Asked = ASKED) -> list[Finding]:
    return [finding for finding in examine(ranks, asked) if finding.level != "fine"]


@given(st.integers(1, 6), st.integers(1, 4))
def test_healthy_facts_give_findings_that_are_all_ok(hosts: int, ranks_of_host: int) -> None:
    findings = examine(healthy(hosts, ranks_of_host), ASKED)
    assert {finding.level for finding in findings} == {"fine"}
    subjects = {finding.subject for finding in findings}
    assert {"group", "names", "versions", "memory", "output folder", "disk space", "inputs", "swarm"} <= subjects
    assert ("clocks" in subjects) == (hosts > 1)
    assert describe(findings).endswith("Nothing stands in the way of the run: no errors, no warnings.")


NAMES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "a name that leads to loopback": (
        {"name_addresses": ["127.0.1.1"]},
        ["On host-1 the host's own name leads to 127.0.1.1", "GLOO_SOCKET_IFNAME=eth7", "--local-addr=10.9.0.2"],
    ),
    "a name that nobody knows": (
        {"name_addresses": []},
        ["On host-1 the host's own name is unknown", "GLOO_SOCKET_IFNAME=eth7"],
    ),
    "an interface that is not there": (
        {"gloo_interfaces": "ib0"},
        ["host-1 has no interface ib0", "It has eth7 (10.9.0.2)", "GLOO_SOCKET_IFNAME=eth7"],
    ),
    "a head that is unknown": ({"head_addresses": []}, ["host-1 does not know 10.9.0.1"]),
    "a head that leads to loopback": (
        {"head": "login", "head_addresses": ["127.0.1.1"]},
        ["On host-1", "MASTER_ADDR=login", "each host would connect to itself only"],
    ),
}


@pytest.mark.parametrize("fault", NAMES)
def test_a_wrong_name_is_an_error_unless_the_group_opened_nevertheless(fault: str) -> None:
    changes, words = NAMES[fault]
    for group, level in ((None, "error"), (healthy()[0].group, "warning")):
        found = complaints(changed(changed(healthy(), everywhere, group=group), on_host_1, **changes))
        assert [finding.level for finding in found] == [level]
        text = f"{found[0].message} {found[0].advice}"
        assert all(word in text for word in words), text


FAULTS: dict[str, tuple[Any, dict[str, Any], str, list[str]]] = {
    "two hosts of one name": (on_host_1, {"host": "host-0"}, "warning", ["Several hosts are called host-0"]),
    "a clock a little off": (on_host_1, {"clock": 998.0}, "warning", ["clock of host-1 is 2.0 s behind", "chrony"]),
    "a clock far off": (on_host_1, {"clock": 1060.0}, "error", ["clock of host-1 is 60.0 s ahead of that of host-0"]),
    "another version": (
        rank_3,
        {"versions": {"python": "3.11.7", "torch": "2.14.0", "petals": "2.2.0"}},
        "error",
        ["torch is 2.15.0 at rank 0 on host-0 and 2.14.0 at rank 3 on host-1"],
    ),
    "few open files": (
        on_host_1,
        {"open_files": 64},
        "error",
        ["host-1 lets a process have 64 files open at most; a rank of 4 needs about 260", "ulimit -Hn"],
    ),
    "few open files for the store": (
        everywhere,
        {"launcher_files": 264},
        "error",
        ["On host-0 torchrun may have 264 files open", "ulimit -n 536", "dist_eval.cluster.agent"],
    ),
    "too little memory": (
        on_host_1,
        {"memory": GIB},
        "error",
        ["2 ranks on host-1: about 2.0 GiB are needed, 1.0 GiB are"],
    ),
    "hardly enough memory": (on_host_1, {"memory": 2 * GIB + 1}, "warning", ["2 ranks on host-1"]),
    "a GPU that is too small": (
        on_host_1,
        {"gpu": Gpu(0, "H", GIB, GIB), "gpu_needed": GIB},
        "error",
        ["2 ranks on GPU 0 (H) of host-1: about 2.0 GiB are needed, 1.0 GiB are free"],
    ),
    "a folder that cannot be written": (
        rank_3,
        {"errors": {"output folder": "Read-only file system"}, "unseen": None},
        "error",
        ["At rank 3 on host-1 /shared/run cannot be used: Read-only file system", "--output"],
    ),
    "folders that are not the same": (
        on_host_1,
        {"unseen": [0, 1], "lock_of": None, "lock_holds": None},
        "warning",
        ["what rank 0 on host-0 wrote to /shared/run did not show at rank 2 on host-1", "all hosts share"],
    ),
    "locks that do not hold": (
        on_host_1,
        {"lock_holds": False},
        "warning",
        ["rank 2 on host-1 could take that of rank 0", "nolock"],
    ),
    "another group in the folder": (
        rank_3,
        {"strangers": ["rank 0 of 1 on host-2"]},
        "error",
        ["Another group checks the same folder right now: rank 0 of 1 on host-2"],
    ),
    "a folder in use": (
        everywhere,
        {"in_use": "process 7 on host-0"},
        "error",
        ["in use by another run (process 7 on host-0)"],
    ),
    "a folder with a complete run": (
        everywhere,
        {"run_status": "complete"},
        "warning",
        ["/shared/run holds a complete run", "--overwrite"],
    ),
    "a disk that is nearly full": (
        on_host_1,
        {"temporary_free": 100 << 20},
        "warning",
        ["On host-1 100 MiB are free in /tmp", "TMPDIR"],
    ),
    "a disk that is full": (on_host_1, {"output_free": 1 << 20}, "error", ["On host-1 1 MiB are free in /shared/run"]),
    "less space than the dataset takes": (
        on_host_1,
        {"dataset_bytes": 20 * GIB, "output_free": 30 * GIB},
        "warning",
        ["On host-1 30720 MiB are free in /shared/run"],
    ),
    "a dataset that one host lacks": (
        on_host_1,
        {"errors": {"dataset": "There is no file x.csv."}},
        "error",
        ["At rank 2 on host-1 and 1 more: There is no file x.csv.", "same on all"],
    ),
    "a model that cannot be read anywhere": (
        everywhere,
        {"errors": {"models": "There is no folder m."}},
        "error",
        ["At rank 0 on host-0 and 3 more: There is no folder m."],
    ),
    "another checkpoint": (
        rank_3,
        {"digests": {"tuned checkpoint": "other"}},
        "error",
        ["The tuned checkpoint differs: rank 0 on host-0 has t, rank 3 on host-1 has other"],
    ),
    "a swarm that one rank does not reach": (
        rank_3,
        {"errors": {"swarm": "None of the peers answered."}, "swarm": None},
        "error",
        ["At rank 3 on host-1: None of the peers answered.", "Other ranks reach it"],
    ),
    "missing blocks": (
        everywhere,
        {"swarm": replace(SWARM, missing=[1, 2], replicas=[1, 0, 0, 1])},
        "error",
        ["no server holds blocks 1-2 of base-hf", "--dht-prefix"],
    ),
    "a silent server": (
        rank_3,
        {"swarm": replace(SWARM, servers=[replace(SERVER, seconds=None)])},
        "error",
        ["Rank 3 on host-1 gets no answer from server ...fServer1 (blocks 0:4)"],
    ),
    "servers that compute differently": (
        everywhere,
        {"swarm": replace(SWARM, servers=[SERVER, replace(SERVER, peer="QmOther", dtype="bfloat16")])},
        "warning",
        ["compute differently (bfloat16, float32)"],
    ),
    "servers of different versions": (
        everywhere,
        {"swarm": replace(SWARM, servers=[SERVER, replace(SERVER, peer="QmOther", version="2.3.0.dev2")])},
        "warning",
        ["different versions of Petals (2.2.0.post1, 2.3.0.dev2)"],
    ),
    "an adapter that nobody holds": (
        everywhere,
        {"swarm": replace(SWARM, missing=[0, 1, 2, 3], servers=[], adapter_fault="No online server holds it.")},
        "error",
        ["Seen from rank 0 on host-0: No online server holds it."],
    ),
    "a server that is far away": (
        everywhere,
        {"swarm": replace(SWARM, servers=[replace(SERVER, seconds=0.75)])},
        "warning",
        ["takes 0.75 s to answer"],
    ),
    "a group that does not come together": (
        rank_3,
        {"errors": {"group": "connection refused"}},
        "error",
        ["failed at rank 3 on host-1: connection refused", "firewall"],
    ),
    "a group with other members": (
        everywhere,
        {"group": GroupTimes(0.1, [(0, "host-0")], all_reduce=0.001, all_gather=0.001)},
        "error",
        ["The group has 1 members instead of 4"],
    ),
    "a slow network": (
        rank_3,
        {"group": GroupTimes(0.1, [], all_reduce=2.5, all_gather=0.001)},
        "warning",
        ["a collective takes up to 2500.0 ms"],
    ),
    "a scheduler that gave more hosts": (
        everywhere,
        {"scheduler_hosts": 4},
        "error",
        ["The scheduler gave 4 hosts, but this group has 2"],
    ),
    "a check that hung": (
        rank_3,
        {"errors": {"host": "no answer within 30 s"}},
        "error",
        ["At rank 3 on host-1: no answer within 30 s"],
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named_with_its_place_and_what_to_do(fault: str) -> None:
    which, changes, level, words = FAULTS[fault]
    found = complaints(changed(healthy(), which, **changes))
    assert [finding.level for finding in found] == [level], found
    assert has_errors(found) == (level == "error")
    text = f"{found[0].message} {found[0].advice}"
    for word in words:
        assert word in text
    shown = " ".join(describe(found).split())
    assert all(word in shown for word in words)


def test_ranks_that_did_not_report_are_named() -> None:
    found = complaints(healthy()[:2])
    assert "No report from ranks 2, 3 within 30 s; the others are on host-0" in found[0].message
    assert "10.9.0.1" in found[0].advice


def test_a_rank_that_cannot_reach_the_others_reports_itself() -> None:
    found = complaints([replace(healthy()[3], errors={"store": "The store does not answer."}, group=None)])
    assert [finding.level for finding in found] == ["error"]
    assert found[0].message == "At rank 3 on host-1: The store does not answer."
    assert "whether this host reaches 10.9.0.1" in found[0].advice


@pytest.mark.parametrize("expected", [2, 16])
def test_a_group_with_too_few_hosts_is_an_error(expected: int) -> None:
    alone = healthy(1, 1)
    found = complaints(alone, Asked(expect_hosts=expected))
    assert [finding.level for finding in found] == ["error"]
    assert f"--expect-hosts says {expected} hosts, but this group has 1" in found[0].message
    assert "each host may have made a group of its own" in found[0].message
    assert not complaints(alone, Asked(expect_hosts=1))


def test_names_on_loopback_are_ok_with_a_named_interface_or_a_single_host() -> None:
    assert not complaints(changed(healthy(), everywhere, name_addresses=["127.0.1.1"], gloo_interfaces="eth7"))
    assert not complaints(changed(healthy(1), everywhere, name_addresses=["127.0.1.1"], head_addresses=["127.0.0.1"]))


def test_an_embedded_swarm_is_for_one_host_and_counts_in_its_memory() -> None:
    asked = Asked(uses_swarm=True, starts_swarm=True)
    no_swarm = changed(healthy(), everywhere, swarm=None)
    assert "--swarm embedded starts servers that other hosts cannot reach" in complaints(no_swarm, asked)[0].message
    one_host = changed(healthy(1), everywhere, swarm=None, servers_needed=20 * GIB)
    found = complaints(one_host, asked)
    assert [finding.subject for finding in found] == ["memory"]
    assert "and the servers of --swarm embedded: about 22.0 GiB" in found[0].message


@pytest.mark.parametrize(
    ("state", "level", "words"),
    [
        ("free", "fine", "is on host-0 and free"),
        ("reachable", "fine", "host-0 reaches the host"),
        ("listening", "warning", "a process is listening"),
        ("error: loopback", "error", "each host would connect to itself"),
        ("error: timed out", "error", "host-0 cannot reach the --rendezvous: timed out"),
    ],
)
def test_without_torchrun_the_state_of_the_rendezvous_is_reported(state: str, level: str, words: str) -> None:
    findings = examine(changed(healthy(1, 1), everywhere, rendezvous=state), ASKED)
    assert [f.level for f in findings if words in f.message] == [level]


def test_facts_survive_json() -> None:
    for facts in (*healthy(), RankFacts(errors={"host": "why"})):
        assert RankFacts.from_json(facts.to_json()) == facts
