"""scikit-learn's handwritten digits written as text, one character a pixel.

A digit is an 8 x 8 image with 17 grey levels. Each row becomes a run of characters (`.` is blank, `1`-`9` and
`a`-`g` the levels 1 to 16), rows are joined by `/`, and the blank tail of every row is trimmed, so that texts
differ in length. A third of the digits is held out for testing and used by neither pretraining nor tuning.
"""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

LEVELS = ".123456789abcdefg"
ROW_SEPARATOR = "/"
NUM_CLASSES = 10
SPLIT_SEED = 20240229


def image_to_text(image: np.ndarray) -> str:
    """Writes one digit, grey levels 0 to 16 of shape [8, 8], as text: its rows joined by `/`, blank tails trimmed."""
    rows = ("".join(LEVELS[level] for level in row).rstrip(LEVELS[0]) for row in image)
    return ROW_SEPARATOR.join(rows)


def load_images() -> tuple[np.ndarray, np.ndarray]:
    """Loads the digits that scikit-learn ships (UCI "Optical Recognition of Handwritten Digits", test set).

    Images, int64 of shape [1797, 8, 8], and labels, int64 of shape [1797].
    """
    from sklearn.datasets import load_digits

    digits = load_digits()
    return digits.images.astype(np.int64), digits.target.astype(np.int64)


def split_indices() -> dict[str, np.ndarray]:
    """Splits the digits into a training and a test part, stratified by class and reproducible."""
    _, labels = load_images()
    generator = np.random.default_rng(SPLIT_SEED)
    by_class = [np.flatnonzero(labels == label) for label in range(NUM_CLASSES)]
    test = np.concatenate([generator.permutation(positions)[: len(positions) // 3] for positions in by_class])
    test.sort()
    return {"train": np.setdiff1d(np.arange(len(labels)), test), "test": test}


def write_csv(path: Path, split: str) -> None:
    """Writes one split as a CSV file with the columns `text` and `label`."""
    images, labels = load_images()
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["text", "label"])
        for index in split_indices()[split]:
            writer.writerow([image_to_text(images[index]), labels[index]])
