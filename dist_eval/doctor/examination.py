"""The conductor: one rank of an examination, from the first fact to the verdict.

Nothing waits without a limit. Each step runs in a thread of its own that is left behind when its time is up, also where
the system itself does not come back (a dead network folder, a host that is gone); whoever calls ends the process with
`os._exit`.
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
from dist_eval.doctor.host import collect_host, collect_versions, look_at_rendezvous
from dist_eval.doctor.inputs import collect_dataset, collect_models
from dist_eval.doctor.shared_folder import Probe, collect_run, collect_space, look_around
from dist_eval.doctor.swarm import collect_swarm
from dist_eval.errors import RunError, first_line
from dist_eval.model.base_model_spec import BaseModelSpec
from dist_eval.runs.files import RESULTS

_POLL_SECONDS, _CLEANUP_SECONDS = 0.05, 5.0
_SWARM_EXTRA_SECONDS = 30.0
"""For what surrounds the wait for a swarm: importing Petals, asking the servers, leaving."""

_STEPS_APART = 5
"""Steps that the ranks take without waiting for each other: so many times a step's limit may one be behind another."""


def examine_run(config: DoctorConfig, scratch_dir: Path, probe: Probe) -> int:
    """Examines what a run would rest on; every rank calls it, and rank 0 prints what all have found.

    Args:
        config: what the run is going to be.
        scratch_dir: this rank's private folder for sockets.
        probe: what it writes to the output folder.

    Returns:
        The exit status: 1 if something will make the run fail.
    """
    try:
        topology = Topology.from_environment()
    except RunError as error:
        topology = Topology()
        facts = _facts_of(topology)
        facts.errors["launch"] = str(error)
        return _tell(config, [facts])
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


@dataclass(frozen=True)
class Examination:
    """One rank's part.

    Attributes:
        config: what the run is going to be.
        topology: where this process stands.
        scratch_dir: this rank's private folder for sockets.
        probe: what it writes to the output folder.
    """

    config: DoctorConfig
    topology: Topology
    scratch_dir: Path
    probe: Probe

    def run(self) -> int:
        """Collects the facts, and on rank 0 tells the findings; returns the exit status."""
        facts, rank_store, limit = (
            _facts_of(self.topology),
            RankStore(self.topology, "doctor"),
            self.config.check_timeout,
        )
        self.look_at_host(facts)
        hello = json.dumps([self.probe.path.name, self.topology.node])
        roster = self.step(facts, "store", lambda: self.barrier(rank_store, "hello", hello, limit), 3 * limit)
        if roster is None:
            return _tell(self.config, [facts])  # for itself: this rank does not get to the others
        facts.clock = time.time()
        if self.topology.rank not in roster:
            facts.errors["store"] = f"it came more than {limit:g} s after rank 0, which did not wait for it"
            return _tell(self.config, [facts])
        facts.absent = [rank for rank in range(self.topology.world_size) if rank not in roster]
        with ExitStack() as stack:
            self.look_at_folder(facts, rank_store, roster, stack)
            self.look_at_run(facts)
            if self.topology.world_size > 1 and not facts.absent:
                self.step(facts, "group", lambda: collect_group(facts, self.topology, rank_store, limit))
            late = _STEPS_APART * limit + _SWARM_EXTRA_SECONDS
            told = self.step(
                facts, "store", lambda: self.barrier(rank_store, "facts", facts.to_json(), late, roster), 3 * late
            )
        if told is None:
            return _tell(self.config, [facts])
        if not self.topology.is_leader:
            verdict = self.step(facts, "store", lambda: rank_store.wait_for("verdict", limit), 2 * limit)
            self.step(facts, "store", lambda: rank_store.publish(f"bye/{self.topology.rank}", ""), _CLEANUP_SECONDS)
            return int(verdict or 1)
        return self.tell_all(facts, rank_store, {rank: RankFacts.from_json(text) for rank, text in told.items()})

    def tell_all(self, facts: RankFacts, rank_store: RankStore, everybody: dict[int, RankFacts]) -> int:
        """Tells the findings, and the other ranks the verdict; waits a moment until they have heard it."""
        status = _tell(self.config, [everybody[rank] for rank in sorted(everybody)])
        others = [rank for rank in everybody if rank != self.topology.rank]
        self.step(facts, "store", lambda: rank_store.publish("verdict", str(status)), _CLEANUP_SECONDS)
        self.step(
            facts, "store", lambda: self.collect(rank_store, "bye", others, _CLEANUP_SECONDS), 2 * _CLEANUP_SECONDS
        )
        return status

    def look_at_host(self, facts: RankFacts) -> None:
        """Notes what concerns this host alone."""
        self.step(facts, "host", lambda: collect_host(facts))
        self.step(facts, "versions", lambda: collect_versions(facts))
        self.step(facts, "disk space", lambda: collect_space(facts, self.config.output_folder))
        if self.config.rendezvous and self.topology.world_size == 1:
            host, port = split_address(self.config.rendezvous)
            limit = self.config.check_timeout
            facts.rendezvous = self.step(facts, "rendezvous", lambda: look_at_rendezvous(host, port, limit / 2), limit)

    def look_at_folder(self, facts: RankFacts, rank_store: RankStore, roster: dict[int, str], stack: ExitStack) -> None:
        """Notes who sees what in the output folder; the probe stays until the end of the context."""
        folder, limit = self.config.output_folder, self.config.check_timeout
        if self.topology.is_leader:
            self.step(facts, "output folder", lambda: collect_run(facts, folder, RESULTS))
        self.step(facts, "output folder", lambda: stack.enter_context(self.probe.written(facts)))
        fault = facts.errors.get("output folder", "")
        written = self.step(
            facts, "store", lambda: self.barrier(rank_store, "written", fault, 2 * limit, roster), 4 * limit
        )
        if written is None or fault:
            return
        said = {rank: json.loads(text) for rank, text in roster.items() if written.get(rank) == ""}
        names, nodes = ({rank: one[part] for rank, one in said.items()} for part in (0, 1))
        self.step(facts, "output folder", lambda: look_around(facts, names, nodes, folder))

    def look_at_run(self, facts: RankFacts) -> None:
        """Notes what the run reads, and the swarm that it asks."""
        config, limit = self.config, self.config.check_timeout
        base: BaseModelSpec | None = self.step(facts, "models", lambda: collect_models(facts, config))
        self.step(facts, "dataset", lambda: collect_dataset(facts, config))
        if base is not None and config.uses_swarm and not config.starts_swarm:
            self.step(
                facts,
                "swarm",
                lambda: collect_swarm(facts, config, base, limit, self.scratch_dir),
                2 * limit + _SWARM_EXTRA_SECONDS,
            )

    def step(self, facts: RankFacts, name: str, action: Callable[[], Any], limit: float | None = None) -> Any:
        """Runs an action within a time limit.

        Args:
            facts: where a failure is noted, under `name`.
            name: what is done.
            action: does it.
            limit: seconds, by default those of a check.

        Returns:
            What the action returns, None if it failed.
        """
        seconds, answer, faults = limit or self.config.check_timeout, [], []

        def act() -> None:
            try:
                answer.append(action())
            except Exception as error:  # whatever it is: the other checks go on
                faults.append(f"{error.strerror} ({error.filename})" if _is_plain(error) else first_line(error))  # type: ignore[attr-defined]

        thread = threading.Thread(target=act, name=name, daemon=True)
        thread.start()
        thread.join(seconds)
        if not answer:
            facts.errors.setdefault(name, faults[0] if faults else f"no answer within {seconds:g} s")
        return answer[0] if answer else None

    def barrier(
        self, rank_store: RankStore, name: str, value: str, timeout: float, roster: dict[int, str] | None = None
    ) -> dict[int, str]:
        """Tells the leader something and learns what all have told it in time.

        Args:
            rank_store: the ranks' store.
            name: of the meeting, used once.
            value: what this rank tells.
            timeout: seconds that the leader waits.
            roster: the ranks that are waited for; by default all.

        Returns:
            What was told, by rank.

        Raises:
            RunError: the store cannot be reached, or the leader does not come.
        """
        rank_store.publish(f"{name}/{self.topology.rank}", value)
        if self.topology.is_leader:
            told = self.collect(rank_store, name, list(roster or range(self.topology.world_size)), timeout)
            rank_store.publish(f"{name}/all", json.dumps(told))
        else:
            told = json.loads(rank_store.wait_for(f"{name}/all", 2 * timeout))
        return {int(rank): text for rank, text in told.items()}

    @staticmethod
    def collect(rank_store: RankStore, name: str, ranks: list[int], timeout: float) -> dict[int, str]:
        """Waits for what ranks tell; returns what came in time."""
        deadline, keys = time.monotonic() + timeout, {f"{name}/{rank}": rank for rank in ranks}
        with rank_store.connect() as store:
            while keys and time.monotonic() < deadline and not store.check(list(keys)):
                time.sleep(_POLL_SECONDS)
            return {rank: store.get(key).decode() for key, rank in keys.items() if store.check([key])}


def _is_plain(error: Exception) -> bool:
    return isinstance(error, OSError) and bool(error.strerror and error.filename)


def _tell(config: DoctorConfig, ranks: list[RankFacts]) -> int:
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
