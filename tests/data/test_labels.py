"""The label column: what a value means follows from the head's names, in one way for the whole column."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas
import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from dist_eval.data.in_memory import write_parquet
from dist_eval.data.labels import LabelReader, find_classes, integer_text, whole_number
from dist_eval.data.readers import ROWS_PER_BATCH, RowSource, open_rows
from dist_eval.errors import DataError

STARS = ["1", "2", "3", "4", "5"]
DEFAULT = ["LABEL_0", "LABEL_1", "LABEL_2"]
MNLI = ["contradiction", "neutral", "entailment"]


def classes_of(
    *chunks: Any, names: Sequence[str] = ("neg", "pos"), declared: list[str] | None = None, how: str = "auto"
) -> list[int]:
    """Maps a column that comes in chunks."""
    source = RowSource("test.parquet", iter(()), declared)
    return mapped(source, [chunk if isinstance(chunk, pa.Array) else pa.array(chunk) for chunk in chunks], names, how)


def classes_in(dataset: str, names: Sequence[str], how: str = "auto") -> list[int]:
    """Maps the column `label` of a file or folder."""
    source = open_rows(dataset, ["text", "label"])
    return mapped(source, [batch.column(1) for batch in source.batches], names, how)


def mapped(source: RowSource, chunks: list[pa.Array], names: Sequence[str], how: str) -> list[int]:
    reader, codes, row = LabelReader(source, "label", names, how), [], 0
    for chunk in chunks:
        codes.append(reader.codes(chunk, row))
        row += len(chunk)
    ids = reader.ids(np.concatenate(codes))
    assert ids.dtype == np.int64
    return ids.tolist()


def error_of(*chunks: Any, **options: Any) -> str:
    with pytest.raises(DataError) as caught:
        classes_of(*chunks, **options)
    return str(caught.value)


some_names = st.one_of(
    st.lists(st.sampled_from(["neg", "pos", "Pos", "mixed", "LABEL_1", "é", ""]), min_size=1, max_size=4),
    st.lists(st.integers(-1, 6).map(str) | st.sampled_from(["01", "+2", " 3"]), min_size=1, max_size=5),
    st.lists(st.sampled_from(["neg", "pos", "0", "1", "2", "3"]), min_size=1, max_size=4),
    st.integers(1, 4).map(lambda count: [f"LABEL_{number}" for number in range(count)]),
    st.permutations(STARS),
)
any_text = st.sampled_from(["neg", "pos", "Pos", "POS", "mixed", "LABEL_0", "LABEL_1", "é", "", "x", "1.0", "+2", "01"])
columns = st.one_of(
    st.lists(any_text | st.integers(-2, 6).map(str), min_size=1, max_size=8),
    st.lists(st.integers(-2, 6), min_size=1, max_size=8),
    st.lists(st.booleans(), min_size=1, max_size=4),
)
hows = st.sampled_from(["auto", "names", "numbers"])


def outcome_of(*chunks: Any, **options: Any) -> list[int] | None:
    try:
        return classes_of(*chunks, **options)
    except DataError:
        return None


def is_renumbered(names: Sequence[str]) -> bool:
    """Whether a class has a number as its name that is not its own."""
    return any(whole_number(name) not in (None, number) for number, name in enumerate(names))


@settings(max_examples=400)
@given(column=columns, names=some_names, declared=st.none() | some_names, how=hows, data=st.data())
def test_what_a_value_means_never_depends_on_the_other_values_where_names_are_no_numbers_of_others(
    column: list[Any], names: list[str], declared: list[str] | None, how: str, data: st.DataObject
) -> None:
    assume(how != "auto" or declared or not is_renumbered(names))
    options: dict[str, Any] = {"names": names, "declared": declared, "how": how}
    cut = data.draw(st.integers(0, len(column)))
    chunks = [pa.array(part, pa.array(column).type) for part in (column[:cut], column[cut:])]

    alone = [outcome_of([value], **options) for value in column]
    together = outcome_of(*chunks, **options)

    if any(outcome is None for outcome in alone):
        assert together is None
    else:
        assert together == [outcome[0] for outcome in alone if outcome]


numbered_names = st.one_of(
    st.lists(st.integers(-2, 6).map(str), min_size=1, max_size=5, unique=True),
    st.lists(st.integers(-2, 6).map("{}.0".format), min_size=1, max_size=5, unique=True),
    st.lists(st.sampled_from(["neg", "pos", "0", "1", "2", "3"]), min_size=1, max_size=4, unique=True),
)


@settings(max_examples=400)
@given(numbers=st.lists(st.integers(-2, 6), min_size=1, max_size=8), names=numbered_names)
def test_integers_mean_the_same_in_every_spelling_and_the_same_in_a_column(
    numbers: list[int], names: list[str]
) -> None:
    found = outcome_of(numbers, names=names)
    assert found in (
        None,
        outcome_of(numbers, names=names, how="names"),
        outcome_of(numbers, names=names, how="numbers"),
    )
    assert found == outcome_of([f" {number} " for number in numbers], names=names)
    assert found == outcome_of(pa.array(numbers, pa.float64()), names=names)
    assert found == outcome_of(*([number] for number in numbers), names=names)


@pytest.mark.parametrize("spelled", [int, str, float, "{}.0".format], ids=["integers", "text", "floats", "decimals"])
@pytest.mark.parametrize(
    ("names", "values", "classes"),
    [
        (STARS, [1, 2, 3, 4, 5], [0, 1, 2, 3, 4]),
        (STARS, [4, 1, 2], [3, 0, 1]),  # no 0, so that they are taken for names
        (STARS, [0, 1, 4], [0, 1, 4]),  # 0 is no name
        (["-1", "0", "1"], [0, 1, -1], [1, 2, 0]),
        (["-1", "0", "1"], [0, 1], [1, 2]),
        (["-1", "0", "1"], [2, 0, 1], [2, 0, 1]),
        (["10", "20", "30"], [20, 10], [1, 0]),
        (["10", "20", "30"], [2, 0], [2, 0]),
        (["neg", "0"], [1, 0], [1, 0]),
    ],
)
def test_numbers_are_names_if_all_are_and_else_class_numbers(
    spelled: Callable[[int], Any], names: list[str], values: list[int], classes: list[int]
) -> None:
    assert classes_of([spelled(value) for value in values], names=names) == classes


@pytest.mark.parametrize("spelled", [int, str, float], ids=["integers", "text", "floats"])
@pytest.mark.parametrize("names", [["3", "2", "1", "0"], ["1", "0"], ["neg", "0"], ["1", "2", "other"]])
def test_labels_are_ambiguous_where_every_name_is_a_class_number(spelled: Any, names: list[str]) -> None:
    values = [spelled(int(name)) for name in names if name.isdecimal()]
    message = error_of(values, names=names)
    assert message.startswith("test.parquet: column 'label' is ambiguous")
    assert ", ".join(names) in message
    assert "--labels names or --labels numbers" in message
    assert outcome_of(values, names=names, how="names") is not None
    assert outcome_of(values, names=names, how="numbers") is not None


@pytest.mark.parametrize("labels", [[1, 2], ["1", "2"]])
def test_some_rows_do_not_decide_whether_labels_are_names(labels: list[Any]) -> None:
    some = RowSource("test.csv", iter(()), selected=np.arange(9))
    with pytest.raises(DataError, match="ambiguous"):
        mapped(some, [pa.array(labels)], STARS, "auto")
    assert mapped(some, [pa.array([*labels, type(labels[0])(5)])], STARS, "auto") == [0, 1, 4]
    assert mapped(some, [pa.array([*labels, type(labels[0])(0)])], STARS, "auto") == [1, 2, 0]


def test_names_and_class_numbers_do_not_stand_in_one_column() -> None:
    message = error_of(["5", "0"], names=STARS)
    assert "row 1 (counted from 0): the label in column 'label' is '0'" in message
    assert "If 0 is a class number, set --labels numbers." in message
    assert "--labels" not in error_of([1, 7], names=STARS)


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        (["neg", "pos", "neg"], [0, 1, 0]),
        ([0, 1, 0], [0, 1, 0]),
        (["0", "1", "01"], [0, 1, 1]),
        ([" 1", "0 ", "+1"], [1, 0, 1]),
        (["1", "neg", "0", "pos"], [1, 0, 0, 1]),
    ],
)
def test_labels_are_names_or_numbers_or_both(labels: list[Any], classes: list[int]) -> None:
    assert classes_of(labels) == classes


@pytest.mark.parametrize(
    "labels",
    [
        pa.array([0, 1], pa.int8()),
        pa.array([0, 1], pa.uint64()),
        pa.array([0.0, 1.0], pa.float32()),
        pa.array(["neg", "pos"]),
    ],
    ids=lambda array: str(array.type),
)
def test_labels_of_all_arrow_types(labels: pa.Array) -> None:
    assert classes_of(labels) == [0, 1]


def test_truth_values_are_names() -> None:
    assert classes_of([True, False], names=["False", "True"]) == [1, 0]
    assert "'True'" in error_of([True, False])


def test_a_label_keeps_its_meaning_in_every_chunk() -> None:
    names = [f"class {number}" for number in range(50)]
    labels = [names[(7 * row) % 50] for row in range(300)]
    found = classes_of(labels[:1], labels[1:120], pa.array([], pa.string()), labels[120:], names=names)
    assert [names[number] for number in found] == labels


def test_integers_are_names_with_the_option_names() -> None:
    assert classes_of([1, 2, 3, 4, 5], names=STARS, how="names") == [0, 1, 2, 3, 4]
    assert "row 1 (counted from 0): the label in column 'label' is '0'" in error_of([1, 0], names=STARS, how="names")


@pytest.mark.parametrize(
    ("names", "how", "classes"),
    [
        (STARS, "names", [0, 1, 3]),
        (STARS, "numbers", [1, 2, 4]),
        (["4", "3", "2", "1", "0"], "names", [3, 2, 0]),
        (["4", "3", "2", "1", "0"], "numbers", [1, 2, 4]),
    ],
)
def test_the_labels_option_resolves_ambiguous_text(names: list[str], how: str, classes: list[int]) -> None:
    assert classes_of(["1", "2", "4"], names=names, how=how) == classes


def test_names_that_are_their_own_numbers_are_not_ambiguous() -> None:
    assert classes_of(["7", "07", "0", "9"], names=list("0123456789")) == [7, 7, 0, 9]
    assert classes_of(["0", "1", "x"], names=["0", "x"]) == [0, 1, 1]


@pytest.mark.parametrize(("how", "wrong"), [("names", "1"), ("numbers", "pos")])
def test_the_labels_option_applies_to_all_values(how: str, wrong: str) -> None:
    message = error_of([{"names": "pos", "numbers": "1"}[how], wrong], how=how)
    assert f"row 1 (counted from 0): the label in column 'label' is '{wrong}'" in message


def test_declared_names_in_another_order_are_matched() -> None:
    declared = ["entailment", "neutral", "contradiction"]
    assert classes_of([0, 1, 2, 0], names=MNLI, declared=declared) == [2, 1, 0, 2]


def test_declared_names_may_differ_in_case() -> None:
    assert classes_of([0, 1, 2], names=MNLI, declared=["Entailment", "NEUTRAL", "contradiction"]) == [2, 1, 0]
    assert classes_of([0, 1], names=["Straße", "weg"], declared=["WEG", "STRASSE"]) == [1, 0]
    assert "'POS'" in error_of(["POS"])


def test_declared_names_that_are_numbers_are_still_names() -> None:
    assert classes_of([0, 4], names=STARS, declared=STARS) == [0, 4]
    assert classes_of([0, 4], names=STARS[::-1], declared=STARS) == [4, 0]


def test_declared_names_do_not_count_where_the_head_has_only_default_names() -> None:
    assert classes_of([0, 1, 2], names=DEFAULT, declared=["c", "b", "a"]) == [0, 1, 2]
    assert classes_of([0, 1, 2], names=DEFAULT, declared=DEFAULT[::-1]) == [0, 1, 2]
    assert classes_of([0, 1, 2], names=DEFAULT, declared=DEFAULT[::-1], how="names") == [2, 1, 0]


def test_declared_names_are_ignored_with_the_option_numbers() -> None:
    assert classes_of([0, 1, 2], names=MNLI, declared=["other", "neutral", "entailment"], how="numbers") == [0, 1, 2]


@pytest.mark.parametrize("how", ["auto", "names"])
def test_a_declared_name_that_the_head_lacks_is_an_error_that_lists_both(how: str) -> None:
    declared = ["neutral", "no_relation", "contradiction"]
    message = error_of([0, 2, 1], names=MNLI, declared=declared, how=how)
    assert "row 2 (counted from 0): the label in column 'label' is 'no_relation'" in message
    assert "the classes are contradiction, neutral, entailment (0 to 2)" in message
    assert "The dataset declares the names neutral, no_relation, contradiction." in message


def test_a_declared_name_that_the_head_lacks_may_stay_unused() -> None:
    declared = ["neutral", "no_relation", "contradiction"]
    assert classes_of([0, 2], names=MNLI, declared=declared) == [1, 0]


def test_a_declared_name_that_fits_two_classes_is_refused() -> None:
    assert "'pos', the name of more than one class" in error_of([0], names=["Pos", "POS"], declared=["pos"])
    assert classes_of([0], names=["pos", "POS"], declared=["pos"]) == [0]


@pytest.mark.parametrize("names", [["neg", "pos"], ["-1", "0", "1"]])
def test_an_unlabelled_row_is_no_class(names: list[str]) -> None:
    assert "row 1 (counted from 0): the label in column 'label' is '-1'" in error_of(
        [1, -1], names=names, declared=names
    )


def test_a_number_beyond_the_declared_names_is_no_name() -> None:
    assert "row 0 " in error_of([2], names=["2", "x"], declared=["2", "x"])


@pytest.mark.parametrize("absent", ["nan", "", " None "])
def test_a_missing_label_among_numbers_is_no_class(absent: str, tmp_path: Path) -> None:
    path = tmp_path / "train.csv"
    path.write_text(f'label\n0\n1\n"{absent}"\n')
    with pytest.raises(DataError, match=r"train\.csv, row 2 \(counted from 0\): the label .*but others are numbers"):
        find_classes(open_rows(str(path), ["label"]), "label")
    assert find_classes(open_rows(str(path), ["label"]), "label", "names") == sorted(["0", "1", absent.strip()])


def test_an_unknown_label_names_the_row_and_the_classes() -> None:
    assert error_of(["pos", "neutral"]) == (
        "test.parquet, row 1 (counted from 0): the label in column 'label' is 'neutral', but the classes "
        "are neg, pos (0 to 1). Correct it, or remove the row."
    )


@pytest.mark.parametrize("label", ["2", "-1", "0.5", "Pos", "True", "1" * 5000], ids=lambda text: text[:8])
def test_a_label_outside_the_head_names_the_row(label: str) -> None:
    message = error_of(["1", label])
    assert "row 1 (counted from 0): the label in column 'label' is" in message
    assert label[:50] in message


@pytest.mark.parametrize("label", [2, -1, 2**63 - 1])
def test_a_number_outside_the_head_names_the_row(label: int) -> None:
    assert f"row 1 (counted from 0): the label in column 'label' is '{label}'" in error_of([1, label])


def test_an_unknown_label_in_a_later_chunk_names_its_first_row() -> None:
    assert "row 7 " in error_of(["pos"] * 5, ["pos", "neg", "odd", "odd"], ["odd"])


def test_an_empty_label_is_called_empty() -> None:
    assert "row 1 (counted from 0): the label in column 'label' is empty" in error_of(["pos", ""])


def test_a_long_unknown_label_is_not_printed_as_a_whole() -> None:
    assert len(error_of(["bad film " * 10_000])) < 2000


def test_of_many_classes_only_the_first_are_listed() -> None:
    message = error_of(["x"], names=[f"class {number}" for number in range(5000)])
    assert "class 9, ... (0 to 4999)" in message
    assert len(message) < 1000


def test_a_name_that_two_classes_share_is_refused_where_it_occurs() -> None:
    names = ["pos", "pos", "neg"]
    assert "row 1 (counted from 0): the label in column 'label' is 'pos'" in error_of(["neg", "pos"], names=names)
    assert classes_of(["neg", "1"], names=names) == [2, 1]
    assert classes_of([0, 1, 2], names=names) == [0, 1, 2]


@pytest.mark.parametrize("labels", [["0", "1"], [0, 1]])
def test_numbers_are_a_way_out_where_two_classes_share_a_number_as_name(labels: list[Any]) -> None:
    names = ["1", "1", "x"]
    assert classes_of(labels, names=names, how="numbers") == [0, 1]
    assert isinstance(labels[0], str) or classes_of(labels, names=names) == [0, 1]


@pytest.mark.parametrize("labels", [["pos", None], [1, None], [None, None]])
def test_a_missing_label_names_the_row(labels: list[Any]) -> None:
    row = 2 + labels.index(None)
    assert f"row {row} (counted from 0): the label in column 'label' is missing" in error_of(["pos", "neg"], labels)


@pytest.mark.parametrize(
    "labels", [[b"neg", b"pos"], [[0], [1]], [{"id": 0}, {"id": 1}], [date(2020, 1, 31)], [datetime(2020, 1, 1)]]
)
def test_labels_that_are_no_classes_name_the_column_and_its_type(labels: list[Any]) -> None:
    kind = pa.array(labels).type
    assert f"test.parquet: column 'label' holds {kind}; labels are class numbers or names." in error_of(labels)


NORMALIZED = [
    (["1.0", "0.0", "1.00"], ["neg", "pos"], "auto", [1, 0, 1], 3),
    ([1.0, 0.0], ["neg", "pos"], "auto", [1, 0], 2),
    ([Decimal("1.0"), Decimal("0.0")], ["neg", "pos"], "auto", [1, 0], 2),
    ([" pos", "neg", "neg\t"], ["neg", "pos"], "auto", [1, 0, 0], 2),
    (["pos", "neg"], [" neg ", "pos"], "auto", [1, 0], 1),
    ([" 1", "0", "+1", "01"], ["neg", "pos"], "auto", [1, 0, 1, 1], 3),
    (["5.0", "1"], STARS, "names", [4, 0], 1),
    ([5.0, 1.0], STARS, "names", [4, 0], 2),
    (["3.0", "1"], STARS, "numbers", [3, 1], 1),
    (["1.0", "2.0"], ["1.0", "2.0"], "auto", [0, 1], 0),
    ([" 1.0", "2.0"], ["1.0", "2.0"], "auto", [0, 1], 1),
]


@pytest.mark.parametrize(("labels", "names", "how", "classes", "normalized"), NORMALIZED)
def test_what_can_mean_only_one_class_is_read_and_counted(
    labels: list[Any], names: list[str], how: str, classes: list[int], normalized: int
) -> None:
    reader = LabelReader(RowSource("test.csv", iter(())), "label", names, how)
    codes = [reader.codes(pa.array([label], pa.array(labels).type), row) for row, label in enumerate(labels)]
    assert reader.ids(np.concatenate(codes)).tolist() == classes
    assert reader.normalized == normalized


@pytest.mark.parametrize(
    ("label", "names"),
    [
        ("0.0", ["1.0", "2.0"]),  # the number 0, or a name that is not there
        (" pos", ["pos ", "pos"]),
        ("1.0", ["1", "0"]),
        ("1.5", ["neg", "pos"]),
        ("  ", ["neg", "pos"]),
        ("POS", ["neg", "pos"]),
    ],
)
def test_what_could_mean_two_classes_or_none_is_refused(label: str, names: list[str]) -> None:
    assert "'label'" in error_of([label], names=names)


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        ([1.0, 1.5], "row 1 (counted from 0): the label in column 'label' is 1.5; labels are class numbers or names."),
        ([1.0, float("nan")], "row 1 (counted from 0): the label in column 'label' is missing (NaN)"),
        ([0.0, 1e300], "row 1 (counted from 0): the label in column 'label' is 1e+300;"),
        ([1.0, 7.0], "row 1 (counted from 0): the label in column 'label' is '7', but the classes are"),
        (["pos", "POS"], "(0 to 1). Did you mean 'pos'?"),
    ],
)
def test_a_number_that_is_no_class_names_the_row(labels: list[float], words: str) -> None:
    assert words in error_of(labels)


def test_class_labels_of_a_dataset_are_matched_by_name(tmp_path: Path) -> None:
    names = datasets.ClassLabel(names=["Entailment", "Neutral", "Contradiction"])
    features = datasets.Features({"text": datasets.Value("string"), "label": names})
    rows = datasets.Dataset.from_dict({"text": ["a"] * 4, "label": [0, 1, 2, 2]}, features=features)
    path = str(tmp_path / "saved.parquet")
    rows.to_parquet(path)
    assert classes_in(path, MNLI) == [2, 1, 0, 0]
    assert classes_in(path, MNLI, "names") == [2, 1, 0, 0]
    assert classes_in(path, MNLI, "numbers") == [0, 1, 2, 2]
    assert classes_in(path, DEFAULT) == [0, 1, 2, 2]


def test_integers_of_a_parquet_file_without_names_are_class_numbers(tmp_path: Path) -> None:
    parquet.write_table(pa.table({"text": ["a", "b"], "label": [2, 0]}), tmp_path / "plain.parquet")
    assert classes_in(str(tmp_path / "plain.parquet"), MNLI) == [2, 0]
    assert classes_in(str(tmp_path / "plain.parquet"), STARS) == [2, 0]


@pytest.mark.parametrize("stars", [[1, 3, 5], [1, 3]])
def test_the_same_stars_mean_the_same_in_every_format(stars: list[int], tmp_path: Path) -> None:
    rows = [{"text": "a", "label": number} for number in stars]
    (tmp_path / "stars.csv").write_text("text,label\n" + "".join(f"a,{number}\n" for number in stars))
    (tmp_path / "stars.tsv").write_text("text\tlabel\n" + "".join(f"a\t{number}\n" for number in stars))
    (tmp_path / "stars.json").write_text(json.dumps(rows))
    (tmp_path / "stars.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "stars.parquet")
    write_parquet(rows, tmp_path / "mappings.parquet")
    pandas.DataFrame(rows).astype({"label": float}).to_parquet(tmp_path / "floats.parquet")
    datasets.Dataset.from_list(rows).save_to_disk(str(tmp_path / "saved"))
    for path in map(str, tmp_path.iterdir()):
        assert classes_in(path, STARS) == [number - 1 for number in stars]
        assert classes_in(path, STARS, "names") == [number - 1 for number in stars]
        assert 5 in stars or classes_in(path, STARS, "numbers") == stars


@pytest.mark.parametrize(("first", "later"), [("1", 1), (1, "1")], ids=["text first", "numbers first"])
def test_ambiguous_text_is_refused_also_where_other_rows_hold_numbers(tmp_path: Path, first: Any, later: Any) -> None:
    labels = [first] * ROWS_PER_BATCH + [later]
    (tmp_path / "mixed.json").write_text(json.dumps([{"text": "a", "label": label} for label in labels]))
    with pytest.raises(DataError, match="column 'label'"):
        classes_in(str(tmp_path / "mixed.json"), STARS)


@pytest.mark.parametrize(
    ("text", "number"),
    [("0", 0), ("007", 7), (" 12 ", 12), ("+3", 3), ("-1", -1), ("1.0", None), ("", None), ("1 2", None), ("x", None)],
)
def test_integers_are_recognized_as_text(text: str, number: int | None) -> None:
    assert integer_text(text) == number


def source_of(values: list[Any], class_names: list[str] | None = None) -> RowSource:
    batches = [pa.RecordBatch.from_pydict({"label": part}) for part in (values[:2], values[2:]) if part]
    return RowSource("data.csv", iter(batches), class_names)


@pytest.mark.parametrize(
    ("values", "options", "expected"),
    [
        (["pos", "neg", "pos"], {}, ["neg", "pos"]),
        (["1", "0", "2"], {}, ["0", "1", "2"]),
        ([1, 0, 1], {}, ["0", "1"]),
        ([1, 0, 1], {"count": 4}, ["0", "1", "2", "3"]),
        ([1, 5, 1], {"how": "names"}, ["1", "5"]),
        (["1", "0", "x"], {}, ["0", "1", "x"]),
        ([True, False], {}, ["False", "True"]),
        (["10", "9", *map(str, range(9))], {}, [str(number) for number in range(11)]),
    ],
)
def test_the_classes_of_a_column_are_found_and_all_its_values_belong_to_one(
    values: list[Any], options: dict[str, Any], expected: list[str]
) -> None:
    names = find_classes(source_of(values), "label", **options)
    assert names == expected
    reader = LabelReader(source_of(values), "label", names, options.get("how", "auto"))
    ids = reader.ids(reader.codes(pa.array(values), 0))
    assert [names[number] for number in ids] == [str(value) for value in values]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (["1.0", "0.0"], ["0", "1"]),
        ([1.0, 0.0], ["0", "1"]),
        (["pos ", "neg", "pos"], ["neg", "pos"]),
        (["1.0", "1.5"], ["1.0", "1.5"]),
    ],
)
def test_new_classes_are_not_named_after_how_they_are_written(values: list[Any], expected: list[str]) -> None:
    assert find_classes(source_of(values), "label") == expected


def test_declared_names_are_the_classes_also_those_that_do_not_occur() -> None:
    names = ["bad", "good", "mixed"]
    assert find_classes(source_of([1, 0], names), "label") == names
    assert find_classes(source_of([1, 0], names), "label", "numbers") == ["0", "1"]


@pytest.mark.parametrize(
    ("values", "options", "words"),
    [
        ([], {}, "has no rows: there is nothing to learn from"),
        (["a", "a"], {}, "has only one class, 'a'"),
        ([1, 2, 5], {}, "class numbers up to 5 but no 0. Set --labels names if they are names, or --num-labels 6"),
        ([0, 1, 10**17], {}, "class numbers up to 100000000000000000 but no 2"),
        ([0, 1, 2], {"count": 2}, "contains the class number 2, but --num-labels 2 allows only 0 to 1"),
        (["a", "b"], {"count": 3}, "has 2 classes, but --num-labels says 3"),
        ([0, -1], {}, "contains the label '-1', which is not a class number. If it is the name"),
        (["0", "-1"], {}, "contains the label '-1', which is not a class number. If it is the name"),
        (["0", "x"], {"how": "numbers"}, "contains the label 'x', which is not a class number"),
        ([0.5, 1.0], {}, "labels are class numbers or names"),
    ],
)
def test_a_column_without_classes_is_rejected_with_the_reason(
    values: list[Any], options: dict[str, Any], words: str
) -> None:
    with pytest.raises(DataError) as caught:
        find_classes(source_of(values), "label", **options)
    assert words in str(caught.value)
