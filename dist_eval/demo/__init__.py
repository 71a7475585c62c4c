"""The embedded example: real data, a small base model pretrained on it, and a tuned checkpoint.

Everything in the folders beside this file is made by `python -m dist_eval.demo.build`.
"""

from __future__ import annotations

from pathlib import Path

_HERE = Path(__file__).parent

BASE_MODEL = _HERE / "base"
"""A Llama of 4 blocks, pretrained on digits as text."""

CHECKPOINT = _HERE / "tuned"
"""Deep prompts and a head that were tuned for it."""

TEST_DATA = _HERE / "digits-test.csv"
"""596 digits with the columns text and label."""

TRAIN_DATA = _HERE / "digits-train.csv"
"""The digits that prompts and head were tuned on."""

OPTIONS: dict[str, str] = {
    "model": str(BASE_MODEL),
    "checkpoint": str(CHECKPOINT),
    "dataset": str(TEST_DATA),
}
"""What `--demo` stands for, beside a private swarm of this host."""

__all__ = ["BASE_MODEL", "CHECKPOINT", "OPTIONS", "TEST_DATA", "TRAIN_DATA"]
