"""The embedded example: real data, a small base model pretrained on it, and a tuned checkpoint.

Everything in the folders beside this file is made by `python -m dist_eval.demo.build`.
"""

from __future__ import annotations

from pathlib import Path

_HERE = Path(__file__).parent
BASE_MODEL = _HERE / "base"
CHECKPOINT = _HERE / "tuned"
TEST_DATA = _HERE / "digits-test.csv"
TRAIN_DATA = _HERE / "digits-train.csv"

OPTIONS: dict[str, str] = {
    "model": str(BASE_MODEL),
    "checkpoint": str(CHECKPOINT),
    "dataset": str(TEST_DATA),
}
"""What `--demo` stands for, beside a private swarm of this host."""
