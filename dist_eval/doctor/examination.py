"""Runs one rank's part of the doctor, from the first fact to the verdict.

Every wait has a limit. Each step runs in its own thread, which is abandoned when its time is up, even if a system call
never returns (a dead network folder, a lost host); the caller has to end the process with `os._exit`.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from dist_eval.distributed.rank_store import RankStore, Topology
from dist_eval.doctor import report
from dist_eval.doctor.checks import examine
from dist_eval.doctor.config import DoctorConfig, split_address
from dist_eval.doctor.facts import Asked, RankFacts
from dist_eval.doctor.group import collect_group
from dist_eval.doctor.host import collect_host, collect_versions, probe_rendezvous
from dist_eval.doctor.inputs import collect_dataset, collect_models
from dist_eval.doctor.shared_folder import Probe, collect_probes, collect_run, collect_space
from dist_eval.doctor.swarm import collect_swarm
from dist_eval.errors import RunError, one_line
from dist_eval.model.base_model_spec import BaseModelSpec
from dist_eval.runs.files import RESULTS

_POLL_SECONDS, _CLEANUP_SECONDS = 0.05, 5.0
_SWARM_EXTRA_SECONDS = 30.0
"""Time for everything besides the wait for a swarm: importing Petals, asking the servers, leaving."""

_STEPS_APART = 5
"""Steps between two barriers: a rank may be this many times a step's limit behind another one."""


def examine_run(config: DoctorConfig, scratch_dir: Path, probe: Probe) -> int:
    """Checks what a run depends on; every rank calls it, and rank 0 prints the findings.

    Args:
        config: options of the planned run.
        scratch_dir: this rank's private folder for sockets.
        probe: the file that this rank writes to the output folder.

    Returns:
        The exit status: 1 if something will make the run fail.
    """
    try:
        topology = Topology.from_environment()
    except RunError as error:
        topology = Topology()
        facts = _facts_of(topology)
        facts.errors["launch"] = str(error)
        return _report(config, [facts])
    torch.set_num_threads(1)
    return Examination(config, topology, scratch_dir, probe).run()


def _facts_of(topology: Topology) -> RankFacts:
    return RankFacts(
        rank=topology.rank,
        local_rank=topology.local_rank,
        node=topology.node,
        host=topology.host,
        world_size=topology.world_size,
        hosts=topology.hosts,
    )


@dataclass
class Examination:
    """One rank's part of the checks.

    Attributes:
        config: options of the planned run.
        topology: this process's place among the ranks.
        scratch_dir: this rank's private folder for sockets.
        probe: the file that this rank writes to the output folder.
    """

    config: DoctorConfig
    topology: Topology
    scratch_dir: Path
    probe: Probe

    def __post_init__(self) -> None:
        self.facts, self.rank_store = _facts_of(self.topology), RankStore(self.topology, "doctor")
        self.limit = self.config.check_timeout

    def run(self) -> int:
        """Collects the facts, and on rank 0 reports the findings; returns the exit status."""
        facts, limit = self.facts, self.limit
        self.collect_host_facts()
        hello = json.dumps([self.probe.path.name, self.topology.node])
        roster = self.step("store", lambda: self.barrier("hello", hello, limit), 3 * limit)
        if roster is None:
            return _report(self.config, [facts])  # on its own: this rank cannot reach the others
        facts.clock = time.time()
        if self.topology.rank not in roster:
            facts.errors["store"] = f"it came more than {limit:g} s after rank 0, which did not wait for it"
            return _report(self.config, [facts])
        facts.absent = [rank for rank in range(self.topology.world_size) if rank not in roster]
        with ExitStack() as stack:
            self.collect_folder_facts(roster, stack)
            self.collect_run_facts()
            if self.topology.world_size > 1 and not facts.absent:
                self.step("group", lambda: collect_group(facts, self.topology, self.rank_store, limit))
            late = _STEPS_APART * limit + _SWARM_EXTRA_SECONDS
            reports = self.step("store", lambda: self.barrier("facts", facts.to_json(), late, roster), 3 * late)
        if reports is None:
            return _report(self.config, [facts])
        if not self.topology.is_leader:
            verdict = self.step("store", lambda: self.rank_store.wait_for("verdict", limit), 2 * limit)
            self.step("store", lambda: self.rank_store.publish(f"bye/{self.topology.rank}", ""), _CLEANUP_SECONDS)
            return int(verdict or 1)
        return self.report_all({rank: RankFacts.from_json(text) for rank, text in reports.items()})

    def report_all(self, everybody: dict[int, RankFacts]) -> int:
        """Prints the findings, and publishes the verdict; waits a moment until the other ranks have received it."""
        status = _report(self.config, [everybody[rank] for rank in sorted(everybody)])
        others = [rank for rank in everybody if rank != self.topology.rank]
        self.step("store", lambda: self.rank_store.publish("verdict", str(status)), _CLEANUP_SECONDS)
        self.step("store", lambda: self.collect("bye", others, _CLEANUP_SECONDS), 2 * _CLEANUP_SECONDS)
        return status

    def collect_host_facts(self) -> None:
        """Collects the facts about this host."""
        facts = self.facts
        self.step("host", lambda: collect_host(facts))
        self.step("versions", lambda: collect_versions(facts))
        self.step("disk space", lambda: collect_space(facts, self.config.output_folder))
        if self.config.rendezvous and self.topology.world_size == 1:
            host, port = split_address(self.config.rendezvous)
            facts.rendezvous = self.step("rendezvous", lambda: probe_rendezvous(host, port, self.limit / 2))

    def collect_folder_facts(self, roster: dict[int, str], stack: ExitStack) -> None:
        """Collects the facts about the output folder; the probe is removed when the stack is closed."""
        facts, folder, limit = self.facts, self.config.output_folder, self.limit
        if self.topology.is_leader:
            self.step("output folder", lambda: collect_run(facts, folder, RESULTS))
        self.step("output folder", lambda: stack.enter_context(self.probe.written(facts)))
        fault = facts.errors.get("output folder", "")
        written = self.step("store", lambda: self.barrier("written", fault, 2 * limit, roster), 4 * limit)
        if written is None or fault:
            return
        probes = {rank: json.loads(text) for rank, text in roster.items() if written.get(rank) == ""}
        names, nodes = ({rank: probe[part] for rank, probe in probes.items()} for part in (0, 1))
        self.step("output folder", lambda: collect_probes(facts, names, nodes, folder))

    def collect_run_facts(self) -> None:
        """Collects the facts about the run's inputs and its swarm."""
        config, facts, limit = self.config, self.facts, self.limit
        base: BaseModelSpec | None = self.step("models", lambda: collect_models(facts, config))
        self.step("dataset", lambda: collect_dataset(facts, config))
        if base is not None and config.uses_swarm and not config.starts_swarm:
            self.step(
                "swarm",
                lambda: collect_swarm(facts, config.initial_peers, base, limit, self.scratch_dir),
                2 * limit + _SWARM_EXTRA_SECONDS,
            )

    def step(self, name: str, action: Callable[[], Any], limit: float | None = None) -> Any:
        """Runs an action within a time limit.

        Args:
            name: name of the step, under which the facts record its failure.
            action: what to run.
            limit: seconds; by default `--check-timeout`.

        Returns:
            What the action returns; None if it failed or timed out.
        """
        seconds, answer, faults = limit or self.limit, [], []

        def act() -> None:
            try:
                answer.append(action())
            except Exception as error:  # any error: the other checks continue
                faults.append(f"{error.strerror} ({error.filename})" if _is_plain(error) else one_line(error))  # type: ignore[attr-defined]

        thread = threading.Thread(target=act, name=name, daemon=True)
        thread.start()
        thread.join(seconds)
        if not answer:
            self.facts.errors.setdefault(name, faults[0] if faults else f"no answer within {seconds:g} s")
        return answer[0] if answer else None

    def barrier(self, name: str, value: str, timeout: float, roster: dict[int, str] | None = None) -> dict[int, str]:
        """Gathers a value from each rank on all ranks, without those that are late.

        Args:
            name: name of the barrier, used once.
            value: this rank's value.
            timeout: seconds that the leader waits.
            roster: the ranks that are waited for; by default all.

        Returns:
            The values that the leader received in time, by rank.

        Raises:
            RunError: the store cannot be reached, or the leader did not answer.
        """
        self.rank_store.publish(f"{name}/{self.topology.rank}", value)
        if self.topology.is_leader:
            values = self.collect(name, list(roster or range(self.topology.world_size)), timeout)
            self.rank_store.publish(f"{name}/all", json.dumps(values))
        else:
            values = json.loads(self.rank_store.wait_for(f"{name}/all", 2 * timeout))
        return {int(rank): text for rank, text in values.items()}

    def collect(self, name: str, ranks: list[int], timeout: float) -> dict[int, str]:
        """Waits for the values of ranks; returns those that were published in time."""
        deadline, keys = time.monotonic() + timeout, {f"{name}/{rank}": rank for rank in ranks}
        with self.rank_store.connect() as store:
            while keys and time.monotonic() < deadline and not store.check(list(keys)):
                time.sleep(_POLL_SECONDS)
            return {rank: store.get(key).decode() for key, rank in keys.items() if store.check([key])}


def _is_plain(error: Exception) -> bool:
    return isinstance(error, OSError) and bool(error.strerror and error.filename)


def _report(config: DoctorConfig, ranks: list[RankFacts]) -> int:
    asked = Asked(
        expect_hosts=config.expect_hosts,
        uses_swarm=config.uses_swarm,
        starts_swarm=config.starts_swarm,
        overwrite=config.overwrite,
        check_timeout=config.check_timeout,
    )
    findings = examine(ranks, asked)
    print(report.describe(findings), flush=True)
    is_leader = ranks[0].rank == 0
    if is_leader and "output folder" not in ranks[0].errors and "launch" not in ranks[0].errors:
        _write(config, findings, ranks)
    return int(report.has_errors(findings))


def _write(config: DoctorConfig, findings: list[Any], ranks: list[RankFacts]) -> None:
    try:
        config.output_folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        path = report.write_report(config.output_folder, findings, ranks, secret=config.initial_peers)
    except OSError as error:
        print(f"The findings could not be written: {error.strerror}.", flush=True)
    else:
        print(f"all facts: {path}", flush=True)
