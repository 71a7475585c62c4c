"""The embedded example's data: the digits as text, split once and for all, and the files that ship them."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dist_eval import demo
from dist_eval.demo import digits

SHIPPED = {"train": demo.TRAIN_DATA, "test": demo.TEST_DATA}
both_splits = pytest.mark.parametrize("split", SHIPPED)


def text_to_image(text: str) -> list[list[int]]:
    return [[digits.LEVELS.index(level) for level in row.ljust(8, ".")] for row in text.split("/")]


def shipped_rows(split: str) -> list[list[str]]:
    with SHIPPED[split].open(newline="", encoding="utf-8") as file:
        return list(csv.reader(file))[1:]


@settings(max_examples=60)
@given(image=hnp.arrays(np.int64, (8, 8), elements=st.integers(0, 16)))
def test_an_image_can_be_read_back_from_its_text(image: np.ndarray) -> None:
    assert text_to_image(digits.image_to_text(image)) == image.tolist()


def test_a_blank_image_is_only_row_separators() -> None:
    assert digits.image_to_text(np.zeros((8, 8), dtype=np.uint8)) == "///////"


def test_blank_tails_are_trimmed_and_blank_heads_are_not() -> None:
    image = np.zeros((8, 8), dtype=np.int64)
    image[0, 2], image[7, 0] = 10, 16
    assert digits.image_to_text(image) == "..a///////g"


def test_images_are_grey_levels_with_their_digit() -> None:
    images, labels = digits.load_images()
    assert images.shape == (1797, 8, 8)
    assert (images.min(), images.max()) == (0, len(digits.LEVELS) - 1)
    assert set(labels.tolist()) == set(range(digits.NUM_CLASSES))
    assert images.dtype == labels.dtype == np.int64


def test_the_split_deals_every_digit_once() -> None:
    split = digits.split_indices()
    assert sorted([*split["train"], *split["test"]]) == list(range(1797))
    assert all((np.diff(part) > 0).all() for part in split.values())


def test_the_split_is_stratified() -> None:
    _, labels = digits.load_images()
    total = np.bincount(labels)
    assert np.bincount(labels[digits.split_indices()["test"]]).tolist() == (total // 3).tolist()


def test_the_split_is_the_same_each_time() -> None:
    np.random.seed(1)
    first, second = digits.split_indices(), digits.split_indices()
    assert all(first[name].tolist() == second[name].tolist() for name in ("train", "test"))


@both_splits
def test_the_shipped_file_is_what_the_code_writes(split: str, tmp_path: Path) -> None:
    path = tmp_path / "written.csv"
    path.write_text("what was there before" * 10_000)
    digits.write_csv(path, split)
    assert path.read_bytes() == SHIPPED[split].read_bytes()


@both_splits
def test_the_shipped_rows_are_the_images_of_the_split(split: str) -> None:
    images, labels = digits.load_images()
    positions = digits.split_indices()[split]
    rows = shipped_rows(split)
    assert [int(label) for _, label in rows] == labels[positions].tolist()
    assert [text_to_image(text) for text, _ in rows] == images[positions].tolist()


def test_no_test_digit_is_among_the_training_digits() -> None:
    assert not {text for text, _ in shipped_rows("train")} & {text for text, _ in shipped_rows("test")}


@both_splits
def test_the_shipped_tokenizer_knows_every_pixel(split: str) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(demo.BASE_MODEL)
    texts = [text for text, _ in shipped_rows(split)]
    ids = tokenizer(texts)["input_ids"]
    assert [len(row) for row in ids] == [1 + len(text) for text in texts]
    assert all(tokenizer.unk_token_id not in row for row in ids)
    assert len({len(row) for row in ids}) > 10


def test_the_demos_options_name_what_is_shipped() -> None:
    assert all(Path(demo.OPTIONS[name]).exists() for name in ("model", "checkpoint", "dataset"))


@pytest.mark.parametrize("folder", [demo.BASE_MODEL, demo.CHECKPOINT], ids=["base", "tuned"])
def test_the_shipped_tokenizer_returns_what_the_model_takes(folder: Path) -> None:
    from transformers import AutoTokenizer

    assert set(AutoTokenizer.from_pretrained(folder)("12/3")) == {"input_ids", "attention_mask"}
