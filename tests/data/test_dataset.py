"""Tokenized examples: every row with its tokens and its class, or an error that names the row."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import csv, parquet
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from dist_eval import demo
from dist_eval.data.dataset import TokenizedDataset, tokenize_dataset
from dist_eval.data.labelled_rows import LabelledRows
from dist_eval.data.readers import ROWS_PER_BATCH
from dist_eval.errors import DataError

DIGITS = AutoTokenizer.from_pretrained(demo.BASE_MODEL)
BEGIN = DIGITS.bos_token_id
Tokenize = Callable[..., TokenizedDataset]


def word_tokenizer(begin: bool = False) -> PreTrainedTokenizerFast:
    """One token for each word; nothing is added unless there should be a first token."""
    vocabulary = {"<unk>": 0, "<s>": 1, "good": 2, "bad": 3, "film": 4}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if begin:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)]
        )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>")


WORDS = word_tokenizer()


@pytest.fixture
def tokenize(tmp_path: Path) -> Tokenize:
    """Writes rows or a table to a file and tokenizes it."""

    def run(content: str | bytes | list[Any] | pa.Table, name: str = "test.csv", **options: Any) -> TokenizedDataset:
        path = tmp_path / name
        if isinstance(content, pa.Table):
            path = path.with_suffix(".parquet")
            parquet.write_table(content, path)
        elif isinstance(content, list):
            path = path.with_suffix(".json")
            path.write_text(json.dumps([dict(zip(("text", "label"), row, strict=True)) for row in content]))
        else:
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return tokenized(str(path), tmp_path, **options)

    return run


def tokenized(dataset: str, folder: Path, **options: Any) -> TokenizedDataset:
    target = folder / "tokens"
    target.mkdir(exist_ok=True)
    options = {"text_columns": ["text"], "label_column": "label", "label_names": ["neg", "pos"], **options}
    of_rows = {field.name: options.pop(field.name) for field in fields(LabelledRows) if field.name in options}
    return tokenize_dataset(
        LabelledRows(dataset, **of_rows), target, **{"tokenizer": WORDS, "max_length": 100, **options}
    )


def all_ids(data: TokenizedDataset) -> list[list[int]]:
    return [data.input_ids(row).tolist() for row in range(len(data))]


def test_rows_become_tokens_lengths_and_classes(tokenize: Tokenize) -> None:
    data = tokenize("text,label\ngood film,pos\nbad,neg\nodd good film,pos\n")
    assert len(data) == 3
    assert all_ids(data) == [[2, 4], [3], [0, 2, 4]]
    assert data.lengths.tolist() == [2, 1, 3]
    assert data.labels.tolist() == [1, 0, 1]
    assert (data.labels.dtype, data.lengths.dtype, data.input_ids(0).dtype) == (np.int64, np.int32, np.int32)


def test_the_shipped_tokenizer_puts_its_first_token_in_front(tokenize: Tokenize) -> None:
    data = tokenize("text,label\n.12/g,neg\n", tokenizer=DIGITS)
    assert all_ids(data) == [DIGITS.convert_tokens_to_ids(["<s>", ".", "1", "2", "/", "g"])]


def test_a_text_that_begins_itself_has_one_first_token_and_is_counted(tokenize: Tokenize) -> None:
    rows = [".12/g", "<s>.12/g", "<s>3/g"]
    data = tokenize("text,label\n" + "".join(f"{row},neg\n" for row in rows), tokenizer=DIGITS, max_length=4)
    assert all_ids(data) == [DIGITS.convert_tokens_to_ids(["<s>", *text]) for text in (".12", ".12", "3/g")]
    assert (data.facts.with_begin, data.facts.truncated, data.facts.longest, data.cut.tolist()) == (2, 2, 6, [2, 2])


def test_a_text_that_begins_itself_has_one_first_token_where_it_is_cut_from_the_left(tokenize: Tokenize) -> None:
    tokenizer = AutoTokenizer.from_pretrained(demo.BASE_MODEL, truncation_side="left")
    data = tokenize("text,label\n<s>.12/g,neg\n.12/g,neg\n", tokenizer=tokenizer, max_length=4)
    assert all_ids(data) == 2 * [tokenizer.convert_tokens_to_ids(["<s>", *"2/g"])]


@settings(max_examples=25)
@given(
    rows=st.lists(st.tuples(st.text(".123/", max_size=12), st.integers(0, 1)), min_size=1, max_size=20), data=st.data()
)
def test_tokens_equal_the_tokenizers_own_in_any_batch(
    rows: list[tuple[str, int]], data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("rows")
    (folder / "rows.json").write_text(json.dumps([{"text": text, "label": label} for text, label in rows]))

    examples = tokenized(str(folder / "rows.json"), folder, tokenizer=DIGITS)

    expected = [DIGITS(text)["input_ids"] for text, _ in rows]
    assert all_ids(examples) == expected
    assert examples.labels.tolist() == [label for _, label in rows]
    indices = data.draw(st.lists(st.integers(0, len(rows) - 1), min_size=1, max_size=6))
    ids, lengths = examples.padded(np.asarray(indices))
    assert lengths.tolist() == [len(expected[index]) for index in indices]
    assert ids.shape == (len(indices), max(lengths))
    for row, index in enumerate(indices):
        assert ids[row].tolist() == expected[index] + [0] * (max(lengths) - lengths[row])
    assert ids.dtype == lengths.dtype == np.int64


def test_rows_of_many_chunks_are_found_again(tokenize: Tokenize) -> None:
    rows = 3 * ROWS_PER_BATCH + 5
    table = pa.table({"text": ["good " * (n % 5 + 1) for n in range(rows)], "label": [n % 2 for n in range(rows)]})
    data = tokenize(table)
    assert len(data) == rows
    for row in (0, 1, ROWS_PER_BATCH - 1, ROWS_PER_BATCH, 3 * ROWS_PER_BATCH, rows - 1):
        assert data.input_ids(row).tolist() == [2] * (row % 5 + 1)
    assert data.lengths.tolist() == [row % 5 + 1 for row in range(rows)]
    assert data.labels.tolist() == [row % 2 for row in range(rows)]


def test_another_process_reads_the_same_from_the_folder(tokenize: Tokenize, tmp_path: Path) -> None:
    data, again = tokenize("text,label\ngood film,pos\nbad,neg\n"), TokenizedDataset(tmp_path / "tokens")
    assert again.facts == data.facts
    assert all_ids(again) == all_ids(data)
    assert again.labels.tolist() == data.labels.tolist()


def test_a_pair_of_texts_is_tokenized_as_a_pair(tokenize: Tokenize) -> None:
    tokenizer = word_tokenizer(begin=True)
    content = "label,premise,hypothesis\npos,good film,bad\nneg,bad,\n"
    data = tokenize(content, tokenizer=tokenizer, text_columns=["premise", "hypothesis"])
    assert all_ids(data) == [[1, 2, 4, 1, 3], [1, 3, 1]]


def test_long_texts_are_truncated_and_counted(tokenize: Tokenize) -> None:
    data = tokenize(
        "text,label\ngood film,pos\nbad bad bad good film,neg\nfilm good bad,pos\ngood film bad film,neg\n",
        max_length=3,
    )
    assert all_ids(data) == [[2, 4], [3, 3, 3], [4, 2, 3], [2, 4, 3]]
    assert data.lengths.tolist() == [2, 3, 3, 3]
    assert (data.facts.truncated, data.facts.longest, data.facts.max_length) == (2, 5, 3)


def test_the_longer_text_of_a_pair_is_truncated(tokenize: Tokenize) -> None:
    content = "text,other,label\ngood good good good,film,pos\n"
    data = tokenize(content, text_columns=["text", "other"], max_length=3)
    assert all_ids(data) == [[2, 2, 4]]


@pytest.mark.parametrize("row", [0, ROWS_PER_BATCH + 3])
def test_a_token_that_the_base_model_does_not_know_accuses_the_tokenizer(tokenize: Tokenize, row: int) -> None:
    texts = ["good"] * (ROWS_PER_BATCH + 10)
    texts[row] = "bad film bad"
    table = pa.table({"text": texts, "label": [0] * len(texts)})
    assert tokenize(table, vocab_size=5).facts == tokenize(table, vocab_size=None).facts
    with pytest.raises(DataError) as caught:
        tokenize(table, vocab_size=4)
    assert "The tokenizer gives the token id 4, but the base model knows only 4 ids" in str(caught.value)
    assert "belongs to another model" in str(caught.value)


def test_the_shipped_base_knows_the_shipped_tokenizers_tokens(tokenize: Tokenize) -> None:
    from transformers import AutoConfig

    size = AutoConfig.from_pretrained(demo.BASE_MODEL).vocab_size
    content = demo.TEST_DATA.read_bytes()
    names = list("0123456789")
    assert len(tokenize(content, tokenizer=DIGITS, label_names=names, vocab_size=size)) > 500


@pytest.mark.parametrize("columns", [["text"], ["text", "other"]])
@pytest.mark.parametrize("max_length", [1, 2, 3])
def test_no_text_is_longer_than_the_limit_however_low_it_is(
    tokenize: Tokenize, columns: list[str], max_length: int
) -> None:
    content = "text,other,label\ngood good good,film film film,pos\n"
    tokenizer = word_tokenizer(begin=True)
    try:
        data = tokenize(content, tokenizer=tokenizer, text_columns=columns, max_length=max_length)
    except DataError as error:
        assert "--max-length" in str(error)
    else:
        assert data.lengths.max() <= max_length


def test_strict_names_the_row_that_is_too_long(tokenize: Tokenize) -> None:
    content = "text,label\ngood film,pos\nbad,neg\nfilm good bad,pos\n"
    words = r"test\.csv, row 2 \(counted from 0\): the text has 3 tokens, more than --max-length 2\. Raise it, or allow"
    with pytest.raises(DataError, match=words):
        tokenize(content, max_length=2, strict=True)
    assert tokenize(content, max_length=3, strict=True).facts.truncated == 0


def test_the_facts_describe_the_dataset(tokenize: Tokenize, tmp_path: Path) -> None:
    facts = tokenize("text,label\ngood film,pos\nbad,neg\n").facts.to_json()
    assert facts.pop("digest") and facts.pop("text_digest") and facts.pop("tokenizer_digest")
    assert [*facts.pop("column_digests")] == ["text"]
    assert facts == {
        "source": str(tmp_path / "test.csv"),
        "is_path": True,
        "examples": 2,
        "truncated": 0,
        "longest": 2,
        "multiline": 0,
        "blank": 0,
        "unknown": 0,
        "with_begin": 0,
        "max_length": 100,
        "selection": None,
        "normalized_labels": 0,
        "shards": None,
    }


def test_several_files_give_what_one_file_gives(tokenize: Tokenize, tmp_path: Path) -> None:
    rows = [(f"{['good', 'bad', 'film'][row % 3]} film", ["neg", "pos"][row % 2]) for row in range(50)]
    whole = tokenize("text,label\n" + "".join(f"{text},{label}\n" for text, label in rows))
    folder = tmp_path / "parts"
    folder.mkdir()
    counts = {"part-1.csv": 20, "part-2.csv": 0, "part-10.csv.gz": 30}
    start = 0
    for name, count in counts.items():
        content = "text,label\n" + "".join(f"{text},{label}\n" for text, label in rows[start : start + count])
        (folder / name).write_bytes(gzip.compress(content.encode()) if name.endswith("gz") else content.encode())
        start += count
    (tmp_path / "other").mkdir()
    parts = tokenized(str(folder), tmp_path / "other")

    assert all_ids(parts) == all_ids(whole)
    assert parts.labels.tolist() == whole.labels.tolist()
    of_files = {"source": whole.source, "shards": None, "digest": whole.facts.digest}  # which depends on the batches
    assert parts.facts.model_copy(update=of_files) == whole.facts
    assert whole.facts.shards is None
    assert parts.facts.shards is not None
    assert {shard.file: shard.rows for shard in parts.facts.shards} == counts
    assert parts.file_digests() == {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in counts}
    assert parts.where(0) == "part-1.csv, row 0 (counted from 0)"
    assert parts.where(20) == "part-10.csv.gz, row 0 (counted from 0)"
    assert whole.where(20) == f"{whole.source}, row 20 (counted from 0)"


def test_rows_with_a_text_of_several_lines_are_counted(tokenize: Tokenize) -> None:
    content = 'text,label\n"good\nfilm",pos\nbad,neg\n"odd\ngood\nfilm",pos\n'
    data = tokenize(content)
    assert data.facts.multiline == 2
    assert all_ids(data) == [[2, 4], [3], [0, 2, 4]]


def test_a_pair_of_texts_with_several_lines_is_one_row(tokenize: Tokenize) -> None:
    content = (
        'text,other,label\n"good\nfilm","bad\nfilm",pos\ngood,"bad\nfilm",neg\n"good\nbad",film,neg\ngood,bad,pos\n'
    )
    assert tokenize(content, text_columns=["text", "other"]).facts.multiline == 3


def test_rows_with_several_lines_are_counted_over_all_chunks(tokenize: Tokenize) -> None:
    texts = ["good\nfilm" if row % 5 == 0 else "bad" for row in range(2 * ROWS_PER_BATCH)]
    data = tokenize(pa.table({"text": texts, "label": [0] * len(texts)}))
    assert data.facts.multiline == len(range(0, 2 * ROWS_PER_BATCH, 5))


def test_texts_without_words_are_counted(tokenize: Tokenize) -> None:
    texts = ["good film", "", "zzz", "good zzz", "   ", "zzz zzz", "<s>"]
    facts = tokenize([(text, 1) for text in texts], tokenizer=word_tokenizer(begin=True)).facts
    assert (facts.blank, facts.unknown) == (3, 2)


def test_the_digest_of_a_tokenizer_does_not_depend_on_its_last_call(tokenize: Tokenize) -> None:
    words = word_tokenizer()
    before = tokenize([("good film", 1)], tokenizer=words).facts.tokenizer_digest
    assert tokenize([("good film good film", 1)], tokenizer=words, max_length=2).facts.tokenizer_digest == before
    assert tokenize([("good film", 1)], tokenizer=words).facts.tokenizer_digest == before
    assert tokenize([("good film", 1)], tokenizer=DIGITS).facts.tokenizer_digest != before


def test_equal_examples_and_only_they_have_equal_digests(tokenize: Tokenize) -> None:
    original = "text,label\ngood film,pos\nbad,neg\n"
    others = {
        "original": original,
        "text": original.replace("bad", "good"),
        "label": original.replace("neg", "pos"),
        "order": "text,label\nbad,neg\ngood film,pos\n",
        "border": "text,label\ngood,pos\nfilm bad,neg\n",
    }
    digests = {name: tokenize(content).facts.digest for name, content in others.items()}
    assert len(set(digests.values())) == len(others)
    assert tokenize([("good film", 1), ("bad", 0)]).facts.digest == digests["original"]


@pytest.mark.parametrize(("labels", "classes"), [("names", [2, 0, 0]), ("numbers", [1, 2, 2])])
def test_the_labels_option_is_obeyed(tokenize: Tokenize, labels: str, classes: list[int]) -> None:
    content = "text,label\ngood,1\nbad,2\nfilm,2\n"
    assert tokenize(content, label_names=["2", "0", "1"], labels=labels).labels.tolist() == classes


@pytest.mark.parametrize("name", ["text", "label"])
@pytest.mark.parametrize("row", [0, ROWS_PER_BATCH + 2])
def test_a_null_names_row_and_column(tokenize: Tokenize, name: str, row: int) -> None:
    columns = {"text": ["good"] * (row + 2), "label": ["pos"] * (row + 2)}
    columns[name][row] = None  # type: ignore[call-overload]
    with pytest.raises(DataError, match=rf"row {row} \(counted from 0\): the {name} in column '{name}' is missing"):
        tokenize(pa.table(columns))


@pytest.mark.parametrize("texts", [[1, 2], [[1], [2]], [True, False], [b"good", b"bad"], [{"en": "a"}, {"en": "b"}]])
def test_texts_that_are_no_text_name_the_column_and_its_type(tokenize: Tokenize, texts: list[Any]) -> None:
    table = pa.table({"text": texts, "label": [0, 1]})
    kind = str(table.schema.field("text").type).partition("<")[0]
    words = rf"test\.parquet: column 'text' holds {kind}.*, not text\. Convert it, or name another column\."
    with pytest.raises(DataError, match=words):
        tokenize(table)


@pytest.mark.parametrize("text", ["", "   "])
def test_a_text_without_tokens_names_the_row(tokenize: Tokenize, text: str) -> None:
    with pytest.raises(DataError, match=r"row 1 \(counted from 0\): the text is empty"):
        tokenize(f"text,label\ngood,pos\n{text},neg\n")


def test_an_empty_text_is_evaluated_if_the_tokenizer_adds_a_token(tokenize: Tokenize) -> None:
    data = tokenize("text,label\n1,pos\n,neg\n", tokenizer=DIGITS)
    assert all_ids(data)[1] == [BEGIN]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("test.csv", "text,label\n"),
        ("test.csv", "text,label\r\n"),
        ("test.json", "[]"),
        ("test.parquet", pa.table({"text": pa.array([], pa.string()), "label": pa.array([], pa.int64())})),
    ],
    ids=["CSV", "Windows line end", "JSON", "Parquet"],
)
def test_no_rows_are_an_error(tokenize: Tokenize, name: str, content: str | pa.Table) -> None:
    with pytest.raises(DataError, match=rf"{name} has no rows: there is nothing to evaluate"):
        tokenize(content, name)


def test_a_header_without_even_a_line_end_is_an_error_that_names_the_file(tokenize: Tokenize) -> None:
    with pytest.raises(DataError, match=r"test\.csv.*(no rows|Empty)"):
        tokenize("text,label")


@pytest.mark.parametrize("line", ['{"text": "café", "label": "pos"}', '{"text": "tea", "label": "café"}'])
def test_json_lines_that_are_not_utf8_are_an_error_that_names_the_file(tokenize: Tokenize, line: str) -> None:
    with pytest.raises(DataError, match=r"test\.jsonl"):
        tokenize(line.encode("latin-1"), "test.jsonl")


def test_a_huge_text_is_truncated_like_any_other(tokenize: Tokenize) -> None:
    data = tokenize(f"text,label\ngood,pos\n{'film ' * 10 + 'x' * 500_000},neg\nbad,pos\n", max_length=10)
    assert data.lengths.tolist() == [1, 10, 1]
    assert (data.facts.longest, data.facts.truncated) == (11, 1)


def mapped_bytes(file: Path) -> int:
    """Returns how much of a file is mapped and resident in this process."""
    entries = Path("/proc/self/smaps").read_text().splitlines()
    starts = [number for number, line in enumerate(entries) if line.endswith(str(file))]
    resident = [next(line for line in entries[start:] if line.startswith("Rss:")) for start in starts]
    return sum(int(line.split()[1]) * 1024 for line in resident)


def test_a_rank_that_reads_all_rows_does_not_come_to_hold_the_file(
    tokenize: Tokenize, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dist_eval.data.token_file._ROWS_KEPT_MAPPED", 16)  # of a small file
    data = tokenize([("good bad film " * (row % 100 + 1), "pos") for row in range(8000)], max_length=400)
    file = tmp_path / "tokens" / "tokens.arrow"
    assert file.stat().st_size > 4_000_000
    order = np.random.default_rng(0).permutation(len(data))
    for rows in np.array_split(order, 400):
        input_ids, lengths = data.padded(rows)
        assert input_ids[0, : lengths[0]].tolist() == [2, 3, 4] * (int(rows[0]) % 100 + 1)
    assert mapped_bytes(file) < file.stat().st_size / 2


@pytest.mark.parametrize("kind", ["csv", "jsonl", "json", "parquet", "folder"])
def test_further_columns_are_kept_and_change_no_digest(kind: str, tmp_path: Path) -> None:
    rows = [
        {"text": f"1{row}", "label": row % 2, "source": "web" if row % 3 else "2024-05-01", "score": row / 4}
        for row in range(3000)
    ]
    path, table = tmp_path / f"test.{kind}", pa.Table.from_pylist(rows)
    if kind == "csv":
        csv.write_csv(table, path)
    elif kind == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif kind == "json":
        path.write_text(json.dumps(rows))
    elif kind == "parquet":
        parquet.write_table(table, path)
    else:
        path = tmp_path / "folder"
        datasets.Dataset.from_list(rows).save_to_disk(path)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    plain, kept = (
        tokenized(str(path), tmp_path / name, extra_columns=extra_columns)
        for name, extra_columns in (("a", []), ("b", ["score", "source", "label", "score"]))
    )
    assert plain.facts == kept.facts
    assert kept.column("source").to_pylist() == [row["source"] for row in rows]
    assert [float(value) for value in kept.column("score").to_pylist()] == [row["score"] for row in rows]
    assert kept.column("label").to_pylist() == [str(row["label"]) for row in rows]
