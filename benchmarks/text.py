"""The text that the benchmarks classify: SST-2 if available, else synthetic sentences of the same lengths."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

SEED = 20240301
_SST2 = Path(__file__).parents[2] / "shared" / "data" / "sst2"
_SPLITS = ("test", "validation", "train")
# quantiles 0, 2.5, 5, ... 100 % of the number of words in a sentence of SST-2 (9,613 sentences, all splits)
_WORD_COUNTS = (1, 4, 5, 6, 7, 8, 8, 9, 10, 11, 11, 12, 13, 13, 14, 15, 15, 16, 17, 17, 18,
                18, 19, 20, 20, 21, 22, 22, 23, 24, 25, 26, 27, 27, 28, 30, 31, 33, 35, 38, 53)  # fmt: skip
_ONSETS = ("", "", "", *"bcdfghlmnprstw", "st", "th", "tr", "pl", "ch")
_RIMES = (*"aeiouy", "an", "ar", "as", "ed", "en", "er", "es", "in", "ing", "it", "on", "or", "ou", "us")
_VOCABULARY, _ZIPF = 12_000, 1.0


@dataclass(frozen=True)
class Corpus:
    """Sentences with labels.

    Attributes:
        sentences: the sentences.
        labels: 0 or 1 for each.
        source: description for the report.
    """

    sentences: list[str]
    labels: list[int]
    source: str

    def write_csv(self, path: Path, *, every: int = 1) -> Path:
        """Writes the columns `sentence` and `label`.

        Args:
            path: the file.
            every: keep every n-th row, starting with the first.

        Returns:
            The file.
        """
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["sentence", "label"])
            writer.writerows(zip(self.sentences[::every], self.labels[::every], strict=True))
        return path


def load_corpus(rows: int, folder: Path | None = None) -> Corpus:
    """Returns the first rows of SST-2, the test split first, or the same number of synthetic ones.

    Args:
        rows: number of rows; SST-2 is repeated if it has too few.
        folder: folder with SST-2, by default `shared/data/sst2`. If given, it must exist.

    Returns:
        The text.

    Raises:
        FileNotFoundError: the given folder does not exist or has none of the files.
    """
    files = [path for path in ((folder or _SST2) / f"{split}.csv" for split in _SPLITS) if path.is_file()]
    if not files:
        if folder is not None:
            raise FileNotFoundError(f"{folder} has no test.csv, validation.csv or train.csv.")
        return make_corpus(rows)
    found = [row for path in files for row in _read(path)]
    chosen = [found[i % len(found)] for i in range(rows)]
    return Corpus(
        [sentence for sentence, _ in chosen],
        [label for _, label in chosen],
        f"Text: {rows} sentences of SST-2" + ("" if rows <= len(found) else f" (its {len(found)}, repeated)") + ".",
    )


def load_split(split: str, folder: Path | None = None) -> Corpus | None:
    """Returns one split of SST-2.

    Args:
        split: "train", "validation" or "test".
        folder: folder with SST-2, by default `shared/data/sst2`.

    Returns:
        The text; None if it is not available.

    Raises:
        FileNotFoundError: the given folder does not have the split.
    """
    path = (folder or _SST2) / f"{split}.csv"
    if not path.is_file():
        if folder is not None:
            raise FileNotFoundError(f"{folder} has no {path.name}.")
        return None
    rows = _read(path)
    return Corpus([s for s, _ in rows], [n for _, n in rows], f"{split}: {len(rows)} sentences of SST-2")


def make_opinions(split: str, rows: int) -> Corpus:
    """Generates sentences with learnable labels: every word is positive or negative, and the majority decides.

    Args:
        split: equal names give equal sentences.
        rows: number of sentences to generate; those without a majority are left out.

    Returns:
        The text.
    """
    corpus = make_corpus(rows, seed=SEED + sum(split.encode()))
    votes = [sum(1 if len(word) % 2 else -1 for word in sentence.split()) for sentence in corpus.sentences]
    kept = [(sentence, int(vote > 0)) for sentence, vote in zip(corpus.sentences, votes, strict=True) if vote]
    return Corpus([s for s, _ in kept], [n for _, n in kept], f"{split}: {len(kept)} synthetic sentences")


def make_corpus(rows: int, seed: int = SEED) -> Corpus:
    """Generates sentences whose number of words is distributed as in SST-2.

    Args:
        rows: number of sentences.
        seed: equal seeds give equal sentences.
    """
    generator = np.random.default_rng(seed)
    words = _make_words(generator)
    frequencies = 1 / np.arange(1, len(words) + 1) ** _ZIPF
    quantiles = np.linspace(0, 1, len(_WORD_COUNTS))
    counts = np.interp(generator.random(rows), quantiles, _WORD_COUNTS).round().astype(int)
    drawn = generator.choice(len(words), size=counts.sum(), p=frequencies / frequencies.sum())
    ends = np.cumsum(counts)
    sentences = [" ".join(words[i] for i in drawn[end - n : end]) for end, n in zip(ends, counts, strict=True)]
    labels = generator.integers(0, 2, size=rows).tolist()
    return Corpus(sentences, labels, f"Text: {rows} synthetic sentences with as many words each as those of SST-2.")


def _make_words(generator: np.random.Generator) -> Sequence[str]:
    """Generates distinct words, short ones first, as frequent words are short."""
    words: set[str] = set()
    while len(words) < _VOCABULARY:
        syllables = generator.choice([1, 2, 3, 4], p=[0.1, 0.4, 0.35, 0.15])
        words.add("".join(generator.choice(_ONSETS) + generator.choice(_RIMES) for _ in range(syllables)))
    noise = dict(zip(sorted(words), generator.random(len(words)), strict=True))
    return sorted(words, key=lambda word: (len(word) + 3 * noise[word], word))


def _read(path: Path) -> list[tuple[str, int]]:
    with path.open(newline="", encoding="utf-8") as file:
        return [(row["sentence"], int(row["label"])) for row in csv.DictReader(file)]
