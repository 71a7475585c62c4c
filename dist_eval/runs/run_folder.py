"""The folder of any kind of run: who uses it, what a new start finds in it, and how the run ends.

The file with the results is written first with status "running", and replaced atomically whenever something changes, so
that a reader always sees a complete and current file.
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
from dist_eval.process.files import write_atomically
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

# A peer's address, or its ID alone. An address begins only where a path does: from each of its parts, a long path
# without a peer would be searched to its end.
_PEER = re.compile(r"(?<![\w.:/-])[\w.:/-]*/p2p/[1-9A-HJ-NP-Za-km-z]{40,}|\b(?:Qm|12D3Koo)[1-9A-HJ-NP-Za-km-z]{40,}")
_NO_PEER = "(peer, not recorded)"


class RunFolder:
    """The folder of one run; `EvaluationFolder` and `TuningFolder` say what it contains, `NoFolder` is none.

    Args:
        path: path of the folder.
        options: all options of the run, as they are recorded.
        overwrite: whether to start afresh, whatever the folder holds.
        peers: addresses of the swarm's peers, which are not recorded.
    """

    results_name: str  # name of the file with the results
    records: TypeAdapter[Any]  # reads them
    resume_source: str  # what a resumed run continues from, for messages
    # files that show, where `results_name` is missing, that the folder belongs to something else
    foreign_files: tuple[str, ...]
    derived_files: tuple[str, ...] = ()  # files that are removed when the run begins, because they are made at its end

    def __init__(
        self, path: Path, options: RecordedOptions, *, overwrite: bool = False, peers: Sequence[str] = ()
    ) -> None:
        self.path, self.options = path, options
        self._overwrite, self._peers = overwrite, peers
        self._lock: int | None = None
        self.holder = ""  # the leader of this run, as in the folder's lock; empty until it has opened the folder
        self._found = FoundResults()
        self._revisions: Revisions | None = None

    def open(self, attempt: int = 0) -> None:
        """Takes the folder's lock, and writes its results with status "running".

        Results that are complete or damaged stay until `claim` has agreed to replace them.

        Args:
            attempt: how often torchrun has restarted the group.

        Raises:
            RunError: the folder cannot be written, or another run is using it.
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
            if not (is_first and self._overwrite):
                self._found = self._look()
            if not self._found.are_kept:
                self._write(self._started())

    def earlier_revisions(self, names: Sequence[str]) -> Revisions | None:
        """Returns the commits that an earlier start of this run has read.

        Args:
            names: the options that say which; None if they had other values.
        """
        found = self._found.results
        is_same = found is not None and all(found.config.get(name) == self.options.get(name) for name in names)
        return found.revisions if found and is_same else None

    def record_revisions(self, revisions: Revisions) -> None:
        """Records the commits that this run reads."""
        self._revisions = revisions
        if not self._found.are_kept:
            with translating_os_errors(RunError, f"The output folder {self.path} cannot be written"):
                self._write(self._started())

    def open_on_host(self) -> None:
        """Prepares the folder on a further host, which may have one of its own; before the leader claims the folder."""
        with translating_os_errors(RunError, f"The output folder {self.path} cannot be written"):
            require_journal_of_ours(self.path)
            if last_holder(self.path) != self.holder:  # else it is the leader's, who has done so
                self._clear()

    def _clear(self) -> None:
        """Removes what the first attempt of a start removes: whoever starts the run again wants it to go on."""
        (self.path / STOP_FILE).unlink(missing_ok=True)
        if self._overwrite:
            self._forget()
            self._remove_derived()

    @property
    def is_ours(self) -> bool:
        """Whether the folder is still this run's: another one may use it before this one has opened it, or since."""
        return self.holder != "" and (self._lock is not None or last_holder(self.path) == self.holder)

    def _require_no_foreign_files(self) -> None:
        found = [name for name in self.foreign_files if (self.path / name).exists()]
        if found and not (self.path / self.results_name).exists():
            raise RunError(
                f"The output folder {self.path} holds {', '.join(found)} of something else. Choose another --output."
            )

    def _look(self) -> FoundResults:
        """Reads the results that the folder holds, and finds out which of its files is damaged."""
        path = self.path / self.results_name
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return FoundResults()
        results = self._parse(content)
        if results is None and read_outcome(self.path).status == "complete":
            raise RunError(
                f"{path} is that of a complete run, but has another format than this version writes. Choose another "
                "--output, or replace it with --overwrite."
            )
        damaged = self.results_name if results is None else damaged_table(results, self.path)
        return FoundResults(content, results, self.path / damaged if damaged else None)

    def claim(self, fingerprint: Fingerprint, answers: Fingerprint | None = None) -> bool:
        """Compares this run with the one in the folder, and prepares the journal.

        What is damaged is made again from the journal, if that is known to be this run's: without `--overwrite`
        nothing is removed that could be resumed.

        Args:
            fingerprint: what the results depend on.
            answers: what the batches in the journal depend on, if that is not the same.

        Returns:
            Whether there is something to do: False if the folder holds this run, complete.

        Raises:
            RunError: the folder holds another run; the message names what differs.
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
                self.holder = ""  # it is left to whose it is
                self._found.restore(self.path / self.results_name)
                raise RunError(
                    f"{self.path} holds {objection}. Choose another --output, or start afresh with --overwrite."
                )
            is_unknown = claim.earlier is None
            if is_unknown and claim.has_own_batches:
                print_error(f"{claim.why_unknown}: the batches are known by their names, and are kept.")
            elif is_unknown:
                forget_journal(self.path)
            has_work = not self.is_complete or (is_unknown and answers is not None)  # names only tell of answers
            if has_work:
                if self._found.damaged and self.is_resumable:
                    print_error(f"{what_is_wrong(self._found.damaged)}: it is made again from {self.resume_source}.")
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
        """Whether the folder, when it was opened, held an intact complete run of which nothing is to be tried again."""
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
        """Returns what is made at the end of a run, whether it exists or not."""
        return [self.path / name for name in self.derived_files]

    def _started(self) -> RunHeader:
        started = RunHeader(
            schema_version=SCHEMA_VERSION,
            status="running",
            error=None,
            started=now(),
            finished=None,
            config=self.options,
            revisions=self._revisions,
            environment=environment(),
        )
        return self.records.validate_python(started.to_json())

    def _header(self) -> dict[str, Any]:
        results = self._read() or self._started()
        return {name: getattr(results, name) for name in RunHeader.model_fields}

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
        failure = self._failure(message, rank=rank, host=host, transient=transient)
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

        All else is as with `fail`. With `may_restart`, torchrun may have interrupted the rank in order to restart it,
        so that it should resume.
        """
        if not self.is_ours:
            return False
        if not may_restart:
            leave_stop_file(self.path)
        transient = transient and not asked_by_a_person(message)
        failure = self._failure(message, rank=rank, host=host, transient=transient)
        return self._end("incomplete", failure, coverage)

    def _failure(self, message: str, **known: Any) -> RunFailure:
        """Returns what is recorded of the end of a run, without addresses of peers."""
        for address in self._peers:
            message = message.replace(address, _NO_PEER)
        return RunFailure(message=_PEER.sub(_NO_PEER, message), **known)

    def _end(self, status: str, error: RunFailure, coverage: Mapping[str, int] | None) -> bool:
        if not self.is_ours or (results := self._read()) is None or results.status != "running":
            return False  # never change the results of a complete run
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

    def record_revisions(self, revisions: Revisions) -> None:
        """Does nothing."""

    def fail(self, message: str, **known: Any) -> bool:
        """Does nothing: there is no file to mark."""
        return False

    stop = fail
