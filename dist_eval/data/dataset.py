"""A tokenized dataset: examples with stable positions, and labels as class ids or numbers.

One rank of each host tokenizes, into a folder that the others memory-map (see `dist_eval.data.tokenizing`): an Arrow
file with the token ids, and two arrays.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from dist_eval.data.columns import read_column
from dist_eval.data.readers import place_of
from dist_eval.data.selection import positions_of
from dist_eval.data.shared_prefixes import Beginnings
from dist_eval.data.token_file import TokenFile
from dist_eval.results.inputs import DatasetSummary

TOKENS_FILE, LENGTHS_FILE, LABELS_FILE, FACTS_FILE = "tokens.arrow", "lengths.npy", "labels.npy", "facts.json"
ROWS_FILE, CUT_FILE, COMMON_FILE = "rows.npy", "cut.npy", "common.npy"


class TokenizedDataset:
    """Tokenized examples in memory-mapped files.

    An example is named by its row in the dataset, whether all rows were tokenized or some: that is what plans, journals
    and predictions hold. The arrays here have an item for each example, in the order of the rows.

    Args:
        folder: the folder that `tokenize_dataset` wrote.

    Attributes:
        facts: summary of the dataset.
        rows: row of each example, ascending, int64 of shape [examples]; None if they are all rows.
        lengths: number of tokens of each example, int32 of shape [examples].
        cut: tokens that each text that was too long has lost, int32 of shape [texts that were cut].
        labels: label of each example, of the problem type's shape and dtype (see `dist_eval.data.problem_types`).
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.facts = DatasetSummary.model_validate_json((folder / FACTS_FILE).read_bytes())
        self.lengths: np.ndarray = np.load(folder / LENGTHS_FILE, mmap_mode="r")
        self.cut: np.ndarray = np.load(folder / CUT_FILE, mmap_mode="r")
        self.labels: np.ndarray = np.load(folder / LABELS_FILE, mmap_mode="r")
        is_part = self.facts.selection is not None
        self.rows: np.ndarray | None = np.load(folder / ROWS_FILE, mmap_mode="r") if is_part else None
        self._tokens = TokenFile(folder / TOKENS_FILE)

    @property
    def source(self) -> str:
        """Name of the dataset, for messages."""
        return self.facts.source

    @property
    def sampling_fraction(self) -> float:
        """Share of the dataset's rows that a random sample has; 0 without one."""
        return self.facts.sampling_fraction

    def __len__(self) -> int:
        return self.facts.examples

    def where(self, position: int) -> str:
        """Says in which file an example is, given by its position among them, and its row there, for messages."""
        row = position if self.rows is None else int(self.rows[position])
        return place_of(row, self.source, [(shard.file, shard.rows) for shard in self.facts.shards or ()])

    def file_digests(self) -> dict[str, str]:
        """Returns the hash of each of its files, by name; empty if they are not listed (see `DatasetSummary`)."""
        return {shard.file: shard.digest for shard in self.facts.shards or ()}

    def beginnings(self) -> Beginnings | None:
        """Returns what prompts have in common; None for texts that are no prompts."""
        path = self._folder / COMMON_FILE
        if not path.exists():
            return None
        return Beginnings(np.load(path), self.lengths - 1, lambda index, size: self.input_ids(index)[:size])

    def column(self, name: str) -> pa.Array:
        """Returns one of the extra columns as text: strings, null where a value is missing."""
        return read_column(self._folder, name)

    def input_ids(self, index: int) -> np.ndarray:
        """Returns the token ids of one example, by its position among them, int32 of shape [length]."""
        return self._tokens.input_ids(index)

    def labels_of(self, rows: np.ndarray) -> np.ndarray:
        """Returns the labels of some examples, by their rows."""
        return self.labels[positions_of(rows, self.rows)]

    def padded(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Collates examples into a batch (see `TokenFile.padded`).

        Args:
            indices: their rows in the dataset, int64 of shape [batch].

        Returns:
            Token ids, int64 of shape [batch, longest], and lengths, int64 of shape [batch].
        """
        positions = positions_of(indices, self.rows)
        lengths = np.asarray(self.lengths[positions], dtype=np.int64)
        return self._tokens.padded(positions, lengths), lengths
