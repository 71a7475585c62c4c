"""Hashes of rows and batches in any form, which reveal ranks with different data."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Set
from typing import Any

import numpy as np
import torch

_MOST_ROWS = 1000  # more would take long if each row is tokenized or decoded
_SCALARS = (str, bytes, int, float, complex, type(None))


def digest_of_rows(dataset: Any) -> str:
    """Hashes a dataset's length and rows; for a large dataset, a sample of rows that is the same on every rank.

    If rows differ each time they are read, only the length is hashed.
    """
    count = len(dataset)
    digest = hashlib.sha256(str(count).encode())
    chosen: Iterable[int] = range(count)
    if count > _MOST_ROWS:
        drawn = np.random.default_rng(0).choice(count, _MOST_ROWS, replace=False)
        chosen = np.unique([0, count - 1, *drawn]).tolist()
    if count and digest_of(dataset[0]) == digest_of(dataset[0]):
        for index in chosen:
            digest.update(digest_of(dataset[index]))
    return digest.hexdigest()


def digest_of(value: Any) -> bytes:
    """Hashes the tensors, arrays, texts and numbers of a row or batch, in any container."""
    digest = hashlib.sha256()
    for part in _parts(value):
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.digest()


def _parts(value: Any) -> Iterator[bytes]:
    if isinstance(value, _SCALARS):
        yield f"{type(value).__name__} {value!r}".encode("utf-8", "surrogatepass")
        return
    if isinstance(value, torch.Tensor):
        value = _as_array(value)
    if isinstance(value, np.ndarray | np.generic) or hasattr(value, "__array_interface__"):
        array = np.asarray(value)
        yield f"{array.dtype} {array.shape}".encode()
        if array.dtype.hasobject:
            yield from _parts(array.tolist())
        else:
            yield array.tobytes()
        return
    yield type(value).__name__.encode()
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _parts(key)
            yield from _parts(item)
    elif isinstance(value, Set):
        yield from sorted(map(digest_of, value))
    elif isinstance(value, Iterable):
        for item in value:
            yield from _parts(item)
    else:
        yield from _parts(getattr(value, "__dict__", None))


def _as_array(tensor: torch.Tensor) -> np.ndarray:
    tensor = tensor.detach().cpu()
    tensor = tensor.to_dense() if tensor.layout is not torch.strided else tensor
    return tensor.float().numpy() if tensor.dtype is torch.bfloat16 else tensor.resolve_conj().resolve_neg().numpy()
