"""Finished batches on disk: what a run has found so far, and what the next start of it can skip.

Every rank of every start appends to a file of its own, and reads those of all. A record is one batch:

    magic       4 bytes
    checksum    uint32, CRC-32 of all that follows
    batch       uint32, its number in the plan
    rows        uint32, examples in the batch
    labels      uint32, width of the head
    notes       uint32, bytes of the notes
    logits      float32 of shape [rows, labels], not finite where an example failed
    notes       JSON, {"route": [[peer, first block, one past the last block], ...], "failed": {row: reason},
                "audit": what an audit has found}

All numbers are little-endian. Indices, labels and losses are not written: they follow from the plan, the dataset and
the logits. A file's end may be torn, because its process died while it wrote; whatever fails its checksum counts as
never written. So does a batch in which a server had a hand that an audit found odd: a file named after it says so. All
names begin with a hash of what the results depend on: hosts may have folders of their own, one with an older run's.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import mmap
import os
import struct
import uuid
import zlib
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dist_eval.errors import RunError
from dist_eval.metrics.predictions import BatchOutcome
from dist_eval.process.files import write_atomically

FOLDER, FINGERPRINT = "journal", "fingerprint.json"
FOLLOWS = ("token ids", "plan")
"""Names in a fingerprint that change only if another one does, or if dist_eval itself did."""

_SUFFIX, _ODD_SUFFIX = ".batches", ".odd"
_MAGIC = b"deB1"
_HEAD = struct.Struct("<4sI")
_FIELDS = struct.Struct("<4I")
_LOGITS = np.dtype("<f4")


@dataclass(frozen=True)
class _Place:
    """Where a record stands."""

    file: Path
    offset: int
    is_whole: bool
    is_audited: bool


class Journal:
    """The finished batches of a run.

    Args:
        folder: the run's folder.
        sizes: examples in each batch of the plan, integers of shape [batches].
        num_labels: width of the head.
        rank: this rank, for the name of its file.
        run: what the results depend on, as a hash; files of other runs are passed over.
    """

    def __init__(self, folder: Path, sizes: np.ndarray, num_labels: int, *, rank: int = 0, run: str = "") -> None:
        self._folder, self._sizes, self._num_labels = folder / FOLDER, sizes, num_labels
        self._run = f"run-{run[:12]}"
        self._path = self._folder / f"{self._run}-rank-{rank:05d}-{uuid.uuid4().hex[:12]}{_SUFFIX}"
        self._file: int | None = None
        self._places: dict[int, _Place] = {}
        self._odd: frozenset[str] = frozenset()

    def faulty_servers(self) -> frozenset[str]:
        """Returns the servers whose answers do not count.

        Raises:
            RunError: the folder cannot be read.
        """
        with _readable(self._folder):
            found = self._folder.glob(f"{self._run}-odd-*{_ODD_SUFFIX}")
            return frozenset(path.stem.removeprefix(f"{self._run}-odd-") for path in found)

    def exclude(self, server: str) -> None:
        """Notes that a server's answers do not count, whichever rank or start of the run got them.

        Raises:
            RunError: the folder cannot be written.
        """
        path = self._folder / f"{self._run}-odd-{server}{_ODD_SUFFIX}"
        with _writable(path):
            self._folder.mkdir(parents=True, exist_ok=True)
            write_atomically(path, b"An audit found that other servers agree with each other, and not with this one.\n")

    def read(self, audited: Container[int] = ()) -> np.ndarray:
        """Looks through all files.

        Args:
            audited: batches that are finished only if an audit has looked at them.

        Returns:
            Whether each batch is finished, with a prediction for every example; bool of shape [batches].

        Raises:
            RunError: a file cannot be read.
        """
        self._places, self._odd = {}, self.faulty_servers()
        with _readable(self._folder):
            for path in sorted(self._folder.glob(f"{self._run}-*{_SUFFIX}")):
                for offset, outcome in _records(path):
                    self._note(path, offset, outcome)
        finished = np.zeros(len(self._sizes), dtype=bool)
        for batch, place in self._places.items():
            finished[batch] = place.is_whole and (place.is_audited or batch not in audited)
        return finished

    def outcomes(self, batches: Sequence[int] | np.ndarray) -> Iterator[BatchOutcome]:
        """Reads batches that `read` has found, or that were appended, file by file."""
        places = sorted((self._places[int(batch)].file, self._places[int(batch)].offset) for batch in batches)
        for path, of_file in itertools.groupby(places, key=lambda place: place[0]):
            with _readable(self._folder), path.open("rb") as file:
                for _, offset in of_file:
                    file.seek(offset)
                    outcome = _parse(file.read(_HEAD.size + _FIELDS.size), file.read)
                    if outcome is None:
                        raise RunError(f"{path} changed under this run: does something else use its folder?")
                    yield outcome

    def append(self, outcome: BatchOutcome) -> None:
        """Writes a batch to the disk; when this returns, not even a power cut loses it.

        Raises:
            RunError: the disk is full, or the file cannot be written.
        """
        with _writable(self._path):
            if self._file is None:
                self._folder.mkdir(parents=True, exist_ok=True)
                self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
            offset, record = os.fstat(self._file).st_size, _packed(outcome)
            while record:
                record = record[os.write(self._file, record) :]
            os.fdatasync(self._file)
        self._places.pop(outcome.batch, None)  # whatever stood there did not count, or the batch were not done again
        self._note(self._path, offset, outcome)

    def close(self) -> None:
        """Closes this rank's file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _note(self, path: Path, offset: int, outcome: BatchOutcome) -> None:
        known = self._places.get(outcome.batch)
        if outcome.batch >= len(self._sizes) or outcome.logits.shape != (self._sizes[outcome.batch], self._num_labels):
            return  # no batch of this plan
        servers = {peer for peer, _, _ in outcome.route}
        place = _Place(path, offset, outcome.is_whole, outcome.audit is not None)
        is_better = known is None or (place.is_whole, place.is_audited) > (known.is_whole, known.is_audited)
        if servers.isdisjoint(self._odd) and is_better:
            self._places[outcome.batch] = place


@contextmanager
def _readable(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RunError(f"The journal in {folder} cannot be read: {error.strerror or error}.") from error


@contextmanager
def _writable(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RunError(
            f"The journal {path} cannot be written: {error.strerror or error}. What was written before is kept: start "
            "the same command again once that is mended."
        ) from error


def _packed(outcome: BatchOutcome) -> bytes:
    notes: dict[str, Any] = {"route": [list(segment) for segment in outcome.route]} if outcome.route else {}
    if outcome.failed:
        notes["failed"] = {str(row): reason for row, reason in outcome.failed.items()}
    if outcome.audit is not None:
        notes["audit"] = dict(outcome.audit)
    extra = json.dumps(notes).encode() if notes else b""
    rows, labels = outcome.logits.shape
    body = _FIELDS.pack(outcome.batch, rows, labels, len(extra))
    body += outcome.logits.astype(_LOGITS).tobytes() + extra
    return _HEAD.pack(_MAGIC, zlib.crc32(body)) + body


def _parse(head: bytes, read: Any) -> BatchOutcome | None:
    """Makes an outcome of a record's head and what `read(n)` gives after it; None if its checksum is wrong."""
    if len(head) < _HEAD.size + _FIELDS.size or not head.startswith(_MAGIC):
        return None
    _, checksum = _HEAD.unpack_from(head)
    batch, rows, labels, noted = _FIELDS.unpack_from(head, _HEAD.size)
    size = rows * labels * _LOGITS.itemsize
    rest = read(size + noted)
    if len(rest) < size + noted or zlib.crc32(rest, zlib.crc32(head[_HEAD.size :])) != checksum:
        return None
    notes = json.loads(rest[size:]) if noted else {}
    return BatchOutcome(
        batch=batch,
        logits=np.frombuffer(rest, dtype=_LOGITS, count=rows * labels).reshape(rows, labels).astype(np.float32),
        route=[(str(peer), int(start), int(end)) for peer, start, end in notes.get("route", [])],
        failed={int(row): str(reason) for row, reason in notes.get("failed", {}).items()},
        audit=notes.get("audit"),
    )


def _records(path: Path) -> Iterator[tuple[int, BatchOutcome]]:
    """Yields the records of a file and where they stand; whatever is none, whole and intact, is passed over."""
    with path.open("rb") as file:
        if os.fstat(file.fileno()).st_size == 0:
            return
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            position = content.find(_MAGIC)
            while position >= 0:
                begin = position + _HEAD.size + _FIELDS.size
                outcome = _parse(content[position:begin], lambda size, begin=begin: content[begin : begin + size])
                if outcome is None:
                    position = content.find(_MAGIC, position + 1)
                    continue
                yield position, outcome
                position = content.find(_MAGIC, position + len(_packed(outcome)))


class Fingerprint:
    """What a run's result depends on: a hash by name. A journal counts for runs with an equal one only.

    Args:
        values: text by name; the names are read by people.
    """

    def __init__(self, values: Mapping[str, str]) -> None:
        self.values = dict(values)

    @classmethod
    def load(cls, folder: Path) -> Fingerprint | None:
        """Reads the one of a run's folder; None if there is none, or none that can be read."""
        try:
            values = json.loads((folder / FOLDER / FINGERPRINT).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return cls({str(name): str(value) for name, value in values.items()}) if isinstance(values, dict) else None

    def digest(self) -> str:
        """Returns a hash of all of it."""
        return hashlib.sha256(json.dumps(self.values, sort_keys=True).encode()).hexdigest()

    def save(self, folder: Path) -> None:
        """Writes it to a run's folder."""
        (folder / FOLDER).mkdir(parents=True, exist_ok=True)
        write_atomically(folder / FOLDER / FINGERPRINT, (json.dumps(self.values, indent=2) + "\n").encode())

    def changed(self, earlier: Fingerprint) -> list[str]:
        """Returns the names under which an earlier run had something else; what only follows from others comes last."""
        names = [*self.values, *(name for name in earlier.values if name not in self.values)]
        changed = [name for name in names if self.values.get(name) != earlier.values.get(name)]
        return [name for name in changed if name not in FOLLOWS] or changed


def has_batches(folder: Path) -> bool:
    """Returns whether a run's folder holds finished batches."""
    return any(path.stat().st_size for path in (folder / FOLDER).glob(f"*{_SUFFIX}"))


def forget_journal(folder: Path) -> None:
    """Removes the finished batches of a run's folder."""
    for pattern in (f"*{_SUFFIX}", f"*{_ODD_SUFFIX}", FINGERPRINT):
        for path in (folder / FOLDER).glob(pattern):
            path.unlink(missing_ok=True)
