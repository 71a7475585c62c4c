"""The files of the journal: records, one for each finished batch.

    magic       4 bytes
    checksum    uint32, CRC-32 of everything that follows
    batch       uint32, its number in the plan
    rows        uint32, examples in the batch
    width       uint32, size of a row of the answers, in units of 4 bytes, rounded up
    notes       uint32, bytes of the notes
    answers     rows of the columns that the model declares, such as logits float32 of shape [labels]
    notes       JSON, {"route": [[peer, first block, one past the last block, precision if known], ...],
                "failed": {row: reason}, "audit": the findings of an audit,
                "fell_back": true if the batch should have used a shared prefix but fell back to plain forwards}

All numbers are little-endian. Indices, labels and losses are not written: they follow from the plan, the dataset and
the answers. The last record of a file may be incomplete if its process died while writing; a record that fails its
checksum is ignored.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from dist_eval.data.answers import AnswerColumns, BatchOutcome
from dist_eval.petals.client.records import RouteSegment

_MAGIC = b"deB1"
_HEAD = struct.Struct("<4sI")
_FIELDS = struct.Struct("<4I")
_WIDTH_BYTES = 4


def packed(outcome: BatchOutcome, columns: AnswerColumns) -> bytes:
    """Returns a batch as a record."""
    route = [segment[:3] if segment.precision is None else segment for segment in outcome.route]
    notes: dict[str, Any] = {"route": route} if route else {}
    if outcome.failed:
        notes["failed"] = {str(row): reason for row, reason in outcome.failed.items()}
    if outcome.audit is not None:
        notes["audit"] = dict(outcome.audit)
    if outcome.fell_back:
        notes["fell_back"] = True
    extra = json.dumps(notes).encode() if notes else b""
    body = _FIELDS.pack(outcome.batch, len(outcome.answers), _width(columns), len(extra))
    body += outcome.answers.astype(columns).tobytes() + extra
    return _HEAD.pack(_MAGIC, zlib.crc32(body)) + body


def _width(columns: AnswerColumns) -> int:
    return -(-columns.itemsize // _WIDTH_BYTES)


def read_record(read: Callable[[int], bytes], columns: AnswerColumns) -> BatchOutcome | None:
    """Reads a record by `read(n)`; returns None if there is no intact one with these columns."""
    head = read(_HEAD.size + _FIELDS.size)
    if len(head) < _HEAD.size + _FIELDS.size or not head.startswith(_MAGIC):
        return None
    _, checksum = _HEAD.unpack_from(head)
    batch, rows, width, noted = _FIELDS.unpack_from(head, _HEAD.size)
    if width != _width(columns):
        return None
    size = rows * columns.itemsize
    rest = read(size + noted)
    if len(rest) < size + noted or zlib.crc32(rest, zlib.crc32(head[_HEAD.size :])) != checksum:
        return None
    notes = json.loads(rest[size:]) if noted else {}
    return BatchOutcome(
        batch=batch,
        answers=np.frombuffer(rest, dtype=columns, count=rows).astype(columns.newbyteorder("=")),
        route=[RouteSegment(*segment) for segment in notes.get("route", [])],
        failed={int(row): str(reason) for row, reason in notes.get("failed", {}).items()},
        audit=notes.get("audit"),
        fell_back=notes.get("fell_back", False),
    )


def read_records(path: Path, columns: AnswerColumns, start: int = 0) -> Iterator[tuple[int, BatchOutcome]]:
    """Yields the offsets (from `start`) and outcomes of a file's intact records, and skips everything else."""
    with path.open("rb") as file:
        if os.fstat(file.fileno()).st_size == 0:
            return
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            position = content.find(_MAGIC, start)
            while position >= 0:
                content.seek(position)
                outcome = read_record(content.read, columns)
                end = position + 1 if outcome is None else content.tell()
                if outcome is not None:
                    yield position, outcome
                position = content.find(_MAGIC, end)
