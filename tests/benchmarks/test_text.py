"""The text to measure with: SST-2 or something of the same lengths."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from benchmarks.text import load_corpus, make_corpus


def test_synthetic_sentences_have_the_lengths_of_sst2_and_are_deterministic() -> None:
    corpus = make_corpus(2000)
    words = np.array([len(sentence.split()) for sentence in corpus.sentences])
    assert abs(words.mean() - 18.5) < 0.6, "the mean of SST-2"
    assert np.abs(np.quantile(words, [0.05, 0.5, 0.95]) - [5, 18, 35]).max() <= 2
    assert set(corpus.labels) == {0, 1}
    assert make_corpus(2000) == corpus


def test_rows_of_sst2_come_from_the_test_split_first_and_are_repeated_when_there_are_too_few(tmp_path: Path) -> None:
    for split, sentence in (("train", "a, b"), ("test", 'say "c"')):
        (tmp_path / f"{split}.csv").write_text("sentence,label\n" + '"{}",1\n'.format(sentence.replace('"', '""')))
    corpus = load_corpus(3, tmp_path)
    assert corpus.sentences == ['say "c"', "a, b", 'say "c"']
    assert corpus.labels == [1, 1, 1]
    assert corpus.source == "Text: 3 sentences of SST-2 (its 2, repeated)."


def test_a_folder_that_is_named_must_hold_the_data(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no test"):
        load_corpus(3, tmp_path)


def test_a_file_can_hold_one_row_in_so_many(tmp_path: Path) -> None:
    corpus = make_corpus(7)
    with corpus.write_csv(tmp_path / "rows.csv", every=3).open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["sentence"] for row in rows] == corpus.sentences[::3]
    assert [int(row["label"]) for row in rows] == corpus.labels[::3]
