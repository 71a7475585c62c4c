"""The journal: finished batches on disk, so that a resumed run skips them.

Every rank of every start appends to its own file (see `journal_records`) and reads all files. Batches answered by a
server that an audit found faulty do not count; a file named after the server marks it. All file names begin with a hash
of the run's inputs, because hosts may have separate folders that hold older runs.
"""

from __future__ import annotations

import itertools
import json
import os
import uuid
from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from dist_eval.data.answers import AnswerColumns, BatchOutcome
from dist_eval.errors import RunError, translating_os_errors
from dist_eval.process.files import write_atomically
from dist_eval.process.parsing import read_json
from dist_eval.runs.files import FINGERPRINT, JOURNAL, RECORDED_PLAN
from dist_eval.runs.fingerprint import Fingerprint
from dist_eval.runs.journal_records import packed, read_record, read_records

SUFFIX, FAULTY_SUFFIX = ".batches", ".odd"
"""Suffixes of the files with finished batches, and of the files that mark excluded servers."""

_DAMAGE = (ValueError, KeyError, TypeError)  # raised when a damaged JSON file is read

# what a prediction for every example, and an audit, add to the worth of a record
_WHOLE, _AUDITED = 2, 1


def has_batches(folder: Path, prefix: str = "") -> bool:
    """Returns whether a run's folder holds finished batches, in files with a prefix."""
    return any(path.stat().st_size for path in (folder / JOURNAL).glob(f"{prefix}*{SUFFIX}"))


def has_batches_of(folder: Path, run: Fingerprint) -> bool:
    """Returns whether a run's folder holds finished batches of exactly this run, judging by file names."""
    with suppress(FileNotFoundError, *_DAMAGE):
        as_recorded = run.with_plan(_recorded_plan(folder)["plan"])
        if has_batches(folder, f"{name_of_run(as_recorded.digest())}-"):
            return True
    return has_batches(folder, f"{name_of_run(run.digest())}-")


def name_of_run(digest: str) -> str:
    """Returns the prefix of a run's file names, given the hash of its fingerprint."""
    return f"run-{digest[:12]}"


def _recorded_plan(folder: Path) -> dict[str, Any]:
    return dict(read_json(folder / JOURNAL / RECORDED_PLAN))


def recorded_cache_tokens(folder: Path) -> int | None:
    """Returns the cache tokens that a run's batches were planned for; None if that is not decided yet."""
    try:
        return int(_recorded_plan(folder)["session_tokens"])
    except FileNotFoundError:
        return 0 if has_batches(folder) else None
    except (OSError, *_DAMAGE) as error:
        if not has_batches(folder):
            return None
        raise RunError(
            f"{folder / JOURNAL / RECORDED_PLAN}, the plan of the finished batches, is damaged ({error!r}). Restore "
            "it, choose another --output, or start afresh with --overwrite."
        ) from error


def record_plan(folder: Path, cache_tokens: int, plan: str) -> None:
    """Records the cache tokens that a run's batches are planned for, and the digest of that plan."""
    path, content = folder / JOURNAL / RECORDED_PLAN, {"session_tokens": cache_tokens, "plan": plan}
    with translating_os_errors(RunError, f"{path} cannot be written"):
        write_atomically(path, json.dumps(content).encode())


def require_recorded_plan(folder: Path, plan: str) -> None:
    """Requires that a run's batches are planned as before; another version of dist_eval may plan them differently."""
    try:
        recorded = _recorded_plan(folder)["plan"]
    except (OSError, *_DAMAGE):
        return
    if recorded != plan:
        raise RunError(
            f"{folder} holds a part of a run that another version of dist_eval planned. Finish it with that version, "
            "choose another --output, or start afresh with --overwrite."
        )


def forget_journal(folder: Path) -> None:
    """Removes the finished batches in a run's folder."""
    for pattern in (f"*{SUFFIX}", f"*{FAULTY_SUFFIX}", FINGERPRINT, RECORDED_PLAN):
        for path in (folder / JOURNAL).glob(pattern):
            path.unlink(missing_ok=True)


class _Index:
    """Locates the record of each batch; in arrays, because there may be millions."""

    def __init__(self, batches: int) -> None:
        # of each batch's record: 0 without one, else at least 1 (see `_WHOLE`, `_AUDITED`)
        self.worth = np.zeros(batches, dtype=np.uint8)
        self._files, self._offsets = np.zeros(batches, dtype=np.uint32), np.zeros(batches, dtype=np.int64)
        self._numbers: dict[Path, int] = {}

    def add(self, path: Path, offset: int, outcome: BatchOutcome) -> None:
        """Adds a record, unless there is one of at least the same worth."""
        worth = 1 + _WHOLE * outcome.is_whole + _AUDITED * (outcome.audit is not None)
        if worth > self.worth[outcome.batch]:
            self._files[outcome.batch] = self._numbers.setdefault(path, len(self._numbers))
            self._offsets[outcome.batch], self.worth[outcome.batch] = offset, worth

    def forget(self, batch: int) -> None:
        """Forgets the record of a batch, if there is one."""
        self.worth[batch : batch + 1] = 0

    def places(self, batches: np.ndarray) -> Iterator[tuple[Path, list[int]]]:
        """Yields the files that hold batches, int64 of shape [n], and the offsets in each, both in ascending order."""
        if not self.worth[batches].all():
            raise KeyError(int(batches[self.worth[batches] == 0][0]))
        paths = sorted(self._numbers)
        order = np.argsort([self._numbers[path] for path in paths])
        files, offsets = order[self._files[batches]], self._offsets[batches]
        places = np.lexsort((offsets, files))
        cuts = np.searchsorted(files[places], np.arange(len(paths) + 1))
        for path, (begin, end) in zip(paths, itertools.pairwise(cuts), strict=True):
            if begin < end:
                yield path, offsets[places[begin:end]].tolist()


class Journal:
    """The finished batches of a run.

    `sizes` has the number of examples in each batch of the plan, integers of shape [batches]; `columns` are those of
    the answers, as the model declares them. `rank` is in the name of this rank's file. `run` is the hash of the run's
    fingerprint; files of other runs are ignored.
    """

    def __init__(
        self, folder: Path, sizes: np.ndarray, columns: AnswerColumns, *, rank: int = 0, run: str = ""
    ) -> None:
        self._folder, self._sizes, self._columns = folder / JOURNAL, sizes, columns.newbyteorder("<")
        self._run = name_of_run(run)
        self._path = self._folder / f"{self._run}-rank-{rank:05d}-{uuid.uuid4().hex[:12]}{SUFFIX}"
        self._file: int | None = None
        self._index = _Index(len(sizes))
        self._faulty: frozenset[str] = frozenset()
        self._reported = np.zeros(len(sizes), dtype=np.bool_)  # batches that `news` has yielded
        self._reported_to: dict[Path, int] = {}  # the offset in each file where `news` continues
        self._reported_last: Path | None = None  # the file that `news` read last

    def faulty_servers(self) -> frozenset[str]:
        """Returns the excluded servers. Their answers do not count."""
        with _readable(self._folder):
            found = self._folder.glob(f"{self._run}-odd-*{FAULTY_SUFFIX}")
            return frozenset(path.stem.removeprefix(f"{self._run}-odd-") for path in found)

    def exclude(self, server: str) -> None:
        """Excludes a server: its answers do not count, regardless of the rank or start that received them."""
        path = self._folder / f"{self._run}-odd-{server}{FAULTY_SUFFIX}"
        with _writable(path):
            self._make_folder()
            write_atomically(path, b"An audit found that other servers agree with each other but not with this one.\n")

    def read(self, audited: Container[int] = ()) -> np.ndarray:
        """Reads all files; returns which batches are finished, with a prediction for every example.

        Batches in `audited` count only if they have an audit.
        """
        self._index, self._faulty = _Index(len(self._sizes)), self.faulty_servers()
        with _readable(self._folder):
            for path in self._files():
                for offset, outcome in read_records(path, self._columns):
                    self._add(path, offset, outcome)
        finished = self._index.worth > _WHOLE
        for batch in np.flatnonzero(self._index.worth == 1 + _WHOLE):  # without an audit
            finished[batch] = batch not in audited
        return finished

    def outcomes(self, batches: Sequence[int] | np.ndarray) -> Iterator[BatchOutcome]:
        """Yields the outcomes of batches that `read` found or that were appended, file by file."""
        for path, offsets in self._index.places(np.asarray(batches, dtype=np.int64)):
            with _readable(self._folder), path.open("rb") as file:
                for offset in offsets:
                    file.seek(offset)
                    outcome = read_record(file.read, self._columns)
                    if outcome is None:
                        raise RunError(f"{path} changed during this run. Make sure that nothing else uses its folder.")
                    yield outcome

    def news(self) -> Iterator[BatchOutcome]:
        """Yields the outcomes that ranks have added to this folder since the last call, the first one of each batch.

        Another thread may call it while this one appends.
        """
        with _readable(self._folder):
            files = self._files()
            begin = files.index(self._reported_last) + 1 if self._reported_last in files else 0
            for path in files[begin:] + files[:begin]:  # so that a caller that stops early reaches all files in turn
                self._reported_last = path
                for offset, outcome in read_records(path, self._columns, self._reported_to.get(path, 0)):
                    self._reported_to[path] = offset + 1
                    if self._counts(outcome) and not self._reported[outcome.batch]:
                        self._reported[outcome.batch] = True
                        yield outcome

    def append(self, outcome: BatchOutcome) -> None:
        """Writes a batch to disk; once this returns, it survives even a power failure."""
        with _writable(self._path):
            if self._file is None:
                self._make_folder()
                self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
            offset, record = os.fstat(self._file).st_size, packed(outcome, self._columns)
            while record:
                record = record[os.write(self._file, record) :]
            os.fdatasync(self._file)
        self._index.forget(outcome.batch)  # an earlier record did not count, or the batch would not have been repeated
        self._add(self._path, offset, outcome)

    def _make_folder(self) -> None:
        """Makes the journal's folder, and the run's folder, which other hosts lack if it is not shared."""
        for folder in (self._folder.parent, self._folder):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _files(self) -> list[Path]:
        return sorted(self._folder.glob(f"{self._run}-*{SUFFIX}"))

    def _add(self, path: Path, offset: int, outcome: BatchOutcome) -> None:
        if self._counts(outcome):
            self._index.add(path, offset, outcome)

    def _counts(self, outcome: BatchOutcome) -> bool:
        """Returns whether an outcome belongs to this plan, without answers of excluded servers."""
        if outcome.batch >= len(self._sizes) or len(outcome.answers) != self._sizes[outcome.batch]:
            return False
        return {segment.peer for segment in outcome.route}.isdisjoint(self._faulty)


@contextmanager
def _readable(folder: Path) -> Iterator[None]:
    with translating_os_errors(RunError, f"The journal in {folder} cannot be read"):
        yield


@contextmanager
def _writable(path: Path) -> Iterator[None]:
    advice = "Earlier batches are kept: fix the cause and start the same command again."
    with translating_os_errors(RunError, f"The journal {path} cannot be written", advice):
        yield
