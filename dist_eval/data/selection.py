"""Selects rows of a dataset: the first ones or a random sample, the same on any number of ranks and any machine.

The key of row i is the i-th number of NumPy's PCG64 with the sample's seed. A sample of n rows has the n smallest keys.
So each set of n rows is equally likely, and a larger sample with the same seed contains the smaller one, unless it is
stratified. Keys are raw 64-bit numbers (`random_raw`), because NumPy guarantees their stream (NEP 19) but not that of
`Generator`'s methods.

The dataset is read twice: once to count its rows and hash all texts, which shows whether two runs sampled the same
data, and once to tokenize the selected rows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dist_eval.data.labelled_rows import LabelledRows, text_bytes, texts_in
from dist_eval.errors import DataError
from dist_eval.results.inputs import SelectionMethod, SelectionSummary

_KEYS_AT_ONCE = 1 << 20


@dataclass(frozen=True)
class Selection:
    """Defines a selection of rows."""

    method: SelectionMethod  # the first rows, a random sample, or a stratified random sample
    size: Callable[[int], int]  # returns the number of rows to select, given the dataset's number of rows
    seed: int | None = None  # seed of a random sample
    precision: float | None = None  # target half width of intervals that determines `size`, if any


class SelectedRows(NamedTuple):
    """Some rows of a dataset."""

    rows: np.ndarray  # ascending, int64 of shape [rows]
    summary: SelectionSummary  # how they were selected


def select_rows(selection: Selection, data: LabelledRows) -> SelectedRows:
    """Selects rows of a dataset; reads the labels only for a stratified sample.

    Memory grows with the sample; stratified, also by 4 bytes per row.
    """
    source = data.open()
    reader = data.label_reader(source) if selection.method == "stratified" else None
    hashes, codes, population = {name: hashlib.sha256() for name in data.text_columns}, [], 0
    for batch in source.batches:
        for number, name in enumerate(data.text_columns):
            # a row outside the selection may lack its text
            texts = texts_in(source, name, batch.column(number).drop_null(), population, data.numbers)
            hashes[name].update(text_bytes(texts))
        if reader is not None:
            codes.append(reader.codes(batch.column(len(data.text_columns)), population))
        population += batch.num_rows
    if not population:
        raise DataError(f"{source.name} has no rows: there is nothing to evaluate.")
    size = selection.size(population)
    if size > population:
        raise DataError(f"--sample {size} needs {size} rows, but {source.name} has {population}.")
    if selection.method == "first":
        rows = np.arange(size)
    elif reader is None:
        rows = draw_rows(population, [size], int(selection.seed or 0))
    else:
        strata = reader.ids(np.concatenate(codes)).astype(np.int32)
        quotas = allocate(size, np.bincount(strata, minlength=len(data.label_names)))
        rows = draw_rows(population, quotas, int(selection.seed or 0), strata)
    summary = SelectionSummary(
        method=selection.method,
        population=population,
        rows=size,
        seed=selection.seed,
        precision=selection.precision,
        column_digests={name: digest.hexdigest() for name, digest in hashes.items()},
    )
    return SelectedRows(rows, summary)


def allocate(size: int, counts: Sequence[int] | np.ndarray) -> np.ndarray:
    """Distributes a sample over strata in proportion to their rows, by the method of largest remainders.

    Ties go to the first stratum.

    Examples:
        >>> allocate(5, [6, 3, 1])
        array([3, 2, 0])
    """
    exact = size * np.asarray(counts, dtype=np.int64)
    quotas, remainders = np.divmod(exact, max(1, int(np.sum(counts))))
    quotas[np.argsort(-remainders, kind="stable")[: size - int(quotas.sum())]] += 1
    return quotas


def draw_rows(
    population: int, quotas: Sequence[int] | np.ndarray, seed: int, strata: np.ndarray | None = None
) -> np.ndarray:
    """Draws rows without replacement, in each stratum those with the smallest keys (see above); ascending.

    `strata` has the stratum of each row, integers of shape [population]; by default there is only one.
    """
    generator, wanted = np.random.PCG64(seed), np.asarray(quotas)
    keys, rows = np.empty(0, dtype=np.uint64), np.empty(0, dtype=np.int64)
    step = max(_KEYS_AT_ONCE, int(wanted.sum()))
    for start in range(0, population, step):
        stop = min(start + step, population)
        keys = np.append(keys, generator.random_raw(stop - start))
        rows = np.append(rows, np.arange(start, stop))
        of_rows = np.zeros(len(rows), dtype=np.int32) if strata is None else strata[rows]
        order = np.lexsort((keys, of_rows))
        ends = np.cumsum(np.bincount(of_rows, minlength=len(wanted)))
        rank = np.arange(len(order)) - np.concatenate([[0], ends])[of_rows[order]]
        kept = order[rank < wanted[of_rows[order]]]
        keys, rows = keys[kept], rows[kept]
    return np.sort(rows)


def positions_of(rows: np.ndarray, selected: np.ndarray | None) -> np.ndarray:
    """Returns the positions of rows in the selection.

    `rows` are some of the selected ones, int64 of shape [n]. `selected` are all of them, ascending; None for all rows
    of the dataset.
    """
    return rows if selected is None else np.searchsorted(selected, rows)
