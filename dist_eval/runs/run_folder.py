"""The folder of any kind of run: who uses it, what a new start finds in it, and how the run ends.

The file with the results is written first with status "running", and replaced atomically whenever something changes, so
that a reader always sees a complete and current file.
"""

from __future__ import annotations

import json
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from dist_eval.distributed.stop import STOP_FILE, asked_by_a_person
from dist_eval.errors import RunError, RunStopped, translating_os_errors
from dist_eval.process.files import write_atomically
from dist_eval.results.inputs import Coverage
from dist_eval.results.run import RecordedOptions, RunFailure, RunHeader, RunningRun
from dist_eval.runs.environment import environment, now
from dist_eval.runs.files import JOURNAL
from dist_eval.runs.fingerprint import Fingerprint
from dist_eval.runs.folder_lock import last_holder, take_lock
from dist_eval.runs.journal import forget_journal, has_batches
from dist_eval.runs.outcome import read_outcome
from dist_eval.schema import SCHEMA_VERSION

_PEER = re.compile(r"(?:/[\w.:-]+)*/p2p/[1-9A-HJ-NP-Za-km-z]{40,}|\b(?:Qm|12D3Koo)[1-9A-HJ-NP-Za-km-z]{40,}")
"""A peer's address, or its ID alone."""


class RunFolder(ABC):
    """The folder of one run; `EvaluationFolder` and `TuningFolder` say what it contains.

    Args:
        path: path of the folder.
        options: all options of the run, as they are recorded.
        overwrite: whether to start afresh, whatever the folder holds.
        peers: addresses of the swarm's peers, which are not recorded.

    Attributes:
        path: path of the folder.
        options: all options of the run, as they are recorded.
        holder: the leader of this run, as in the folder's lock; empty until it has opened the folder.
        results_name: name of the file with the results.
        resume_source: what a resumed run continues from, for messages.
        foreign_files: files that show, where `results_name` is missing, that the folder belongs to something else.
        derived_files: files that are removed when the run begins, because they are made at its end.
    """

    results_name: str
    resume_source: str
    foreign_files: tuple[str, ...]
    derived_files: tuple[str, ...] = ()

    def __init__(
        self, path: Path, options: RecordedOptions, *, overwrite: bool = False, peers: Sequence[str] = ()
    ) -> None:
        self.path, self.options = path, options
        self._overwrite, self._peers = overwrite, peers
        self._lock: int | None = None
        self._before: RunHeader | None = None
        self.holder = ""

    def open(self, attempt: int = 0) -> None:
        """Takes the folder's lock, and writes its results with status "running" unless they are complete.

        Args:
            attempt: how often torchrun has restarted the group.

        Raises:
            RunError: the folder cannot be written, or another run is using it.
        """
        with translating_os_errors(RunError, f"The output folder {self.path} cannot be written"):
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._require_no_foreign_files()
            (self.path / JOURNAL).mkdir(exist_ok=True, mode=0o700)
            lock = take_lock(self.path)
            self._lock, self.holder = lock.descriptor, lock.holder
            # an earlier attempt may have ended before it opened the folder
            is_first = attempt == 0 or not lock.is_restart
            if is_first:
                self._clear()
            if not (is_first and self._overwrite):
                self._before = self._read()
                self._require_known_format()
            if self._before is None or self._before.status != "complete":
                self._begin()

    def open_on_host(self) -> None:
        """Prepares the folder on a further host, which may have one of its own; before the leader claims the folder.

        Raises:
            RunError: the folder cannot be written.
        """
        with translating_os_errors(RunError, f"The output folder {self.path} cannot be written"):
            self._clear()

    def _clear(self) -> None:
        """Removes what the first attempt of a start removes: whoever starts the run again wants it to go on."""
        (self.path / STOP_FILE).unlink(missing_ok=True)
        if self._overwrite:
            self._forget()

    @property
    def is_ours(self) -> bool:
        """Whether the folder is still this run's: another one may use it before this one has opened it, or since."""
        return self._lock is not None or (self.holder != "" and last_holder(self.path) == self.holder)

    def _require_no_foreign_files(self) -> None:
        found = [name for name in self.foreign_files if (self.path / name).exists()]
        if found and not (self.path / self.results_name).exists():
            raise RunError(
                f"The output folder {self.path} holds {', '.join(found)} of something else. Choose another --output."
            )

    def _require_known_format(self) -> None:
        if self._before is None and read_outcome(self.path).status == "complete":
            raise RunError(
                f"{self.path / self.results_name} is that of a complete run, but has another format than this version "
                "writes. Choose another --output, or replace it with --overwrite."
            )

    def claim(self, fingerprint: Fingerprint) -> bool:
        """Compares this run with the one in the folder, and prepares the journal.

        Args:
            fingerprint: what the results depend on.

        Returns:
            Whether there is something to do: False if the folder holds this run, complete.

        Raises:
            RunError: the folder holds another run; the message names what differs.
        """
        with translating_os_errors(RunError, f"The output folder {self.path} cannot be read or written"):
            before, earlier = self._before, Fingerprint.load(self.path)
            status = before.status if before else None
            if earlier is None and status == "complete":
                raise RunError(
                    f"{self.path} holds the results of a complete run, but no {JOURNAL} that identifies it. Choose "
                    "another --output, or replace them with --overwrite."
                )
            if earlier is None:
                self._forget()
            changed = fingerprint.changed(earlier) if earlier else []
            if changed:
                if before and status != "complete":
                    self._write(before)
                raise RunError(
                    f"{self.path} holds {'the results' if status == 'complete' else 'a part'} of another run: what "
                    f"differs is the {' and the '.join(changed)}. Choose another --output, or start afresh with "
                    "--overwrite."
                )
            if self.is_complete:
                return False
            if status == "complete":
                self._begin()
            fingerprint.save(self.path)
        return True

    def close(self) -> None:
        """Releases the lock, so that other runs may use the folder."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    @property
    def is_complete(self) -> bool:
        """Whether the folder, when it was opened, held a complete run of which nothing is to be tried again."""
        before = self._before
        return before is not None and before.status == "complete" and not self._has_failed_examples(before)

    @property
    def is_resumable(self) -> bool:
        """Whether a new start would find finished batches."""
        return has_batches(self.path)

    @property
    def is_running(self) -> bool:
        """Whether the results say that the run has not ended."""
        results = self._read()
        return results is not None and results.status == "running"

    def _forget(self) -> None:
        """Removes what a resumed run would continue from."""
        forget_journal(self.path)

    def _begin(self) -> None:
        for name in self.derived_files:
            (self.path / name).unlink(missing_ok=True)
        self._write(self._started())

    def _started(self) -> RunHeader:
        """Returns the results of a run that begins now."""
        return RunningRun(
            schema_version=SCHEMA_VERSION,
            status="running",
            error=None,
            started=now(),
            finished=None,
            config=self.options,
            environment=environment(),
        )

    def _header(self) -> dict[str, Any]:
        """Returns what is known of every run, by name of the field."""
        results = self._read() or self._started()
        return {name: getattr(results, name) for name in RunHeader.model_fields}

    @abstractmethod
    def _ended(self, run: RunHeader, **changes: Any) -> RunHeader:
        """Returns the results of a run that has ended without being complete."""

    @abstractmethod
    def _parse(self, content: bytes) -> RunHeader:
        """Reads the content of the file with the results.

        Raises:
            ValueError: it has another format.
        """

    def _has_failed_examples(self, results: RunHeader) -> bool:
        """Returns whether a complete run has examples that a new start would try again."""
        return False

    def fail(
        self,
        message: str,
        *,
        rank: int,
        host: str,
        coverage: Mapping[str, int] | None = None,
        transient: bool = False,
    ) -> bool:
        """Marks the run as failed, on the rank that has the root cause.

        Args:
            message: the reason.
            rank: the rank that failed.
            host: its host.
            coverage: the counts, if the reason is that the dataset is not covered exactly once.
            transient: whether a new start may get further although nothing is changed.

        Returns:
            Whether it was marked: a run that has not opened the folder, or a later one has, leaves it unchanged.

        Raises:
            OSError: the folder cannot be written any more.
        """
        failure = RunFailure(message=self._without_peers(message), rank=rank, host=host, transient=transient)
        return self._end("failed", failure, coverage)

    def stop(
        self,
        message: str,
        *,
        rank: int,
        host: str,
        coverage: Mapping[str, int] | None = None,
        transient: bool = True,
        may_restart: bool = False,
    ) -> bool:
        """Marks the run as incomplete, and keeps torchrun's restarts from resuming it.

        All else is as with `fail`.

        Args:
            message: the reason.
            rank: the rank that was asked to stop.
            host: its host.
            coverage: what is done.
            transient: whether a new start may get further although nothing is changed.
            may_restart: torchrun may have interrupted the rank in order to restart it, so that it should resume.
        """
        if not self.is_ours:
            return False
        if not may_restart:
            (self.path / STOP_FILE).touch()
        transient = transient and not asked_by_a_person(message)
        failure = RunFailure(message=self._without_peers(message), rank=rank, host=host, transient=transient)
        return self._end("incomplete", failure, coverage)

    def _without_peers(self, message: str) -> str:
        for address in self._peers:
            message = message.replace(address, "(peer, not recorded)")
        return _PEER.sub("(peer, not recorded)", message)

    def _end(self, status: str, error: RunFailure, coverage: Mapping[str, int] | None) -> bool:
        if not self.is_ours or (results := self._read()) is None or results.status != "running":
            return False  # never change the results of a complete run
        counts = {} if coverage is None else {"coverage": Coverage.model_validate(coverage)}
        self._write(self._ended(results, status=status, error=error, finished=now(), **counts))
        return True

    @contextmanager
    def recording_stop(self, *, rank: int, host: str, is_leader: bool) -> Iterator[None]:
        """Marks the run as incomplete as soon as it stops: leaving a swarm may take longer than torchrun waits."""
        try:
            yield
        except RunStopped as error:
            if is_leader:
                coverage = error.coverage.model_dump() if isinstance(error.coverage, Coverage) else None
                with suppress(OSError):  # a full disk: finished batches are in the journal
                    self.stop(str(error), rank=rank, host=host, coverage=coverage)
            raise

    def _read(self) -> RunHeader | None:
        """Returns the results; None if they are missing or damaged.

        Raises:
            OSError: they cannot be read: perhaps later.
        """
        try:
            return self._parse((self.path / self.results_name).read_bytes())
        except (FileNotFoundError, ValueError):
            return None

    def _write(self, results: RunHeader) -> None:
        text = json.dumps(results.to_json(), indent=2, allow_nan=False) + "\n"
        write_atomically(self.path / self.results_name, text.encode())


class NoFolder(RunFolder):
    """Stands for the folder of a command that leaves no files."""

    results_name, resume_source, foreign_files = "", "", ()
    is_resumable = is_running = False

    def open(self, attempt: int = 0) -> None:
        """Does nothing."""

    def open_on_host(self) -> None:
        """Does nothing."""

    def fail(self, message: str, **known: Any) -> bool:
        """Does nothing: there is no file to mark."""
        return False

    stop = fail

    def _ended(self, run: RunHeader, **changes: Any) -> RunHeader:
        return run

    def _parse(self, content: bytes) -> RunHeader:
        raise ValueError("there is no file with results")
