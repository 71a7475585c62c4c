"""What a run depends on: what has changed since an earlier one is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from dist_eval.runs.files import FINGERPRINT, JOURNAL
from dist_eval.runs.fingerprint import Fingerprint


def test_a_fingerprint_names_what_changed_and_not_what_only_follows(tmp_path: Path) -> None:
    Fingerprint({"dataset": "a", "tokenizer": "b", "plan": "c"}).save(tmp_path)
    earlier = Fingerprint.load(tmp_path)
    assert earlier is not None
    assert Fingerprint({"dataset": "a", "tokenizer": "b", "plan": "c"}).changed(earlier) == []
    assert Fingerprint({"dataset": "x", "tokenizer": "b", "plan": "y"}).changed(earlier) == ["dataset"]
    assert Fingerprint({"dataset": "a", "tokenizer": "b", "plan": "y"}).changed(earlier) == ["plan"]
    assert Fingerprint({"dataset": "a", "tokenizer": "b", "plan": "c", "new": "1"}).changed(earlier) == ["new"]
    prompts = Fingerprint({"dataset": "x", "tokenizer": "b", "plan": "c", "--prompt": "of each row"})
    assert prompts.changed(earlier) == ["--prompt"], "the hash of the data of a run that generates is one of prompts"


BEFORE = {"dataset": "a", "references": "b", "few-shot examples": "c", "token ids": "d"}


@pytest.mark.parametrize(
    ("now", "columns", "said"),
    [
        ({"few-shot examples": "x", "dataset": "x"}, {}, ["few-shot examples"]),
        ({"few-shot examples": "x", "dataset": "x"}, {"id": "x"}, ["few-shot examples"]),
        (
            {"few-shot examples": "x", "dataset": "x"},
            {"text": "x"},
            ["dataset (text has changed)", "few-shot examples"],
        ),
        ({"dataset": "x", "references": "x"}, {"text": "x"}, ["dataset (text has changed)", "references"]),
        ({"dataset": "x", "references": "x", "selection of rows": "x"}, {"text": "x"}, ["selection of rows"]),
        ({"dataset": "x", "selection of rows": "x", "texts of all rows": "x"}, {"text": "x"}, ["selection of rows"]),
    ],
)
def test_all_causes_are_named_and_no_consequence(now: dict[str, str], columns: dict[str, str], said: list[str]) -> None:
    earlier = Fingerprint(BEFORE, {"dataset": {"text": "a"}})
    later = Fingerprint({**BEFORE, **now, "token ids": "x"}, {"dataset": columns or {"text": "a"}})
    assert later.changed(earlier) == said


def test_of_a_part_of_other_rows_both_are_named() -> None:
    earlier = Fingerprint({"dataset": "a", "selection of rows": "a", "texts of all rows": "a"})
    later = Fingerprint({"dataset": "b", "selection of rows": "b", "texts of all rows": "b"})
    assert later.changed(earlier) == ["selection of rows", "texts of all rows"]


def test_a_fingerprint_names_the_files_that_changed(tmp_path: Path) -> None:
    files = {f"part-{number}.csv": str(number) for number in range(4)}
    Fingerprint({"dataset": "a"}, {"dataset": files}).save(tmp_path)
    earlier = Fingerprint.load(tmp_path)
    assert earlier is not None
    others = {"part-0.csv": "0", "part-1.csv": "x", "part-2.csv": "2", "part-4.csv": "4"}
    said = "dataset (part-1.csv has changed, part-3.csv is missing, part-4.csv is new)"
    assert Fingerprint({"dataset": "b"}, {"dataset": others}).changed(earlier) == [said]
    assert Fingerprint({"dataset": "a"}, {"dataset": others}).changed(earlier) == [], "the same rows in renamed files"
    follows = Fingerprint({"dataset": "a", "token ids": "x"}, {"dataset": others})
    assert follows.changed(earlier) == [said], "the same rows, distributed over files in another way"
    assert Fingerprint({"dataset": "a"}, {"dataset": others}).digest() == Fingerprint({"dataset": "a"}).digest()
    assert Fingerprint({"dataset": "b"}).changed(earlier) == ["dataset"]
    assert Fingerprint({"dataset": "b"}, {"dataset": files}).changed(earlier) == ["dataset"]
    many = {f"{number}.csv": "" for number in range(7)}
    (changed,) = Fingerprint({"dataset": "b"}, {"dataset": many}).changed(earlier)
    assert changed.endswith(", 6 more)")
    assert changed.count(" is ") == 5


def test_a_fingerprint_that_cannot_be_read_is_no_missing_one(tmp_path: Path) -> None:
    assert Fingerprint.load(tmp_path) is None
    (tmp_path / JOURNAL / FINGERPRINT).mkdir(parents=True)
    with pytest.raises(OSError, match="directory"):
        Fingerprint.load(tmp_path)


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "[" * 200_000, "3", '{"parts": 3}', '{"parts": {"dataset": 3}}', '{"dataset": "b", "digest": "0"}'],
)
def test_a_damaged_fingerprint_counts_as_none(tmp_path: Path, content: str) -> None:
    Fingerprint({"dataset": "a"}).save(tmp_path)
    (tmp_path / JOURNAL / FINGERPRINT).write_text(content)
    assert Fingerprint.load(tmp_path) is None


def test_tasks_that_score_the_same_answers_otherwise_are_no_other_run() -> None:
    earlier = Fingerprint({"data": "a", "definition of the tasks": "b", "code of the tasks": "c"})
    for changes, scores_otherwise in (
        ({}, False),
        ({"code of the tasks": "x"}, True),
        ({"code of the tasks": "x", "definition of the tasks": "x"}, True),
        ({"code of the tasks": "x", "data": "x"}, False),
    ):
        assert Fingerprint({**earlier.values, **changes}).scores_otherwise(earlier) == scores_otherwise
    old = Fingerprint({"data": "a", "definition of the tasks": "b"})  # of a version that did not hash the code
    assert not earlier.scores_otherwise(old) and earlier.changed(old) == []
