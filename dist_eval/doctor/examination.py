"""Runs one rank's part of the doctor, from the first check to the verdict.

Every wait has a limit. Each check runs in its own thread, which is abandoned when its time is up, even if a system call
never returns (a dead network folder, a lost host). So the caller must end the process with `os._exit`.
"""

from __future__ import annotations

import fcntl
import json
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch

from dist_eval.distributed.collectives import all_gather, process_group, require_known_interfaces
from dist_eval.distributed.rank_store import RankStore, Topology
from dist_eval.doctor import checks
from dist_eval.doctor.config import PROBE_PREFIX, DoctorConfig
from dist_eval.doctor.findings import Fault, Finding, Report, conclude, describe, has_errors, write_report
from dist_eval.errors import RunError, one_line
from dist_eval.runs.files import JOURNAL
from dist_eval.runs.folder_lock import LOCK_FILE, last_holder
from dist_eval.runs.outcome import read_outcome

_POLL_SECONDS, _CLEANUP_SECONDS = 0.1, 5.0
_SWARM_SECONDS = 30.0  # for everything but the wait for a swarm: importing Petals, asking the servers, leaving
_CHECKS_APART = 6  # a rank may lag behind another one by this multiple of a check's limit
_FOLDER_SECONDS = 10.0  # until a new file appears on another host: network folders cache missing names
_SHOWN = 10
_SCHEDULER_HOSTS = ("SLURM_JOB_NUM_NODES", "SLURM_NNODES", "PET_NNODES")
_START_ALIKE = "Start torchrun on each host with the same --nnodes, --master-addr and --master-port, and --node-rank."
_FAILURES = {
    "group": (
        "The ranks could not connect: ",
        "They connect to each other directly, at ports that the system chooses: a firewall between the hosts must "
        "allow this.",
    ),
    "output folder": ("It cannot be used: ", "Choose another --output, or fix its permissions or its mount."),
}


def examine_run(config: DoctorConfig, scratch_dir: Path, probe: Path) -> int:
    """Checks the requirements of a run; every rank calls it, and rank 0 prints the findings."""
    try:
        topology = Topology.from_environment()
    except RunError as error:
        print(describe([Finding("error", "group", str(error))]), flush=True)
        return 1
    torch.set_num_threads(1)
    return Examination(config, topology, scratch_dir, probe).run()


class Examination:
    """One rank's part of the checks."""

    def __init__(self, config: DoctorConfig, topology: Topology, scratch_dir: Path, probe: Path) -> None:
        self.config, self.topology, self.scratch_dir, self.probe = config, topology, scratch_dir, probe
        self.limit, self.rank_store = config.check_timeout, RankStore(topology, "doctor")
        self.report = Report(topology.rank, topology.host)

    def run(self) -> int:
        """Runs the checks, reports the findings of all ranks on rank 0, and returns the exit status."""
        topology, limit = self.topology, self.limit
        self.check("versions", checks.check_versions)
        self.check("space", partial(checks.check_space, self.config.output_folder))
        stack = ExitStack()  # also closed within a limit; the workspace removes what an abandoned thread leaves
        probe = self.attempt("output folder", lambda: stack.enter_context(written_probe(self.probe)))
        hello = json.dumps([topology.host, probe])
        answers = self.attempt("group", lambda: self.gather("hello", hello, limit), 3 * limit)
        present = {rank: json.loads(text) for rank, text in (answers or {}).items()}
        late = _CHECKS_APART * limit + _SWARM_SECONDS
        ready: Iterable[int] = present
        if present:
            if probe is not None:
                probes = {rank: name for rank, (_, name) in present.items() if name is not None}
                self.check("output folder", partial(self.check_folder, probes), limit + _FOLDER_SECONDS)
            self.check_inputs()
        if topology.rank in present:  # joining the swarm forks (see `join_swarm`), so the group opens when all are done
            ready = self.attempt("group", lambda: self.gather("ready", "", late, present), 3 * late) or ()
        hosts = {rank: present[rank][0] for rank in ready}
        come_together = bool(hosts) and self.check("group", partial(self.check_group, hosts))
        if not come_together and topology.hosts > 1:
            self.check("names", partial(checks.check_names, topology))
        self.report.findings.sort(key=lambda finding: finding.subject not in ("group", "names"))
        if hosts:
            own = json.dumps(asdict(self.report))
            answers = self.attempt("group", lambda: self.gather("report", own, late, hosts), 3 * late)
        self.attempt("output folder", stack.close)
        if not hosts or not answers or topology.rank not in answers:  # rank 0 does not report for this one
            return self.finish([self.report])
        status = self.finish([Report.from_json(text) for _, text in sorted(answers.items())])
        # the store ends with the first host's torchrun, so rank 0 is the last to leave
        self.attempt("group", lambda: self.rank_store.publish(f"bye/{topology.rank}", ""), _CLEANUP_SECONDS)
        if topology.is_leader:
            self.attempt("group", lambda: self.collect("bye", answers, _CLEANUP_SECONDS), 2 * _CLEANUP_SECONDS)
        return status

    def check_inputs(self) -> None:
        """Checks the run's inputs and its swarm."""
        config, topology = self.config, self.topology
        opens = topology.is_host_leader and self.check("dataset", partial(checks.check_dataset, config))
        job = self.attempt("model", partial(checks.read_model, config))
        if job is None:
            return
        self.check("model", partial(checks.check_model, config, job))
        if opens and topology.is_leader:
            self.check("rows", partial(checks.check_rows, config, job, self.limit / 2))
        if config.backend == "petals":
            swarm = partial(checks.check_swarm, config, topology, job.base, self.scratch_dir)
            self.check("swarm", swarm, 2 * self.limit + _SWARM_SECONDS)

    def check(self, subject: str, action: Callable[[], str | checks.Equal], limit: float | None = None) -> bool:
        """Adds the finding of a check (see `attempt`); returns whether it ended without a fault."""
        found = self.attempt(subject, action, limit)
        if found is not None:
            message, equal = (found, {}) if isinstance(found, str) else found
            self.report.findings.append(Finding("fine", subject, message, equal=equal))
        return found is not None

    def attempt(self, subject: str, action: Callable[[], Any], limit: float | None = None) -> Any:
        """Returns the result of an action; if it fails or exceeds the limit, adds a finding and returns None."""
        seconds, answers = limit or self.limit, []
        what, advice = _FAILURES.get(subject, ("", ""))
        late = advice or "If it only takes long, give a longer --check-timeout."
        faults = [Fault(f"{what}no answer within {seconds:g} s", late)]

        def act() -> None:
            try:
                answers.append(action())
            except Exception as error:  # any error: the other checks continue
                faults.append(error if isinstance(error, Fault) else Fault(f"{what}{_reason(error)}", advice))

        thread = threading.Thread(target=act, name=subject, daemon=True)
        thread.start()
        thread.join(seconds)
        if answers:
            return answers[0]
        fault = faults[-1]
        self.report.findings.append(Finding(fault.level, subject, str(fault), fault.advice))
        return None

    def check_group(self, hosts: Mapping[int, str]) -> str:
        """Checks that all ranks are present and can form a process group; `hosts` has those that are present."""
        topology = self.topology
        if topology.rank not in hosts:
            raise Fault(
                f"Rank {topology.rank} on {topology.host} came after rank 0 had stopped waiting for it.",
                "Find out what delays it, or give a longer --check-timeout.",
            )
        missing = [str(rank) for rank in range(topology.world_size) if rank not in hosts]
        if missing:
            raise Fault(
                f"No report from {'ranks' if len(missing) > 1 else 'rank'} {', '.join(missing[:_SHOWN])} within "
                f"{self.limit:g} s; the others are on {', '.join(sorted(set(hosts.values()))[:_SHOWN])}.",
                "Check the log of the missing host, and whether it reaches "
                f"{os.environ.get('MASTER_ADDR', 'the first host')}.",
            )
        given = [int(os.environ[name]) for name in _SCHEDULER_HOSTS if os.environ.get(name, "").isdigit()]
        expected = self.config.expect_hosts or (given[0] if given else topology.hosts)
        if expected != topology.hosts:
            source = "--expect-hosts says" if self.config.expect_hosts else "The scheduler gave"
            split = ": each host may have formed its own group, and would evaluate everything"
            raise Fault(
                f"{source} {expected} hosts, but this group has {topology.hosts}{split * (topology.hosts == 1)}.",
                _START_ALIKE,
            )
        if topology.world_size == 1:
            return f"one rank on {topology.host}"
        require_known_interfaces()
        start = time.monotonic()
        with process_group(topology, self.rank_store, self.limit):
            ranks_of_host = Counter(all_gather(topology.host))
            seconds = time.monotonic() - start
        places = ", ".join(f"{count} on {host}" for host, count in list(ranks_of_host.items())[:_SHOWN])
        if len(ranks_of_host) == 1:
            places = f"all on {topology.host}"
        return f"{topology.world_size} ranks ({places}) connected in {seconds:.1f} s"

    def check_folder(self, probes: Mapping[int, str]) -> str:
        """Checks that the output folder shows the files of all ranks, and is not in use."""
        folder = self.config.output_folder.absolute()
        unseen = unseen_probes(folder, probes)
        if unseen:
            raise Fault(
                f"Hosts do not share it: a file that rank {unseen[0]} wrote to {folder} does not appear. Results will "
                "be only on the first host, and a run can be resumed only on the same hosts.",
                "Give the full path of a folder that all hosts share as --output.",
                "warning",
            )
        others = {path.name for path in folder.glob(f"{PROBE_PREFIX}*")} - {self.probe.name, *probes.values()}
        if len(probes) == self.topology.world_size and any(is_locked(folder / name) for name in others):
            raise Fault(
                f"Another group checks {folder} right now: the hosts may have formed separate groups.", _START_ALIKE
            )
        if is_locked(folder / JOURNAL / LOCK_FILE):
            message = f"{folder} is in use by another run ({last_holder(folder) or 'an unknown process'})."
            raise Fault(message, "Wait until it ends, or choose another --output.")
        status = "missing" if self.config.overwrite else read_outcome(folder).status
        if status == "complete":
            raise Fault(
                f"{folder} holds a complete run: the same command only shows its results, other runs are refused.",
                "Choose another --output, or replace them with --overwrite.",
                "warning",
            )
        earlier = "" if status == "missing" else f"; it holds a run ({status}), which the same command resumes"
        return f"{folder} can be written{f', seen by all {len(probes)} ranks' * (len(probes) > 1)}{earlier}"

    def gather(self, name: str, value: str, timeout: float, ranks: Iterable[int] = ()) -> dict[int, str]:
        """Gathers the values of ranks (by default all) on all of them, except those that are late."""
        self.rank_store.publish(f"{name}/{self.topology.rank}", value)
        if not self.topology.is_leader:
            values = json.loads(self.rank_store.wait_for(f"{name}/all", 2 * timeout))
            return {int(rank): text for rank, text in values.items()}
        found = self.collect(name, ranks or range(self.topology.world_size), timeout)
        self.rank_store.publish(f"{name}/all", json.dumps(found))
        return found

    def collect(self, name: str, ranks: Iterable[int], timeout: float) -> dict[int, str]:
        """Waits for the values of ranks; returns those published in time."""
        deadline, keys = time.monotonic() + timeout, {f"{name}/{rank}": rank for rank in ranks}
        with self.rank_store.connect() as store:
            while time.monotonic() < deadline and not store.check(list(keys)):
                time.sleep(_POLL_SECONDS)
            return {rank: store.get(key).decode() for key, rank in keys.items() if store.check([key])}

    def finish(self, reports: list[Report]) -> int:
        """Prints and writes the findings, on rank 0 or an isolated rank; returns the exit status."""
        findings = conclude(reports)
        status = int(has_errors(findings))
        if not self.topology.is_leader and reports != [self.report]:
            return status
        print(describe(findings), flush=True)
        if self.topology.is_leader:
            peers = self.config.initial_peers
            path = self.attempt("report", lambda: write_report(self.config.output_folder, findings, reports, peers))
            said = f"all findings: {path}"
            if path is None:
                said = f"The findings could not be written: {self.report.findings[-1].message}."
            print(said, flush=True)
        return status


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.strerror} ({error.filename})"
    return one_line(error)


@contextmanager
def written_probe(path: Path) -> Iterator[str]:
    """Writes and locks a file during the context, as a run does in its folder; yields its name."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        with path.open("x") as file:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield path.name
    finally:
        path.unlink(missing_ok=True)


def unseen_probes(folder: Path, probes: Mapping[int, str]) -> list[int]:
    """Returns the ranks whose probes do not appear in a folder within some seconds."""
    deadline = time.monotonic() + _FOLDER_SECONDS
    while True:
        there = set(os.listdir(folder))
        unseen = [rank for rank, name in probes.items() if name not in there]
        if not unseen or time.monotonic() > deadline:
            return unseen
        time.sleep(_POLL_SECONDS)


def is_locked(path: Path) -> bool:
    """Returns whether another process has an exclusive lock on a file."""
    with suppress(FileNotFoundError), path.open() as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared, because other ranks may check at the same time
        except (BlockingIOError, PermissionError):
            return True
    return False
