"""`predictions.parquet` of a run on prompts: the generated texts, with the references that they were compared with."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dist_eval.process.files import replaced_atomically

_ROWS_AT_ONCE = 1 << 16


@dataclass(frozen=True)
class SavedText:
    """A generated text.

    Attributes:
        text: the text.
        references: what it may be.
        exact_match: whether it is one of them, once both are normalized (see `dist_eval.metrics.exact_match`).
        exact_match_raw: whether it is one of them as it is.
    """

    text: str
    references: list[str]
    exact_match: bool
    exact_match_raw: bool


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


def read_as_samples(path: Path) -> Iterator[dict[str, Any]]:
    """Yields the texts as samples of the lm-evaluation-harness (see `dist_eval.runs.task_samples`).

    Two runs pair rows of equal position and references.

    Raises:
        OSError: there is no such file, or none that can be read.
    """
    from pyarrow import parquet

    with parquet.ParquetFile(path) as file:
        for batch in file.iter_batches(_ROWS_AT_ONCE):
            for row in batch.to_pylist():
                key = f"{row['index']} {row['references']!r}"
                yield {
                    "doc_id": row["index"],
                    "target": " | ".join(row["references"]),
                    "arguments": {"gen_args_0": {"arg_0": "", "arg_1": {}}},
                    "filtered_resps": [row["text"]],
                    "filter": "none",
                    "doc_hash": hashlib.sha256(key.encode()).hexdigest(),
                    "exact_match": int(row["exact_match"]),
                    "exact_match_raw": int(row["exact_match_raw"]),
                }
