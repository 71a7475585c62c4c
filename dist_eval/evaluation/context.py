"""Takes a rank from the start of a run to the process group of all ranks.

The order matters. The swarm is opened first, because it forks. The host leaders then tokenize the dataset while the
other ranks load the model, and the process group comes last: a fork would inherit its sockets.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Generic, TypeVar

import torch

from dist_eval.data.answers import AnswerColumns
from dist_eval.data.chat import set_chat_time
from dist_eval.data.plan import BatchPlan
from dist_eval.distributed.collectives import explaining_lost_ranks, process_group, require_known_interfaces
from dist_eval.distributed.rank_store import RankStore, Topology
from dist_eval.distributed.stop import Stop
from dist_eval.errors import RunStopped
from dist_eval.inference.in_flight import Window, window_in_memory
from dist_eval.inference.models import AnsweringModel
from dist_eval.model.backends import SwarmPeers, load_model, open_swarm
from dist_eval.model.base_model_spec import BaseModelSpec, ModelTarget
from dist_eval.options.config import RunConfig
from dist_eval.options.groups import SwarmOptions
from dist_eval.petals.client.records import Swarm
from dist_eval.report.naming import without_folders
from dist_eval.results.inputs import Coverage
from dist_eval.results.run import Revisions
from dist_eval.revisions import pin, resolve_commit
from dist_eval.runs.fingerprint import Fingerprint
from dist_eval.runs.journal import Journal
from dist_eval.runs.run_folder import RunFolder
from dist_eval.tracking import PROJECT, Trackers, require_trackers, trackers_in_background

_OPENING_SECONDS = 120.0
# Longest wait for the rank that tokenizes; if it dies, torchrun ends the waiting ranks at once. A hundred million long
# texts take about a day.
_PREPARATION_SECONDS = 72 * 3600.0

_TO_DO, _COMPLETE, _RESULTS = "to do", "complete", "results written"

Config = TypeVar("Config", bound=RunConfig)
Folder = TypeVar("Folder", bound=RunFolder)


@dataclass
class RunContext(Generic[Config, Folder]):
    """One rank's part of a run, as a context: it closes whatever its methods have opened.

    Every rank calls the methods in the same order.
    """

    config: Config  # the run's options
    topology: Topology  # this process's place among the ranks
    rank_store: RankStore  # the store shared by the ranks
    scratch_dir: Path  # this rank's private folder for sockets and tokenized data (see `process.lifetime.workspace`)
    folder: Folder  # the run's folder
    stop: Stop = field(default_factory=Stop)  # whether the run was asked to stop
    # the servers at the start, as in the section `swarm` of `results.json`; None without a swarm or before the model is
    # loaded
    swarm: Swarm | None = None
    trackers: Trackers = field(default_factory=Trackers)  # where the leader logs to
    # whether the folder holds a complete run of this kind, so that no swarm is needed
    has_results: bool = False
    _closing: ExitStack = field(default_factory=ExitStack, init=False, repr=False)
    _peers: SwarmPeers = field(default_factory=SwarmPeers, init=False, repr=False)

    def __enter__(self) -> RunContext[Config, Folder]:
        """Opens the run's folder on the leader; it stays open until the end of the run is recorded."""
        require_known_interfaces()
        if self.topology.is_leader:
            require_trackers(self.config.tracker)
            self.folder.open(self.topology.attempt)
        self.publish_as_leader("opened", lambda: json.dumps([self.folder.is_complete, self.folder.holder]))
        opened = self.rank_store.wait_for("opened", _OPENING_SECONDS)
        self.has_results, self.folder.holder = json.loads(opened)
        if self.config.revisions:
            self._pin_revisions()
        if getattr(self.config, "apply_chat_template", False):
            self._set_chat_time()
        if self.topology.is_host_leader:
            if not self.topology.is_leader:
                self.folder.open_on_host()
            self.rank_store.publish(f"scratch/{self.topology.node}", str(self.scratch_dir))
        torch.set_num_threads(1)  # so that sums are added up in the same order on any number of ranks
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        return self._closing.__exit__(kind, error, traceback)

    def _pin_revisions(self) -> None:
        """Sets the commits that all ranks read: those of an earlier start of this run, if there was one."""

        def resolve() -> str:
            kinds = self.config.revisions
            earlier = self.folder.earlier_revisions()
            commits = earlier or Revisions(**{kind: resolve_commit(kind, *of) for kind, of in kinds.items()})
            self.folder.record(revisions=commits)
            return commits.model_dump_json(exclude_none=True)

        self.publish_as_leader("revisions", resolve)
        commits = json.loads(self.rank_store.wait_for("revisions", _OPENING_SECONDS))
        for kind, (name, _) in self.config.revisions.items():
            pin(kind, name, commits[kind])

    def _set_chat_time(self) -> None:
        """Sets the time that chat templates read on all ranks, as at the first start of this run."""

        def choose() -> str:
            time = self.folder.earlier_chat_time() or datetime.now().isoformat(timespec="seconds")
            self.folder.record(chat_time=time)
            return time

        self.publish_as_leader("chat time", choose)
        set_chat_time(datetime.fromisoformat(self.rank_store.wait_for("chat time", _OPENING_SECONDS)))

    def publish_as_leader(self, key: str, make: Callable[[], str]) -> None:
        """Publishes a value that only the leader computes."""
        if self.topology.is_leader:
            self.rank_store.publish(key, make())

    def wait_for(self, key: str) -> str:
        """Waits, for days if necessary, for a value that the leader or this host's leader prepares."""
        return self.rank_store.wait_for(key, _PREPARATION_SECONDS)

    def open_trackers(self, project: str = PROJECT) -> Trackers:
        """Opens the trackers that the options name, on the leader, in the open process group.

        At the end they get a limited time to send what was logged.
        """
        options = without_folders(self.config.recorded())
        opened = trackers_in_background(self.config.tracker, self.folder.path, options, project)
        self.trackers = self._closing.enter_context(opened)
        return self.trackers

    def open_swarm(self, base: BaseModelSpec) -> None:
        """Opens the swarm that the options name, if any (see `model.backends.open_swarm`)."""
        if self.config.backend == "petals":
            options, echo = self.config.select(SwarmOptions), self.config.verbose
            self._peers = self._closing.enter_context(
                open_swarm(options, base, self.topology, self.rank_store, echo=echo)
            )

    def publish_dataset(self, write: Callable[[Path], None]) -> None:
        """Lets each host's leader write the tokenized dataset to a folder; only host leaders call `write`."""
        if self.topology.is_host_leader:
            write(self.scratch_dir)
            self.rank_store.publish(f"data/{self.topology.node}", str(self.scratch_dir))

    def wait_for_dataset(self) -> Path:
        """Waits for the folder that this host's leader has written."""
        return Path(self.wait_for(f"data/{self.topology.node}"))

    def claim(self, is_new: Callable[[], bool]) -> None:
        """Lets the leader compare this run with the one in the folder.

        Only the leader calls `is_new`, which returns whether there is something to do, or raises a `RunError` if the
        folder holds another run.
        """
        if self.topology.is_leader:
            for node in range(self.topology.hosts):  # the leader clears their parts of the folder
                self.wait_for(f"scratch/{node}")
        self.publish_as_leader("claim", lambda: _TO_DO if is_new() else _COMPLETE)

    def load_model(self, base: BaseModelSpec, target: ModelTarget) -> AnsweringModel:
        """Loads the model (see `model.backends.load_model`)."""
        options = self.config.select(SwarmOptions) if self.config.backend == "petals" else None
        host_dir = Path(self.wait_for(f"scratch/{self.topology.node}"))
        model, self.swarm = load_model(
            base,
            target,
            options,
            self._peers,
            self.topology,
            self.scratch_dir,
            shared_dir=host_dir / "pacing",
            compression=self.config.compression,
        )
        self._closing.callback(model.close)
        return model

    def is_complete(self) -> bool:
        """Returns what the leader found in `claim`: whether the folder holds the complete run."""
        return self.wait_for("claim") == _COMPLETE

    def window(self, base: BaseModelSpec, plan: BatchPlan | None = None, gradients: int = 0) -> Window:
        """Returns this rank's window of requests in flight, sized within its share of the host's memory.

        Batches of the plan with a shared prefix may have more tokens than a forward. For `gradients`, see
        `window_in_memory`.
        """
        return window_in_memory(
            self.topology,
            in_flight=self.config.in_flight,
            tokens=max(base.token_budget, plan.most_tokens if plan else 0),
            hidden_size=base.config.hidden_size,
            timeout=self.config.request_timeout,
            gradients=gradients,
        )

    def announce_results(self) -> None:
        """Tells the other hosts that the results are written; the leader calls it."""
        self.publish_as_leader(_RESULTS, lambda: "")

    def wait_for_results(self) -> None:
        """Waits on the other hosts until the leader has written the results.

        If the leader's host fails, a scheduler would not restart hosts that have exited with 0.
        """
        if self.topology.hosts > 1 and self.topology.is_host_leader:
            self.wait_for(_RESULTS)

    def open_journal(self, plan: BatchPlan, columns: AnswerColumns, fingerprint: Fingerprint) -> Journal:
        """Opens this rank's journal, which is closed at the end."""
        run = fingerprint.digest()
        journal = Journal(self.folder.path, plan.sizes, columns, rank=self.topology.rank, run=run)
        self._closing.callback(journal.close)
        return journal

    @contextmanager
    def process_group(self) -> Iterator[None]:
        """Opens the process group once all ranks are ready, and records in the folder when the run is stopped.

        Raises LostRankError if the connection to another rank is lost, and RunStopped, on all ranks, if the run was
        asked to stop.
        """
        topology = self.topology
        self.rank_store.barrier("ready", _PREPARATION_SECONDS)
        with (
            explaining_lost_ranks(topology, self.rank_store, lambda: self.stop.reason),
            process_group(topology, self.rank_store, self.config.collective_timeout),
            _recording_stop(self.folder, topology),
        ):
            yield


@contextmanager
def _recording_stop(folder: RunFolder, topology: Topology) -> Iterator[None]:
    """Marks the run as incomplete as soon as it stops: leaving a swarm may take longer than torchrun waits."""
    try:
        yield
    except RunStopped as error:
        if topology.is_leader:
            coverage = error.coverage.model_dump() if isinstance(error.coverage, Coverage) else None
            with suppress(OSError):  # a full disk: finished batches are in the journal
                folder.stop(str(error), rank=topology.rank, host=topology.host, coverage=coverage)
        raise
