"""`predictions.parquet` of a run on prompts: the generated texts, with the references that they were compared with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dist_eval.process.files import replaced_atomically

_ROWS_AT_ONCE = 1 << 16


@dataclass(frozen=True)
class SavedText:
    """A generated text."""

    text: str  # the text
    references: list[str]  # what it may be
    exact_match: bool  # whether it is one of them, once both are normalized (see `dist_eval.metrics.exact_match`)
    exact_match_raw: bool  # whether it is one of them as it is


def write_texts(path: Path, rows: Sequence[SavedText]) -> None:
    """Writes one row for each text: index, references, text, exact_match, exact_match_raw; equal input as equal bytes.

    Args:
        path: the file.
        rows: the texts, in dataset order.
    """
    import pyarrow as pa
    from pyarrow import parquet

    schema = pa.schema(
        {
            "index": pa.int64(),
            "references": pa.list_(pa.string()),
            "text": pa.string(),
            "exact_match": pa.bool_(),
            "exact_match_raw": pa.bool_(),
        }
    )
    with replaced_atomically(path) as file, parquet.ParquetWriter(file, schema) as writer:
        for start in range(0, len(rows), _ROWS_AT_ONCE):
            some = [{"index": start + i, **vars(row)} for i, row in enumerate(rows[start : start + _ROWS_AT_ONCE])]
            writer.write_batch(pa.RecordBatch.from_pylist(some, schema=schema))


def read_texts(path: Path) -> Iterator[tuple[int, SavedText]]:
    """Yields what `write_texts` wrote: the index and the rest of each row."""
    from pyarrow import parquet

    with parquet.ParquetFile(path) as file:
        for batch in file.iter_batches(_ROWS_AT_ONCE):
            for row in batch.to_pylist():
                yield row.pop("index"), SavedText(**row)
