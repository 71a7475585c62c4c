"""The folder of any kind of run: its lock, earlier results in it, and the status of the run.

The results file is first written with status "running", and replaced atomically whenever something changes, so that a
reader always sees a complete and current file.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from dist_eval.distributed.stop import STOP_FILE, asked_by_a_person, leave_stop_file
from dist_eval.errors import RunError, print_error, translating_os_errors
from dist_eval.process.files import remove_temporary, write_atomically
from dist_eval.process.parsing import parse_json
from dist_eval.results.run import RUN, RecordedOptions, Revisions, RunFailure, RunHeader
from dist_eval.runs.digests import damaged_table, is_intact, with_digests
from dist_eval.runs.environment import environment, now
from dist_eval.runs.files import JOURNAL
from dist_eval.runs.fingerprint import Fingerprint
from dist_eval.runs.folder_lock import last_holder, require_journal_of_ours, take_lock
from dist_eval.runs.found_results import Claim, FoundResults, what_is_wrong
from dist_eval.runs.journal import forget_journal, has_batches, has_batches_of
from dist_eval.runs.outcome import read_outcome
from dist_eval.schema import SCHEMA_VERSION

# A peer's address, or its ID alone. An address begins only where a path does; otherwise, a long path without a peer
# would be searched to its end from each of its parts.
_PEER = re.compile(r"(?<![\w.:/-])[\w.:/-]*/p2p/[1-9A-HJ-NP-Za-km-z]{40,}|\b(?:Qm|12D3Koo)[1-9A-HJ-NP-Za-km-z]{40,}")
_NO_PEER = "(peer, not recorded)"
_OF_REVISIONS = ("model", "revision", "dataset", "dataset_revision")  # options that choose commits


class RunFolder:
    """The folder of one run; `EvaluationFolder` and `TuningFolder` define its files, `NoFolder` has none.

    `options` are all options of the run, as they are recorded; `peers`, the addresses of the swarm's peers, are not
    recorded. `overwrite` discards the contents of the folder.
    """

    results_name: str  # name of the file with the results
    records: TypeAdapter[Any]  # validates the results
    resume_source: str  # for messages: what a resumed run continues from
    foreign_files: tuple[str, ...]  # without `results_name`, these show that the folder belongs to something else
    derived_files: tuple[str, ...] = ()  # made at the end of a run, so removed when it begins

    def __init__(
        self, path: Path, options: RecordedOptions, *, overwrite: bool = False, peers: Sequence[str] = ()
    ) -> None:
        self.path, self.options = path, options
        self._overwrite, self._peers = overwrite, peers
        self._lock: int | None = None
        self.holder = ""  # describes the leader of this run, as in the lock; empty until it has opened the folder
        self._found = FoundResults()
        self._recorded: dict[str, Any] = {}
        self._rescored: Fingerprint | None = None  # of a complete run whose answers are scored again

    def open(self, attempt: int = 0) -> None:
        """Takes the folder's lock, and writes its results with status "running".

        Results that are complete or damaged stay until `claim` has agreed to replace them. `attempt` is how often
        torchrun has restarted the group.
        """
        with translating_os_errors(RunError, f"The output folder {self.path} cannot be written"):
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._require_no_foreign_files()
            require_journal_of_ours(self.path)
            (self.path / JOURNAL).mkdir(exist_ok=True, mode=0o700)
            lock = take_lock(self.path)
            self._lock, self.holder = lock.descriptor, lock.holder
            # an earlier attempt may have ended before it opened the folder
            is_first = attempt == 0 or not lock.is_restart
            if is_first:
                self._clear()
            remove_temporary(self.path)  # of a leader that was killed; in the journal other ranks may be writing
            if not (is_first and self._overwrite):
                self._found = self._find_results()
            self._recorded = {"revisions": self.earlier_revisions(), "chat_time": self.earlier_chat_time()}
            if not self._found.are_kept:
                self._write(self._started())

    def earlier_revisions(self) -> Revisions | None:
        """Returns the commits that an earlier start of this run read; None if its options chose others."""
        found = self._found.results
        is_same = found is not None and all(found.config.get(name) == self.options.get(name) for name in _OF_REVISIONS)
        return found.revisions if found and is_same else None

    def earlier_chat_time(self) -> str | None:
        """Returns the time that chat templates read in an earlier start of this run."""
        found = self._found.results
        return found.chat_time if found and self.options.get("apply_chat_template") else None

    def record(self, **known: Any) -> None:
        """Records values of the `RunHeader` that become known after the start."""
        self._recorded.update(known)
        if not self._found.are_kept:
            with translating_os_errors(RunError, f"The output folder {self.path} cannot be written"):
                self._write(self._started())

    def open_on_host(self) -> None:
        """Prepares the folder on another host, which may not share it, before the leader claims the folder."""
        with translating_os_errors(RunError, f"The output folder {self.path} cannot be written"):
            require_journal_of_ours(self.path)
            if last_holder(self.path) != self.holder:  # otherwise it is the leader's folder, cleared already
                self._clear()

    def _clear(self) -> None:
        """Removes what a new start replaces: the request to stop, and with --overwrite the earlier run."""
        (self.path / STOP_FILE).unlink(missing_ok=True)
        if self._overwrite:
            self._forget()
            self._remove_derived()

    @property
    def is_ours(self) -> bool:
        """Whether the folder is this run's: another run may have used it before this one opened it, or since then."""
        return self.holder != "" and (self._lock is not None or last_holder(self.path) == self.holder)

    def _require_no_foreign_files(self) -> None:
        found = [name for name in self.foreign_files if (self.path / name).exists()]
        if found and not (self.path / self.results_name).exists():
            raise RunError(
                f"The output folder {self.path} holds {', '.join(found)} of a run of another kind. Choose another "
                "--output."
            )

    def _find_results(self) -> FoundResults:
        """Reads the results in the folder, and finds a damaged file."""
        path = self.path / self.results_name
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return FoundResults()
        results = self._parse(content)
        if results is None and read_outcome(self.path).status == "complete":
            raise RunError(
                f"{path} is from a complete run, but not in the format of this version. Choose another --output, or "
                "replace it with --overwrite."
            )
        damaged = self.results_name if results is None else damaged_table(results, self.path)
        return FoundResults(content, results, self.path / damaged if damaged else None)

    def claim(self, fingerprint: Fingerprint, answers: Fingerprint | None = None) -> bool:
        """Compares this run with the one in the folder, prepares the journal, and returns whether there is work to do.

        There is none if the folder holds this run, complete. Damaged files are restored from the journal if it belongs
        to this run. Without `--overwrite`, nothing is removed that could be resumed. `answers` are the inputs that the
        batches in the journal depend on, if they differ from those of the results. If the folder holds another run, the
        RunError names what differs.
        """
        with translating_os_errors(RunError, f"The output folder {self.path} cannot be read or written"):
            claim = Claim(
                folder=self.path,
                fingerprint=fingerprint,
                earlier=Fingerprint.load(self.path),
                found=self._found,
                has_own_batches=has_batches_of(self.path, answers or fingerprint),
                is_resumable=self.is_resumable,
                has_derived_files=any(map(os.path.lexists, self._derived())),
            )
            if objection := claim.objection:
                self.holder = ""  # the folder stays with its own run
                self._found.restore(self.path / self.results_name)
                raise RunError(
                    f"{self.path} holds {objection}. Choose another --output, or start afresh with --overwrite."
                )
            is_unknown = claim.earlier is None
            if is_unknown and claim.has_own_batches:
                print_error(f"{claim.why_unknown}: the batches are identified by their file names and kept.")
            elif is_unknown:
                forget_journal(self.path)
            if self.is_complete and claim.is_scored_otherwise:
                print_error("The tasks have changed, but not their requests: the finished answers are scored again.")
                self._rescored = fingerprint  # the results and their fingerprint stay until others replace them
                return True
            has_work = not self.is_complete or (is_unknown and answers is not None)  # names identify answers only
            if has_work:
                if self._found.damaged and self.is_resumable:
                    print_error(f"{what_is_wrong(self._found.damaged)}: it is restored from {self.resume_source}.")
                self._remove_derived()
                if self._found.are_kept:
                    self._write(self._started())
            if has_work or is_unknown:
                fingerprint.save(self.path)
        return has_work

    def close(self) -> None:
        """Releases the lock, so that other runs may use the folder."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    @property
    def is_complete(self) -> bool:
        """Whether the folder, when it was opened, held an intact complete run without failed examples to retry."""
        found = self._found
        before = found.results if found.was_complete and not found.damaged else None
        return before is not None and not self._has_failed_examples(before)

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
        forget_journal(self.path)

    def _remove_derived(self) -> None:
        for path in self._derived():
            path.unlink(missing_ok=True)

    def _derived(self) -> list[Path]:
        """Returns the files that are made at the end of a run, whether they exist or not."""
        return [self.path / name for name in self.derived_files]

    def _started(self) -> RunHeader:
        started = RunHeader(
            schema_version=SCHEMA_VERSION,
            status="running",
            error=None,
            started=now(),
            finished=None,
            config=self.options,
            environment=environment(),
            **self._recorded,
        )
        return self.records.validate_python(started.to_json())

    def _header(self) -> dict[str, Any]:
        results = self._read() or self._started()
        return {name: getattr(results, name) for name in RunHeader.model_fields}

    def _has_failed_examples(self, results: RunHeader) -> bool:
        """Returns whether a complete run has examples that a new start would retry."""
        return False

    def fail(
        self, message: str, *, rank: int, host: str, coverage: Mapping[str, int] | None = None, transient: bool = False
    ) -> bool:
        """Marks the run as failed, on the rank that has the root cause; returns whether it was marked.

        The folder stays unchanged if this run has not opened it, or a later run has. `coverage` has the counts if the
        dataset was not covered exactly once; `transient` says whether a new start may get further without any change.
        Raises OSError if the folder can no longer be written.
        """
        return self._end("failed", coverage, message, rank=rank, host=host, transient=transient)

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

        Otherwise like `fail`. With `may_restart`, torchrun may have interrupted the rank in order to restart it, so
        restarts still resume the run.
        """
        if not self.is_ours:
            return False
        if not may_restart:
            leave_stop_file(self.path)
        transient = transient and not asked_by_a_person(message)
        return self._end("incomplete", coverage, message, rank=rank, host=host, transient=transient)

    def _end(self, status: str, coverage: Mapping[str, int] | None, message: str, **known: Any) -> bool:
        if not self.is_ours or (results := self._read()) is None or results.status != "running":
            return False  # the results of a complete run never change
        for address in self._peers:
            message = message.replace(address, _NO_PEER)
        error = RunFailure(message=_PEER.sub(_NO_PEER, message), **known)
        changes = {"status": status, "error": error.to_json(), "finished": now(), "coverage": coverage}
        self._write(self.records.validate_python({**results.to_json(), **changes}))
        return True

    def _read(self) -> RunHeader | None:
        """Returns the results; None if they are missing or damaged."""
        try:
            return self._parse((self.path / self.results_name).read_bytes())
        except FileNotFoundError:
            return None

    def _parse(self, content: bytes) -> RunHeader | None:
        try:
            parsed = parse_json(content)
            return self.records.validate_python(parsed) if is_intact(parsed) else None
        except ValueError:
            return None

    def _write(self, results: RunHeader) -> None:
        content = with_digests(results, self.path)
        text = json.dumps(content, indent=2, allow_nan=False) + "\n"
        write_atomically(self.path / self.results_name, text.encode())


class NoFolder(RunFolder):
    """Stands for the folder of a command that leaves no files."""

    results_name, records, resume_source, foreign_files = "", RUN, "", ()
    is_resumable = is_running = False

    def open(self, attempt: int = 0) -> None:
        """Does nothing."""

    def open_on_host(self) -> None:
        """Does nothing."""

    def record(self, **known: Any) -> None:
        """Does nothing."""

    def fail(self, message: str, **known: Any) -> bool:
        """Does nothing: there is no file to mark."""
        return False

    stop = fail
