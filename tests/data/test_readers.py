"""Files and folders of all kinds give the rows that were written, or an error that names the culprit."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from dist_eval.data.formats import translating_errors
from dist_eval.data.in_memory import write_parquet
from dist_eval.data.readers import ROWS_PER_BATCH, open_rows
from dist_eval.errors import DataError

Rows = list[tuple[str, str]]
COLUMNS = ("text", "label")
BOM = b"\xef\xbb\xbf"
READ_BLOCK = 1 << 20


def delimited(delimiter: str, **dialect: Any) -> Callable[[Rows], bytes]:
    def write(rows: Rows) -> bytes:
        file = io.StringIO(newline="")
        writer = csv.writer(file, delimiter=delimiter, **dialect)
        writer.writerows([COLUMNS, *rows])
        return file.getvalue().encode()

    return write


def json_lines(rows: Rows) -> bytes:
    return "".join(json.dumps(dict(zip(COLUMNS, row, strict=True))) + "\n" for row in rows).encode()


def json_lines_unescaped(rows: Rows) -> bytes:
    lines = (json.dumps(dict(zip(COLUMNS, row, strict=True)), ensure_ascii=False) for row in rows)
    return "\n".join(lines).encode()


def json_array(rows: Rows) -> bytes:
    return json.dumps([dict(zip(COLUMNS, row, strict=True)) for row in rows], indent=1).encode()


def parquet_file(rows: Rows) -> bytes:
    sink = pa.BufferOutputStream()
    parquet.write_table(pa.table([[r[0] for r in rows], [r[1] for r in rows]], names=COLUMNS), sink, row_group_size=7)
    return sink.getvalue().to_pybytes()


FORMATS: dict[str, Callable[[Rows], bytes]] = {
    "rows.csv": delimited(",", lineterminator="\n", quoting=csv.QUOTE_ALL),
    "sparsely_quoted.csv": delimited(",", lineterminator="\r\n"),
    "rows.tsv": delimited("\t"),
    "rows.csv.gz": lambda rows: gzip.compress(delimited(",")(rows)),
    "rows.jsonl": json_lines,
    "unescaped.ndjson": json_lines_unescaped,
    "rows.jsonl.gz": lambda rows: gzip.compress(json_lines(rows)),
    "rows.json": json_array,
    "lines.json": json_lines,
    "rows.parquet": parquet_file,
}
TEXT_FORMATS = [name for name in FORMATS if not name.endswith(("parquet", "gz"))]
all_formats = pytest.mark.parametrize("name", FORMATS)

AWKWARD = ["NA", "null", "None", "nan", "007", "1e5", "-0", "true", "", " ", "\t", '"', '""', "'", ",", "a,b", "a\nb"]
AWKWARD += ["a\r\nb", "\r", '"quoted, with comma"', "\\", "\\n", "\x00", "\ufeff", "\u2028", "\x85", "😀", "#", "é"]


def write(folder: Path, name: str, content: bytes | str) -> str:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return str(path)


def is_plain_text(name: str) -> bool:
    return "csv" in name or "tsv" in name


def read(dataset: str, columns: tuple[str, ...] = COLUMNS, **options: Any) -> list[tuple[Any, ...]]:
    batches = open_rows(dataset, list(columns), **options).batches
    return [tuple(row.values()) for batch in batches for row in batch.to_pylist()]


def error_of(dataset: str, columns: tuple[str, ...] = COLUMNS, **options: Any) -> str:
    with pytest.raises(DataError) as caught:
        read(dataset, columns, **options)
    return str(caught.value)


texts = st.text(max_size=20) | st.sampled_from(AWKWARD)
any_rows = st.lists(st.tuples(texts, texts), min_size=1, max_size=8)


@all_formats
@settings(max_examples=40)
@given(rows=any_rows)
@example(rows=[(text, "a") for text in AWKWARD])
@example(rows=[("a", text) for text in AWKWARD])
@example(rows=[("a", "0"), ("several\tcolumns\nand lines", "1")])
@example(rows=[("a", "0"), ("b", "\n\t")])
def test_any_text_comes_back_as_it_was_written(name: str, rows: Rows, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = write(tmp_path_factory.mktemp("rows"), name, FORMATS[name](rows))
    cells = [cell for row in rows for cell in row]
    if name == "rows.tsv" and any("\n" in cell and "\t" in cell for cell in cells):
        assert "An unbalanced quote may have merged rows." in error_of(path)
    elif is_plain_text(name) and any("\0" in cell for cell in cells):
        assert "contains a NUL byte. Is the file damaged" in error_of(path)
    else:
        assert read(path) == rows


@all_formats
def test_a_column_of_nothing_but_such_texts_stays_text(name: str, tmp_path: Path) -> None:
    for text in (*AWKWARD, "2020-01-31", "2020-01-31 12:00:00", "12:30"):
        rows = [(text, "a"), (text, "b")]
        path = write(tmp_path, name, FORMATS[name](rows))
        if is_plain_text(name) and text == "\0":
            assert "line 2: contains a NUL byte" in error_of(path)
        else:
            assert read(path) == rows


@all_formats
def test_more_rows_than_a_block_keep_their_order(name: str, tmp_path: Path) -> None:
    rows = [(f"{number:700} " + "é" * 350, "ab"[number % 2]) for number in range(3 * ROWS_PER_BATCH + 1)]
    content = FORMATS[name](rows)
    assert name not in TEXT_FORMATS or len(content) > 2 * READ_BLOCK
    assert read(write(tmp_path, name, content)) == rows


@pytest.mark.parametrize("name", TEXT_FORMATS)
@pytest.mark.parametrize("position", [0, 1])
def test_one_huge_cell_among_small_ones(name: str, position: int, tmp_path: Path) -> None:
    rows = [(f"{number:0200}", "a") for number in range(3000)] if position else [("after", "b")]
    rows.insert(position, ("a line\n" * 300_000, "huge"))
    assert read(write(tmp_path, name, FORMATS[name](rows))) == rows


@pytest.mark.parametrize("name", TEXT_FORMATS)
def test_a_byte_order_mark_is_no_part_of_the_first_column(name: str, tmp_path: Path) -> None:
    rows = [("a", "0"), ("b", "1")]
    assert read(write(tmp_path, name, BOM + FORMATS[name](rows))) == rows


@pytest.mark.parametrize("name", ["ROWS.CSV", "rows.v2.csv", "my rows.csv"])
def test_a_file_is_known_by_its_last_suffix_in_any_case(name: str, tmp_path: Path) -> None:
    assert read(write(tmp_path, name, "text,label\na,0\n")) == [("a", "0")]


@all_formats
def test_columns_come_in_the_order_asked_for_and_others_stay_away(name: str, tmp_path: Path) -> None:
    path = write(tmp_path, name, FORMATS[name]([("a", "0"), ("b", "1")]))
    assert read(path, ("label", "text")) == [("0", "a"), ("1", "b")]
    assert read(path, ("label",)) == [("0",), ("1",)]


def test_batches_stay_small(tmp_path: Path) -> None:
    path = write(tmp_path, "a.parquet", parquet_file([("a", "0")] * (2 * ROWS_PER_BATCH)))
    assert max(batch.num_rows for batch in open_rows(path, COLUMNS).batches) <= ROWS_PER_BATCH


@all_formats
def test_a_missing_column_is_named_beside_those_that_exist(name: str, tmp_path: Path) -> None:
    path = write(tmp_path, name, FORMATS[name]([("a", "0")]))
    assert error_of(path, ("sentence", "label")) == f"{path} has no column 'sentence'. It has: text, label."


TEXTS = pa.array(["a", "a", None, "b" * 20])
VIEWS = pa.DictionaryArray.from_arrays([0, 0, None, 1], TEXTS.take([0, 3]).cast(pa.string_view()))
LISTS = pa.array([["a"], ["b", None], [], None])
OBJECTS = pa.array([{"text": ["a", "b"]}, {"text": []}, None])
ENCODINGS = [
    *((TEXTS, TEXTS.cast(kind)) for kind in (pa.string(), pa.large_string(), pa.string_view(), pa.json_())),
    (TEXTS, TEXTS.dictionary_encode()),
    (TEXTS, TEXTS.cast(pa.large_string()).dictionary_encode()),
    (TEXTS, VIEWS),
    *((TEXTS.cast(pa.binary()), TEXTS.cast(kind)) for kind in (pa.large_binary(), pa.binary_view())),
    *((LISTS, LISTS.cast(kind(pa.large_string()))) for kind in (pa.list_, pa.large_list)),
    *((LISTS, pa.array(LISTS.to_pylist(), kind(pa.string_view()))) for kind in (pa.list_view, pa.large_list_view)),
    (LISTS, LISTS.cast(pa.list_(pa.dictionary(pa.int32(), pa.string())))),
    (LISTS.take([0, 0]), LISTS.take([0, 0]).cast(pa.list_(pa.string(), 1))),
    (OBJECTS, OBJECTS.cast(pa.struct([("text", pa.large_list(pa.string_view()))]))),
    *((column, column) for column in (pa.array([1, 2]), pa.array([0.5]), pa.array([True, None]), pa.nulls(2))),
]


@pytest.mark.parametrize(("expected", "column"), ENCODINGS, ids=[str(column.type) for _, column in ENCODINGS])
def test_a_column_is_of_a_plain_type_however_it_is_encoded(expected: pa.Array, column: pa.Array) -> None:
    (batch,) = translating_errors("x", iter([pa.record_batch([column], names=["text"])]))
    assert batch.column(0).type == expected.type
    assert batch.column(0).to_pylist() == expected.to_pylist()


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view()], ids=str)
def test_text_in_parquet_that_is_not_utf8_is_named_however_it_is_encoded(kind: pa.DataType, tmp_path: Path) -> None:
    views = {pa.string(): pa.binary(), pa.large_string(): pa.large_binary(), pa.string_view(): pa.binary_view()}
    column = pa.array([b"a", b"caf\xe9"], views[kind])
    column = pa.Array.from_buffers(kind, len(column), column.buffers())
    parquet.write_table(pa.table({"text": column, "label": ["0", "1"]}), tmp_path / "a.parquet")
    message = error_of(str(tmp_path / "a.parquet"))
    assert "a.parquet, row 1 (counted from 0): column 'text' contains text that is not UTF-8." in message


def test_parquet_files_of_several_writers_are_one_dataset(tmp_path: Path) -> None:
    connection = duckdb.connect()
    connection.execute("SET produce_arrow_string_view=true; SET arrow_output_version='1.5'")
    relation = connection.sql("SELECT 'x' AS text, 'neg'::enum('neg', 'pos') AS label")
    relation.to_parquet(str(tmp_path / "a.parquet"))
    table = relation.to_arrow_table()
    assert table.schema.types == [pa.string_view(), pa.dictionary(pa.uint8(), pa.string())]
    parquet.write_table(table, tmp_path / "b.parquet")
    assert read(str(tmp_path)) == [("x", "neg")] * 2


def test_a_doubled_column_is_named(tmp_path: Path) -> None:
    table = pa.table([["a"], ["b"], ["0"]], names=["text", "text", "label"])
    parquet.write_table(table, tmp_path / "a.parquet")
    assert "a.parquet has the column 'text' more than once" in error_of(str(tmp_path / "a.parquet"))
    path = write(tmp_path, "a.csv", "text,label,text\na,0,b\n")
    assert error_of(path) == f"{path} has the column 'text' more than once."
    message = error_of(write(tmp_path, "a.jsonl", '{"text": "a", "text": "b", "label": "0"}\n'))
    assert "a.jsonl, row 0 (counted from 0): is not valid JSON: an object has 'text' more than once" in message


@pytest.mark.parametrize("name", ["test.csv", "./test", "/data/test", "a/b/c", "data/test.parquet"])
def test_a_missing_file_is_named_and_not_looked_for_on_the_hub(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert error_of(name) == f"There is no file {name}."


@pytest.mark.parametrize("options", [{"split": "test"}, {"subset": "sst2"}])
def test_a_file_has_no_splits(options: dict[str, str], tmp_path: Path) -> None:
    path = write(tmp_path, "test.csv", "text,label\na,0\n")
    assert error_of(path, **options).endswith("leave out --subset and --split.")


LATIN = {
    "start.csv": "text,label\ncafé,0\n",
    "later.csv": "text,label\n" + "tea,0\n" * 3000 + "café,0\n",
    "header.csv": "text,label,prénom\ntea,0,x\n",
    "rows.json": '[{"text": "café", "label": "0"}]',
}


@pytest.mark.parametrize("name", LATIN)
def test_text_that_is_not_utf8_is_an_error_that_names_the_file(name: str, tmp_path: Path) -> None:
    message = error_of(write(tmp_path, name, LATIN[name].encode("latin-1")))
    assert name in message
    assert "utf8" in message.lower().replace("-", "")


def test_a_header_with_an_open_quote_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    assert "a.csv" in error_of(write(tmp_path, "a.csv", 'text,"label\n' + "a,0\n" * 50_000))


ODD_QUOTES = {
    "in the text": ['"odd\t0', 'even"\t1'],
    "in the label": ['odd\t"0', 'even\t"'],
    "many rows apart": ['"odd\t0', *["b\t1"] * 100, 'even"\t1'],
}


@pytest.mark.parametrize("lines", ODD_QUOTES.values(), ids=ODD_QUOTES)
@pytest.mark.parametrize("before", [0, 3, 3 * ROWS_PER_BATCH])
@pytest.mark.parametrize("suffix", [".tsv", ".tsv.gz"])
def test_an_odd_quote_in_a_tsv_file_swallows_no_rows(
    lines: list[str], before: int, suffix: str, tmp_path: Path
) -> None:
    content = "\n".join(["text\tlabel", *["a\t0"] * before, *lines, "c\t1", ""]).encode()
    path = write(tmp_path, "a" + suffix, gzip.compress(content) if suffix.endswith("gz") else content)
    message = error_of(path)
    assert message.startswith(f"{path}, row {before} (counted from 0): ")
    assert "An unbalanced quote may have merged rows." in message
    assert "convert the file to JSONL" in message


def test_an_odd_quote_far_down_in_a_tsv_file_is_found(tmp_path: Path) -> None:
    lines = ["text\tlabel", *[f"{number:0100}\t0" for number in range(500)], '"odd\t0', 'even"\t1', ""]
    assert "row 500 (counted from 0): a quoted text" in error_of(write(tmp_path, "a.tsv", "\n".join(lines)))


def test_an_odd_quote_in_a_column_that_nobody_asked_for_swallows_no_rows(tmp_path: Path) -> None:
    path = write(tmp_path, "a.tsv", 'note\ttext\tlabel\n"odd\ta\t0\neven"\tb\t1\nx\tc\t0\n')
    assert "An unbalanced quote may have merged rows." in error_of(path)


def test_quotes_that_swallow_nothing_are_no_reason_to_refuse_a_tsv_file(tmp_path: Path) -> None:
    lines = ["text\tlabel", '"a\tb"\t0', '"two\nlines"\t1', '"say ""no"""\t0', 'say "no"\t1', ""]
    expected = [("a\tb", "0"), ("two\nlines", "1"), ('say "no"', "0"), ('say "no"', "1")]
    assert read(write(tmp_path, "a.tsv", "\n".join(lines))) == expected


@pytest.mark.parametrize("delimiter", [",", "\t"])
@pytest.mark.parametrize("field", ['"12/3" g', '"a" and "b"', '"a \\"good\\" film"', '"a,\t""b"" c" d'])
@pytest.mark.parametrize("before", [0, 300])
def test_quotes_that_would_be_lost_are_named_by_their_line(
    delimiter: str, field: str, before: int, tmp_path: Path
) -> None:
    rows = ["text,label", *['"a, ""b"",\tc",""'] * before]
    content = "\r\n".join([row.replace(",", delimiter) for row in rows] + [field + delimiter + "0", ""])
    message = error_of(write(tmp_path, "a.csv" if delimiter == "," else "a.tsv", content))
    assert f", line {before + 2}: a field begins with a quote and continues after the next one, so both" in message


@pytest.mark.parametrize("delimiter", [",", "\t"])
@pytest.mark.parametrize("end", ["", '""', "\r\n", '\r\n0,"",b', "\n0,b\n1,c"])
@pytest.mark.parametrize("before", [0, 300])
def test_a_quote_that_is_never_closed_is_named_by_its_line(
    delimiter: str, end: str, before: int, tmp_path: Path
) -> None:
    content = "label,text\n" + '0,"a, ""b"""\n' * before + '1,"open' + end
    path = write(tmp_path, "a.csv" if delimiter == "," else "a.tsv", content.replace(",", delimiter))
    assert f", line {before + 2}: a field begins with a quote that is never closed" in error_of(path)


LONG = "x" * 40_000
TOO_LARGE = {
    "the header.csv": LONG,
    "a row.csv": f"text,label\na,0\n{LONG},1\n",
    "a quoted row.csv": 'text,label\na,0\n"' + "x\n" * 20_000 + '",1\n',
    "a row.tsv": f"text\tlabel\na\t0\n{LONG}\t1\n",
    "the first row.jsonl": json.dumps({"text": LONG, "label": "0"}),
    "a later row.jsonl": json_lines([("a", "0"), (LONG, "1")]).decode(),
}


@pytest.mark.parametrize("name", TOO_LARGE)
@pytest.mark.parametrize("suffix", ["", ".gz", ".bz2"])
def test_a_row_that_is_too_large_is_refused(
    name: str, suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dist_eval.data.text_files.LARGEST_ROW_BYTES", 1 << 14)
    monkeypatch.setattr("dist_eval.data.text_files._CHUNK_BYTES", 1 << 10)
    compress = {"": bytes, ".gz": gzip.compress, ".bz2": bz2.compress}[suffix]
    message = error_of(write(tmp_path, name + suffix, compress(TOO_LARGE[name].encode())))
    assert re.search(r": a (row|line) exceeds 0 MiB. Is a line break or a quote missing\?$", message)


DEEP = {
    "the first row.jsonl": '{"text": "a", "label": %s}',
    "a later row.jsonl": '{"text": "a", "label": "0"}\n{"text": "a", "label": "0", "x": %s}',
    "an array.json": '[{"text": "a", "label": %s}]',
}


@pytest.mark.parametrize("name", DEEP)
@pytest.mark.parametrize("brackets", ["[]", "{}", ("[\n", "]\n")], ids=["lists", "objects", "lists over many lines"])
def test_json_that_is_nested_deeply_is_refused_and_ends_no_process(
    name: str, brackets: Sequence[str], tmp_path: Path
) -> None:
    opening, closing = (bracket.replace("{", '{"a":') for bracket in brackets)
    value = opening * 100_000 + "1" + closing * 100_000
    message = error_of(write(tmp_path, name, DEEP[name] % value))
    assert "nested over 200 levels deep" in message or "is not valid JSON: " in message


def test_many_blanks_before_json_are_no_end(tmp_path: Path) -> None:
    assert read(write(tmp_path, "a.jsonl", b"\n" * 9000 + json_lines([("a", "0")]))) == [("a", "0")]


@pytest.mark.parametrize("name", ["rows.parquet", "rows.csv.gz", "rows.jsonl.gz"])
@pytest.mark.parametrize("kept", [0.3, 0.9])
def test_a_truncated_file_is_named(name: str, kept: float, tmp_path: Path) -> None:
    content = FORMATS[name]([(f"text {number}", "a") for number in range(5000)])
    path = write(tmp_path, name, content[: int(kept * len(content))])
    assert error_of(path).startswith(f"{path} cannot be read: ")


@pytest.mark.parametrize("name", ["a.json", "a.jsonl"])
@pytest.mark.parametrize("labels", [(0, "x"), ("x", 0), (True, 1), ("x", {"y": 1})])
def test_a_json_column_of_mixed_types_is_named(name: str, labels: tuple[Any, Any], tmp_path: Path) -> None:
    rows: list[Any] = [{"text": "a", "label": label} for label in labels]
    lines = json.dumps(rows) if name == "a.json" else "\n".join(map(json.dumps, rows))
    message = error_of(write(tmp_path, name, lines))
    assert f"{name}, row 1 (counted from 0): column 'label' cannot be read (" in message


CHANGES: dict[str, tuple[Any, Any, Any]] = {
    "integers, then a float": (1, 0.5, 1.0),
    "nothing, then text": (None, "2020-01-31", None),
    "empty lists, then names": ([], ["a"], []),
    "lists of integers, then of floats": ([1], [0.5], [1.0]),
    "small integers, then a large one": (1, 2**64 - 1, 1),
    "integers, then one of 31 digits": (1, 10**30, "1"),
    "large integers, then a float": (2**60 + 1, 0.5, str(2**60 + 1)),
}


@pytest.mark.parametrize("name", ["a.json", "a.jsonl", "in memory.parquet"])
@pytest.mark.parametrize(("first", "last", "first_read"), CHANGES.values(), ids=CHANGES)
def test_a_column_may_change_late(name: str, first: Any, last: Any, first_read: Any, tmp_path: Path) -> None:
    count = 3 * ROWS_PER_BATCH
    rows = [{"text": "x" * 400, "label": label} for label in [*[first] * count, last]]
    if name == "in memory.parquet":
        write_parquet(rows, tmp_path / name)
    else:
        write(tmp_path, name, json.dumps(rows) if name == "a.json" else "\n".join(map(json.dumps, rows)))
    found = [label for _, label in read(str(tmp_path / name))]
    assert found[:-1] == [first_read] * count
    assert found[-1] in (last, str(last))


@pytest.mark.parametrize("name", ["a.json", "a.jsonl"])
def test_a_column_may_be_absent_in_the_first_rows(name: str, tmp_path: Path) -> None:
    rows = [{"text": "x" * 400}] * 3 * ROWS_PER_BATCH + [{"label": "pos", "text": "y"}]
    path = write(tmp_path, name, json.dumps(rows) if name == "a.json" else "\n".join(map(json.dumps, rows)))
    assert read(path)[-2:] == [("x" * 400, None), ("y", "pos")]
    assert "has no column 'x'. It has: text, label." in error_of(path, ("x",))


def test_columns_that_nobody_asked_for_may_change(tmp_path: Path) -> None:
    lines = [{"text": "a", "label": "0", "x": 1}, {"text": "b", "label": "1", "x": "1", "text ": [None]}]
    assert read(write(tmp_path, "a.jsonl", "\n".join(map(json.dumps, lines)))) == [("a", "0"), ("b", "1")]


@pytest.mark.parametrize("indent", [None, 2])
def test_objects_may_go_over_lines_or_share_one(indent: int | None, tmp_path: Path) -> None:
    rows = [{"text": text, "label": [{}, "}"]} for text in ("a", "b{", 'c"[')]
    text = " ".join(json.dumps(row, indent=indent) for row in rows)
    assert [text for (text,) in read(write(tmp_path, "a.jsonl", text), ("text",))] == ["a", "b{", 'c"[']


def test_lists_of_nothing_in_one_file_go_with_lists_in_another(tmp_path: Path) -> None:
    write(tmp_path, "a.jsonl", '{"text": "a", "label": []}\n')
    write(tmp_path, "b.jsonl", '{"text": "b", "label": ["x"]}\n')
    assert read(str(tmp_path)) == [("a", []), ("b", ["x"])]


@pytest.mark.parametrize(("first", "last"), [(0, "x"), ("x", 0)])
def test_a_column_of_json_lines_that_changes_its_type_far_down_is_an_error(
    first: Any, last: Any, tmp_path: Path
) -> None:
    lines = [json.dumps({"text": "a", "label": label}) for label in [first] * (ROWS_PER_BATCH + 9) + [last]]
    assert f"row {ROWS_PER_BATCH + 9} (counted from 0): column 'label'" in error_of(
        write(tmp_path, "a.jsonl", "\n".join(lines))
    )


def test_a_number_that_no_float_can_hold_is_an_error(tmp_path: Path) -> None:
    for name, content in (("a.jsonl", '{"text": 1e400, "label": 0}'), ("a.json", '[{"text": 1e400, "label": 0}]')):
        assert "1e400 is too large for a number" in error_of(write(tmp_path, name, content))


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl"])
def test_a_bad_row_far_down_is_not_called_by_a_wrong_number(name: str, tmp_path: Path) -> None:
    good, bad = {"a.csv": ("x" * 2000 + ",0\n", "a,b,c\n")}.get(
        name, (json.dumps({"text": "x" * 2000, "label": 0}) + "\n", '{"text": "a", "label": "x"}\n')
    )
    header = "text,label\n" if name == "a.csv" else ""
    message = error_of(write(tmp_path, name, header + 5000 * good + bad))
    assert name in message
    assert set(re.findall(r"[Rr]ow #?(\d+)", message)) <= {"5000", "5001", "5002"}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('[{"text": "\\ud800", "label": "0"}]', ", row 0 (counted from 0): column 'text' cannot be read ("),
        ('[{"text": "a", "label": "0"}', " is not valid JSON: "),
        ('[{"text": "a" "label": "0"}]', " is not valid JSON: "),
    ],
    ids=["half a surrogate pair", "no end", "no comma"],
)
def test_json_that_holds_no_readable_rows_is_an_error_that_names_the_file(
    content: str, words: str, tmp_path: Path
) -> None:
    path = write(tmp_path, "a.json", content)
    assert error_of(path).startswith(path + words)


def test_json_rows_are_objects(tmp_path: Path) -> None:
    message = error_of(write(tmp_path, "a.json", '[{"text": "a", "label": "0"}, ["b", "1"]]'))
    assert "a.json, row 1: must be an object with columns, not ['b', '1']" in message


ARRAY = json_array([("a", "0"), ("b", "1")] * 50)


def limit_arrays(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr("dist_eval.data.json_files._LARGEST_ARRAY_BYTES", size)


def test_a_json_array_that_would_not_fit_into_memory_is_refused_with_advice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path, "a.json", ARRAY)
    limit_arrays(monkeypatch, len(ARRAY))
    assert len(read(path)) == 100
    limit_arrays(monkeypatch, len(ARRAY) - 1)
    message = error_of(path)
    assert message.startswith(f"{path} is a JSON array of over 0 MiB, which can only be read whole.")
    assert "Convert it to JSONL" in message


@pytest.mark.parametrize("before", ["", "\n \t", "\ufeff", "\ufeff\n"])
def test_a_large_json_array_is_known_by_its_bracket(
    before: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit_arrays(monkeypatch, 100)
    assert "Convert it to JSONL" in error_of(write(tmp_path, "a.json", before.encode() + ARRAY))


def test_a_compressed_json_array_counts_as_large_as_it_is_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path, "a.json.gz", gzip.compress(ARRAY))
    limit_arrays(monkeypatch, len(ARRAY) - 1)
    assert "Convert it to JSONL" in error_of(path)


@pytest.mark.parametrize("name", ["lines.json", "rows.jsonl", "rows.csv", "rows.parquet"])
def test_what_is_read_piece_by_piece_may_be_large(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit_arrays(monkeypatch, 10)
    rows = [("a", "0"), ("b", "1")] * 50
    assert read(write(tmp_path, name, FORMATS[name](rows))) == rows


def test_a_json_value_that_is_missing_or_null_is_null(tmp_path: Path) -> None:
    rows = [{"text": "a", "label": "0"}, {"text": None, "label": "1"}, {"text": "c"}]
    expected = [("a", "0"), (None, "1"), ("c", None)]
    assert read(write(tmp_path, "a.json", json.dumps(rows))) == expected
    assert read(write(tmp_path, "a.jsonl", "\n".join(map(json.dumps, rows)))) == expected


def with_class_names() -> Any:
    import datasets

    features = datasets.Features(
        {"label": datasets.ClassLabel(names=["bad", "good"]), "text": datasets.Value("string")}
    )
    return datasets.Dataset.from_dict({"label": [1, 0, 1], "text": ["a", "b", "c"]}, features=features)


def saved_folder(folder: Path, *, splits: bool = False) -> str:
    import datasets

    rows = with_class_names()
    saved = datasets.DatasetDict({"train": rows, "test": rows.select([2])}) if splits else rows
    saved.save_to_disk(str(folder / "saved"))
    return str(folder / "saved")


def test_a_folder_saved_by_datasets_keeps_the_names_of_its_classes(tmp_path: Path) -> None:
    path = saved_folder(tmp_path)
    assert read(path) == [("a", 1), ("b", 0), ("c", 1)]
    assert open_rows(path, COLUMNS).class_names == ["bad", "good"]
    assert open_rows(path, ["label", "text"]).class_names is None


def test_a_parquet_file_written_by_datasets_keeps_the_names_of_its_classes(tmp_path: Path) -> None:
    path = str(tmp_path / "a.parquet")
    with_class_names().to_parquet(path)
    assert read(path) == [("a", 1), ("b", 0), ("c", 1)]
    assert open_rows(path, COLUMNS).class_names == ["bad", "good"]
    assert open_rows(path, ["label", "text"]).class_names is None


@pytest.mark.parametrize(
    "metadata",
    [
        {},
        {"huggingface": b"{"},
        {"huggingface": b"\xff\xfe"},
        {"huggingface": b"[]"},
        {"huggingface": b"null"},
        {"huggingface": b'{"info": {}}'},
        {"huggingface": b'{"info": {"features": null}}'},
        {"huggingface": b'{"info": {"features": {"label": null}}}'},
        {"huggingface": b'{"info": {"features": {"label": []}}}'},
        {"huggingface": b'{"info": {"features": {"label": {"names": null}}}}'},
        {"huggingface": b'{"info": {"features": {"label": {"dtype": "int64", "_type": "Value"}}}}'},
        {"huggingface": b'{"info": {"features": {"other": {"names": ["a", "b"], "_type": "ClassLabel"}}}}'},
        {"pandas": b'{"columns": []}'},
    ],
    ids=str,
)
def test_other_metadata_of_a_parquet_file_declare_no_names(metadata: dict[str, bytes], tmp_path: Path) -> None:
    table = pa.table({"text": ["a"], "label": [1]}).replace_schema_metadata(metadata)
    parquet.write_table(table, tmp_path / "a.parquet")
    rows = open_rows(str(tmp_path / "a.parquet"), COLUMNS)
    assert rows.class_names is None
    assert [batch.num_rows for batch in rows.batches] == [1]


def test_a_split_of_a_folder_is_chosen_by_name(tmp_path: Path) -> None:
    path = saved_folder(tmp_path, splits=True)
    assert read(path, split="test") == [("c", 1)]
    assert open_rows(path, COLUMNS, split="test").class_names == ["bad", "good"]
    assert error_of(path) == f"{path} has several splits: choose one of train, test with --split."
    assert error_of(path, split="tset") == f"{path} has no split 'tset': choose one of train, test with --split."


def test_a_folder_without_splits_takes_none(tmp_path: Path) -> None:
    path = saved_folder(tmp_path)
    assert error_of(path, split="test") == f"{path} is a single dataset without splits: leave out --split."


def test_a_folder_names_a_missing_column(tmp_path: Path) -> None:
    assert "has no column 'sentence'. It has: label, text." in error_of(saved_folder(tmp_path), ("sentence", "label"))


def test_a_row_of_several_files_is_found_in_its_own(tmp_path: Path) -> None:
    for name, rows in (("a.csv", 2), ("b.csv", 0), ("c.csv", 3)):
        write(tmp_path, name, "text,label\n" + "a,0\n" * rows)
    source = open_rows(str(tmp_path), COLUMNS)
    assert source.file == str(tmp_path)
    places = []
    for batch in source.batches:
        places.append(source.file)
        assert batch.num_rows in (2, 3)
    assert places == [str(tmp_path / "a.csv"), str(tmp_path / "c.csv")]
    assert source.where(1) == f"{tmp_path / 'a.csv'}, row 1 (counted from 0)"
    assert source.where(2) == f"{tmp_path / 'c.csv'}, row 0 (counted from 0)"


def test_a_saved_folder_among_files_is_named(tmp_path: Path) -> None:
    other = write(tmp_path, "a.csv", "text,label\na,0\n")
    path = saved_folder(tmp_path)
    with pytest.raises(DataError, match="was saved by datasets: give it alone, not among other files"):
        open_rows([path, other], COLUMNS)


@pytest.mark.parametrize("name", ["glue", "teknium/some-data", "teknium/OpenHermes-2.5"])
def test_a_hub_name_is_left_to_datasets_without_its_code(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import datasets

    asked: list[Any] = []

    def load_dataset(*arguments: Any, **options: Any) -> datasets.IterableDataset:
        asked.append((arguments, options))
        return datasets.Dataset.from_dict({"text": ["a"], "label": ["x"]}).to_iterable_dataset()

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets, "load_dataset", load_dataset)

    assert read(name, subset="sst2", split="test") == [("a", "x")]
    how = {"split": "test", "revision": None, "streaming": True, "trust_remote_code": False}
    assert asked == [((name, "sst2"), how)]


@pytest.mark.parametrize("kind", ["parquet", "csv", "jsonl"])
def test_a_hub_dataset_is_streamed_from_its_files(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder stands in for a repository on the hub: `datasets` resolves both to files in the same way."""
    import datasets

    (tmp_path / "repository").mkdir()
    rows = with_class_names()
    for number in range(2):
        part, path = (
            rows.select(range(2 * number, min(2 * number + 2, 3))),
            tmp_path / "repository" / f"{number}.{kind}",
        )
        getattr(part, {"parquet": "to_parquet", "csv": "to_csv", "jsonl": "to_json"}[kind])(path)
    load, asked = datasets.load_dataset, []

    def load_dataset(name: str, *arguments: Any, **options: Any) -> Any:
        asked.append(options["streaming"])
        return load(str(tmp_path / name), *arguments, **options)

    monkeypatch.chdir(tmp_path / "repository")
    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    assert read("repository", split="train") == [("a", 1), ("b", 0), ("c", 1)]
    assert open_rows("repository", COLUMNS, split="train").class_names == (
        ["bad", "good"] if kind == "parquet" else None
    )
    assert "repository has several splits: choose one of train with --split." in error_of("repository")
    assert "repository has no column 'x'. It has: label, text." in error_of("repository", ("x",), split="train")
    assert all(asked)


def test_what_breaks_off_while_the_hub_streams_is_an_error_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import datasets

    def rows() -> Any:
        yield {"text": "a", "label": "x"}
        raise ConnectionError("the hub went away\n(a long story)")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        datasets,
        "load_dataset",
        lambda *_, **__: datasets.IterableDataset.from_generator(
            rows, features=datasets.Features({"text": datasets.Value("string"), "label": datasets.Value("string")})
        ),
    )
    assert error_of("gleu") == "gleu cannot be read: the hub went away (a long story)"


def test_what_the_hub_does_not_know_is_an_error_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    def load_dataset(*_: Any, **__: Any) -> datasets.Dataset:
        raise ConnectionError("Couldn't reach the Hub\n(a long story)")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    message = error_of("gleu")
    assert message.startswith("gleu is neither a file, a folder nor a hub dataset")
    assert message.endswith("Couldn't reach the Hub (a long story)")
