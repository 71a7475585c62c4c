"""What changed between runs on the same data, example by example, and whether by more than chance.

The first run is what the others are compared with. Runs on different data are refused, with the reason: a difference
between them would say nothing about the models. Where runs have groups of examples (`--group-column`), whole groups are
drawn, and McNemar's test, for which each example stands for itself, is not made.

`compared_run` reads runs back, `comparing` compares them, `tables` shows what was found.
"""

from __future__ import annotations

METRICS = {
    "single_label_classification": ("accuracy", "balanced_accuracy", "f1_macro", "mcc", "loss"),
    "multi_label_classification": ("subset_accuracy", "f1_micro", "f1_macro", "hamming_loss", "loss"),
    "regression": ("mae", "rmse", "r2", "pearson", "loss"),
}
"""Figures that are shown unless others are asked for, by `problem_type`."""
