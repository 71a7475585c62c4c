"""The data of the task `digits`."""

from __future__ import annotations

import csv
from typing import Any

from datasets import Dataset

from dist_eval.demo import TEST_DATA


def load(**_: Any) -> dict[str, Dataset]:
    """Reads the embedded example's test digits, with the columns text and label."""
    with TEST_DATA.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return {"test": Dataset.from_list([{"text": row["text"], "label": int(row["label"])} for row in rows])}
