"""Token ids of many texts in a memory-mapped Arrow file, so that no rank holds them as Python objects."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa

_SCHEMA = pa.schema([("input_ids", pa.list_(pa.int32()))])
_ROWS_IN_A_CHUNK = 1024
# The kernel maps 64 KiB around whatever is read; after so many rows or beginnings of chunks the pages are released
_ROWS_KEPT_MAPPED, _CHUNKS_KEPT_MAPPED = 128, 16


class TokenFile:
    """Token ids of texts."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            self._tokens = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        chunks = []
        for chunk in _chunks(pa.py_buffer(self._tokens)):
            chunks.append(chunk)
            if len(chunks) % _CHUNKS_KEPT_MAPPED == 0:
                self._unmap()
        self._unmap()
        self._chunk_starts = np.cumsum([0, *(len(chunk) for chunk in chunks)])
        self._offsets = [chunk.offsets.to_numpy() for chunk in chunks]
        self._values = [chunk.values.to_numpy() for chunk in chunks]

    def input_ids(self, index: int) -> np.ndarray:
        """Returns the token ids of one text, int32 of shape [length]."""
        chunk = int(np.searchsorted(self._chunk_starts, index, side="right")) - 1
        row = index - int(self._chunk_starts[chunk])
        begin, end = self._offsets[chunk][row], self._offsets[chunk][row + 1]
        return self._values[chunk][begin:end]

    def padded(self, indices: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """Collates texts into a batch, padded on the right with id 0.

        The padding id does not matter: attention is causal, and the last real token is located by the length.

        Args:
            indices: positions of the texts, int64 of shape [batch].
            lengths: their numbers of tokens, int64 of shape [batch].

        Returns:
            Token ids, int64 of shape [batch, longest].
        """
        batch = np.zeros((len(indices), int(lengths.max())), dtype=np.int64)
        for row, index in enumerate(indices):
            batch[row, : lengths[row]] = self.input_ids(int(index))
        self._rows_mapped += len(indices)
        if self._rows_mapped > _ROWS_KEPT_MAPPED:
            self._unmap()
        return batch

    def _unmap(self) -> None:
        """Releases the pages that were read: the page cache keeps them, and a rank should not hold the whole file."""
        self._tokens.madvise(mmap.MADV_DONTNEED)
        self._rows_mapped = 0


def _chunks(buffer: pa.Buffer) -> Iterator[pa.ListArray]:
    file = pa.ipc.open_file(buffer)
    for number in range(file.num_record_batches):
        yield file.get_batch(number).column("input_ids")


class TokenWriter:
    """Writes token ids in chunks (see `token_writer`)."""

    def __init__(self, writer: pa.RecordBatchFileWriter) -> None:
        self._writer = writer

    def write(self, values: np.ndarray, offsets: np.ndarray) -> None:
        """Appends a chunk of texts.

        Args:
            values: tokens of all of its texts, int32 of shape [tokens].
            offsets: start of each text, and the end, int32 of shape [texts + 1].
        """
        chunk = pa.ListArray.from_arrays(offsets, values)
        self._writer.write_batch(pa.record_batch([chunk], schema=_SCHEMA))


@contextmanager
def token_writer(path: Path) -> Iterator[TokenWriter]:
    """Opens a file for writing token ids."""
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, _SCHEMA) as writer:
        yield TokenWriter(writer)


@contextmanager
def write_tokens(path: Path) -> Iterator[Callable[[np.ndarray], None]]:
    """Opens a file for writing texts one by one.

    Yields:
        A function that writes the next text, int32 of shape [length].
    """
    with token_writer(path) as writer:
        chunk: list[np.ndarray] = []

        def flush() -> None:
            offsets = np.cumsum([0, *map(len, chunk)]).astype(np.int32)
            writer.write(np.concatenate(chunk), offsets)
            chunk.clear()

        def write(tokens: np.ndarray) -> None:
            chunk.append(tokens)
            if len(chunk) == _ROWS_IN_A_CHUNK:
                flush()

        yield write
        if chunk:
            flush()
