"""What is in a tokenized dataset: lengths, what was cut, and which labels occur."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dist_eval.data.dataset import TokenizedDataset
from dist_eval.data.problem_types import REGRESSION, Problem
from dist_eval.planning.record import CutTexts, LabelCount, TargetRange, TextLengths


def text_lengths(lengths: np.ndarray) -> TextLengths:
    """Summarizes tokens of texts, integers of shape [n], n at least 1."""
    return TextLengths(shortest=int(lengths.min()), median=float(np.median(lengths)), longest=int(lengths.max()))


def cut_texts(data: TokenizedDataset) -> CutTexts:
    """Summarizes what texts that are too long have lost."""
    lost, kept = int(data.cut.sum()), int(data.lengths.sum(dtype=np.int64))
    return CutTexts(
        texts=len(data.cut),
        tokens=lost,
        share=lost / (lost + kept),
        median=float(np.median(data.cut)) if len(data.cut) else 0.0,
        most=int(data.cut.max(initial=0)),
    )


def label_counts(labels: np.ndarray, names: Sequence[str], problem: Problem) -> list[LabelCount]:
    """Counts the examples of each class or label, with its name; none for a regression."""
    if problem is REGRESSION:
        return []
    counts = labels.sum(axis=0) if problem.is_wide else np.bincount(labels, minlength=len(names))
    return [
        LabelCount(label=name, examples=int(count), share=float(count / len(labels)))
        for name, count in zip(names, counts, strict=True)
    ]


def target_ranges(labels: np.ndarray, names: Sequence[str], problem: Problem) -> list[TargetRange]:
    """Summarizes the targets of each output of a regression, with its name; none for other problem types."""
    if problem is not REGRESSION:
        return []
    return [
        TargetRange(output=name, lowest=float(values.min()), mean=float(values.mean()), highest=float(values.max()))
        for name, values in zip(names, labels.T, strict=True)
    ]
