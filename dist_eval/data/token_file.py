"""Token ids of many texts in a memory-mapped Arrow file, so that no rank holds them as Python objects.

The file has one number per token: its id. For models with token types, which distinguish the texts of a pair, it is
`id + (type + 1 << 24)`.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from dist_eval.errors import DataError

if TYPE_CHECKING:
    import torch

ANY_TYPE = 64
"""More types than any tokenizer has."""

_TYPE_SHIFT = 24  # bits of an id; the largest vocabularies need 20
_SCHEMA = pa.schema([("input_ids", pa.list_(pa.int32()))])
_ROWS_IN_A_CHUNK = 1024
# The kernel maps 64 KiB around each read; after this many rows or starts of chunks, the pages are released
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
        """Collates texts of these positions and lengths into a batch, int64 of shape [batch, longest].

        Padding is on the right, with id 0. It does not affect results: attention is causal, and the length locates the
        last real token.
        """
        batch = np.zeros((len(indices), int(lengths.max())), dtype=np.int64)
        for row, index in enumerate(indices):
            batch[row, : lengths[row]] = self.input_ids(int(index))
        self._rows_mapped += len(indices)
        if self._rows_mapped > _ROWS_KEPT_MAPPED:
            self._unmap()
        return batch

    def _unmap(self) -> None:
        """Releases the pages that were read, so that a rank does not hold the whole file; the page cache keeps them."""
        self._tokens.madvise(mmap.MADV_DONTNEED)
        self._rows_mapped = 0


def _chunks(buffer: pa.Buffer) -> Iterator[pa.ListArray]:
    file = pa.ipc.open_file(buffer)
    for number in range(file.num_record_batches):
        yield file.get_batch(number).column("input_ids")


@contextmanager
def token_writer(path: Path) -> Iterator[Callable[[np.ndarray, np.ndarray], None]]:
    """Opens a file for writing token ids; yields a function that appends a chunk of texts.

    It takes the tokens of all texts, int32 of shape [tokens], and the start of each and the end, int32 of [texts + 1].
    """
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, _SCHEMA) as writer:

        def write(tokens: np.ndarray, offsets: np.ndarray) -> None:
            writer.write_batch(pa.record_batch([pa.ListArray.from_arrays(offsets, tokens)], schema=_SCHEMA))

        yield write


@contextmanager
def write_tokens(path: Path) -> Iterator[Callable[[np.ndarray], None]]:
    """Opens a file for writing texts one by one; yields a function that writes the next one, int32."""
    with token_writer(path) as write_chunk:
        chunk: list[np.ndarray] = []

        def flush() -> None:
            offsets = np.cumsum([0, *map(len, chunk)]).astype(np.int32)
            write_chunk(np.concatenate(chunk), offsets)
            chunk.clear()

        def write(tokens: np.ndarray) -> None:
            chunk.append(tokens)
            if len(chunk) == _ROWS_IN_A_CHUNK:
                flush()

        yield write
        if chunk:
            flush()


def with_types(ids: np.ndarray, types: np.ndarray, known: int) -> np.ndarray:
    """Joins the ids and types of tokens, int32 of the same shape; `known` is the model's number of types."""
    if types.max(initial=0) >= known:
        raise DataError(
            f"The tokenizer gives the token type {types.max()}, but the model knows only {known} types. The tokenizer "
            "in its folder belongs to another model."
        )
    return (ids + ((types + 1) << _TYPE_SHIFT)).astype(np.int32)


def ids_and_types(tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Returns ids and types of tokens, of the same shape; no types where a token has none."""
    types = (tokens >> _TYPE_SHIFT) - 1
    return tokens & ((1 << _TYPE_SHIFT) - 1), None if bool((types < 0).any()) else types
