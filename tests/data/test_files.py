"""Which files a dataset consists of: in one order, whichever way they are named. `test_awkward_data` has the errors."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dist_eval.data.files import dataset_name, find_files, format_of, is_pattern, shared_file
from dist_eval.errors import DataError

NAMES = ["part-1.csv", "part-2.csv.gz", "part-10.csv", "part-010.csv", "part-11.csv.zst"]


def folder_of(folder: Path, names: list[str]) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("text,label\n")
    return folder


@pytest.mark.parametrize("given", ["", "part-*", "*.csv*", "**/part-*"])
def test_a_folder_and_its_patterns_are_the_same_files_in_natural_order(given: str, tmp_path: Path) -> None:
    folder_of(tmp_path, random.Random(0).sample(NAMES, len(NAMES)))
    expected = [tmp_path / name for name in ("part-1.csv", "part-2.csv.gz", "part-010.csv", "part-10.csv", NAMES[-1])]
    assert find_files([str(tmp_path / given)]) == expected
    assert find_files([str(tmp_path / name) for name in sorted(NAMES)]) == expected


def test_files_of_several_folders_are_ordered_by_folder(tmp_path: Path) -> None:
    names = ["day-9/b.jsonl", "day-9/c.json", "day-10/a.ndjson"]
    folder_of(tmp_path, names)
    assert find_files([str(tmp_path / "day-*")]) == [tmp_path / name for name in names]
    assert find_files([str(tmp_path / "**" / "*.*json*")]) == [tmp_path / name for name in names]
    assert find_files([str(tmp_path / "day-10"), str(tmp_path / "day-9")]) == [tmp_path / name for name in names]


@settings(max_examples=20)
@given(names=st.permutations(NAMES))
def test_the_order_in_which_files_are_named_does_not_matter(
    names: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = folder_of(tmp_path_factory.getbasetemp() / "order", NAMES)
    given = [str(folder / name) for name in names]
    assert find_files(given) == find_files(sorted(given))


def test_a_file_whose_name_looks_like_a_pattern_is_a_file(tmp_path: Path) -> None:
    folder_of(tmp_path, ["a[1].csv", "a1.csv"])
    assert find_files([str(tmp_path / "a[1].csv")]) == [tmp_path / "a[1].csv"]
    assert not is_pattern(str(tmp_path / "a[1].csv"))
    assert is_pattern(str(tmp_path / "a[2].csv"))


@pytest.mark.parametrize(
    ("name", "expected"),
    [("a.csv", ".csv"), ("A.CSV.GZ", ".csv"), ("a.b.jsonl.zst", ".jsonl"), ("a.gz", ""), ("a.csv.part", ".part")],
)
def test_the_format_is_the_last_suffix_but_that_of_the_compression(name: str, expected: str) -> None:
    assert format_of(Path(name)) == expected


def test_a_dataset_of_several_names_is_called_by_the_first() -> None:
    assert dataset_name("a.csv") == dataset_name(["a.csv"]) == "a.csv"
    assert dataset_name(["a.csv", "b.csv", "c.csv"]) == "a.csv and 2 more"


def test_datasets_that_share_a_file_are_found(tmp_path: Path) -> None:
    folder = str(folder_of(tmp_path, NAMES))
    assert shared_file(f"{folder}/part-2*", folder) == f"{folder}/part-2.csv.gz"
    assert shared_file([f"{folder}/part-1.csv"], [f"{folder}/part-2*", f"{folder}/part-10*"]) is None
    assert shared_file("glue", "glue") == "glue", "a hub name"
    assert shared_file("glue", folder) is None


@pytest.mark.parametrize(
    "names",
    [
        ["digits-test.csv", "digits-train.csv"],
        ["sst2_dev.tsv", "sst2_test.tsv"],
        ["x.test.jsonl", "x.train.jsonl"],
        ["test-00000-of-00001.parquet", "validation-00000-of-00001.parquet"],
        ["test1.csv", "train1.csv"],
        ["TEST.CSV", "TRAIN.CSV"],
        ["reviewsTest.csv", "reviewsTrain.csv"],
        ["SST2Dev.csv", "SST2Eval.csv"],
        ["testset.csv", "trainset.csv"],
        ["a training.csv", "b testing.csv"],
        ["held-out.csv", "train.csv"],
        ["eval-test.csv", "eval-train.csv"],
        ["train.csv", "train_dev.csv"],
        ["digits-test.csv", "digits.csv"],
        ["digits-1.csv", "digits-2.csv", "digits_test.csv"],
    ],
    ids=" ".join,
)
def test_a_folder_of_several_splits_is_refused_and_so_is_a_pattern(names: list[str], tmp_path: Path) -> None:
    folder_of(tmp_path, names)
    for name, what in ((tmp_path, "contains"), (tmp_path / "*", "matches")):
        with pytest.raises(
            DataError, match=f"{what} .* and .*, which look like different splits: name the files you want"
        ):
            find_files([str(name)])
    each = [str(tmp_path / name) for name in names]
    assert sorted(map(str, find_files(each))) == sorted(each), "whoever names them means them"


@pytest.mark.parametrize(
    "names",
    [
        ["test-1.csv", "test-2.csv", "test-10.csv"],
        ["a_test.csv", "b_test.csv"],
        ["test-00000-of-00002.parquet", "test-00001-of-00002.parquet"],
        ["contest-1.csv", "latest.csv", "test.csv"],
        ["constrained.csv", "train.csv"],
        ["attestations.csv", "devices.csv", "evaluated.csv", "tests.csv", "values.csv"],
        ["invalid.csv", "valid.csv"],
        ["train-test-1.csv", "train-test-2.csv"],
        ["pr\u00e9test.csv", "train.csv"],
    ],
    ids=" ".join,
)
def test_files_of_one_split_are_read_and_so_are_other_words(names: list[str], tmp_path: Path) -> None:
    folder_of(tmp_path, names)
    expected = sorted(tmp_path / name for name in names)
    assert sorted(find_files([str(tmp_path)])) == sorted(find_files([str(tmp_path / "*")])) == expected


def test_folders_of_several_splits_are_refused_too(tmp_path: Path) -> None:
    folder_of(tmp_path, ["test/part-1.csv", "train/part-1.csv"])
    for pattern in ("*", "*/part-*", "**/*.csv"):
        with pytest.raises(DataError, match=r"matches test/part-1.csv and train/part-1.csv, which look like different"):
            find_files([str(tmp_path / pattern)])
    assert len(find_files([str(tmp_path / "test" / "*")])) == 1


@pytest.mark.parametrize("given", ["", "*", "caf\udce9.csv"])
def test_a_name_that_is_not_utf8_is_refused(given: str, tmp_path: Path) -> None:
    folder_of(tmp_path, ["caf\udce9.csv"])
    with pytest.raises(DataError, match=r"caf\\udce9.csv': the name is not UTF-8, .* Rename the file\.$"):
        find_files([str(tmp_path / given)])
