"""Further kinds of awkward data: each is read rightly, or refused with one sentence."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import os
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from dist_eval.data.dataset import tokenize_dataset
from dist_eval.data.labelled_rows import LabelledRows, read_texts
from dist_eval.errors import DataError

ROWS = "text,label\ngood,pos\nbad,neg\n"
READ = "read: 'good' is pos, 'bad' is neg"
ALSO = "read: 'good' is pos, 'bad' is neg, 'good' is pos, 'bad' is neg"


def csv(*rows: str) -> str:
    return "".join(row + "\n" for row in ("text,label", *rows))


def lines(*rows: tuple[Any, Any]) -> str:
    return "".join(json.dumps({"text": text, "label": label}) + "\n" for text, label in rows)


def table(text: Any, label: Any) -> bytes:
    sink = pa.BufferOutputStream()
    parquet.write_table(pa.table({"text": text, "label": label}), sink)
    return sink.getvalue().to_pybytes()


def archive() -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as file:
        file.writestr("a.csv", ROWS)
    return content.getvalue()


def class_labels(*names: str) -> bytes:
    features = {"label": {"names": names, "_type": "ClassLabel"}}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    sink = pa.BufferOutputStream()
    parquet.write_table(pa.table({"text": ["good", "bad"], "label": [1, 0]}).replace_schema_metadata(metadata), sink)
    return sink.getvalue().to_pybytes()


@dataclass(frozen=True)
class Kind:
    """A kind of data.

    Attributes:
        name: describes it, and names the test.
        says: what was read, or a part of the message.
        files: content by name of the file; None for a folder, and a `Path` for a symbolic link.
        dataset: what is given as the dataset, in the folder of the files; by default the only file, or the folder.
        classes: names of the head's classes.
    """

    name: str
    says: str
    files: Mapping[str, str | bytes | Path | None]
    dataset: str | Sequence[str] | None = None
    classes: Sequence[str] = ("neg", "pos")


GIT_LFS = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"
GZIPPED = gzip.compress("".join(["text,label\n", *(f"good {row * 7919 % 10007},pos\n" for row in range(999))]).encode())
NFD = "ne\u0301gatif"
KINDS = (
    # labels
    Kind("a no-break space before a name", f"{READ}; 1 normalized", {"a.csv": csv("good,\u00a0pos", "bad,neg")}),
    Kind(
        "accents as characters of their own",
        "read: 'bad' is n\u00e9gatif; 1 normalized",
        {"a.csv": csv(f"bad,{NFD}")},
        classes=("n\u00e9gatif", "positif"),
    ),
    Kind(
        "classes in another script",
        "read: 'good' is \u6b63, 'bad' is \u8ca0",
        {"a.csv": csv("good,\u6b63", "bad,\u8ca0")},
        classes=("\u8ca0", "\u6b63"),
    ),
    Kind(
        "true and false where these are the classes",
        "read: 'good' is true, 'bad' is false",
        {"a.jsonl": lines(("good", True), ("bad", False))},
        classes=("false", "true"),
    ),
    Kind("yes for true", "is 'yes', but the classes", {"a.csv": csv("good,yes")}, classes=("False", "True")),
    Kind(
        "NaN in JSON",
        "row 1 (counted from 0): the label in column 'label' is missing (NaN).",
        {"a.jsonl": '{"text": "good", "label": 1}\n{"text": "bad", "label": NaN}\n'},
    ),
    Kind("nan in CSV", "row 0 (counted from 0): the label in column 'label' is 'nan'", {"a.csv": csv("good,nan")}),
    Kind(
        "a key that one object lacks",
        "row 1 (counted from 0): the label in column 'label' is missing (null). Fill it in",
        {"a.jsonl": lines(("good", "pos")) + '{"text": "bad"}\n'},
    ),
    Kind(
        "an integer of 31 digits",
        "is '1000000000000000000000000000000', but the classes are",
        {"a.jsonl": lines(("good", 10**30))},
    ),
    Kind(
        "dictionary-encoded columns",
        READ,
        {
            "a.parquet": table(
                pa.array(["good", "bad"]).dictionary_encode(), pa.array(["pos", "neg"]).dictionary_encode()
            )
        },
    ),
    # texts
    Kind(
        "half an emoji",
        "a.jsonl, row 0 (counted from 0): column 'text' cannot be read (",
        {"a.jsonl": '{"text": "good \\ud83d", "label": "pos"}\n'},
    ),
    # CSV
    Kind(
        "semicolons between columns",
        "Columns are separated by commas in .csv, and by tabs in .tsv.",
        {"a.csv": ROWS.replace(",", ";")},
    ),
    Kind("commas in a TSV file", "Columns are separated by commas in .csv, and by tabs in .tsv.", {"a.tsv": ROWS}),
    Kind("no header", "It has: good, pos. Does its first line name the columns?", {"a.csv": "good,pos\nbad,neg\n"}),
    Kind(
        "a comment before the header",
        "It has: # 2024. Does its first line name the columns?",
        {"a.csv": "# 2024\n" + ROWS},
    ),
    Kind("a second header", "row 2 (counted from 0): repeats the header", {"a.csv": ROWS + ROWS}),
    Kind(
        "blanks and capitals in the header",
        "has no column 'label'. It has: text,  Label. Did you mean ' Label'?",
        {"a.csv": "text, Label\ngood,pos\n"},
    ),
    Kind(
        "a comma in a text without quotes",
        "row 0 (counted from 0): expected 2 columns, got 3: good, bad,pos. Quote texts that contain a comma",
        {"a.csv": csv("good, bad,pos")},
    ),
    Kind(
        "a row that is too short",
        "row 0 (counted from 0): expected 2 columns, got 1: good.",
        {"a.csv": csv("good", "bad,neg")},
    ),
    Kind("a trailing comma in each row", READ, {"a.csv": ROWS.replace("\n", ",\n")}),
    Kind("the index of a data frame", READ, {"a.csv": ",text,label\n0,good,pos\n1,bad,neg\n"}),
    Kind("old Macintosh line ends", READ, {"a.csv": ROWS.replace("\n", "\r")}),
    Kind("empty lines", READ, {"a.csv": "\n" + ROWS.replace("\n", "\n\n")}),
    # JSON
    Kind(
        "an array in a .jsonl file",
        READ,
        {"a.jsonl": json.dumps([{"text": "good", "label": "pos"}, {"text": "bad", "label": "neg"}])},
    ),
    Kind(
        "one object over several lines",
        "read: 'good' is pos",
        {"a.json": json.dumps({"text": "good", "label": "pos"}, indent=1)},
    ),
    Kind(
        "an object of columns",
        "column 'text' holds list<item: string>, not text.",
        {"a.json": '{"text": ["good"], "label": ["pos"]}'},
    ),
    Kind(
        "rows below a key",
        "has no column 'text'. It has: data.",
        {"a.json": '{"data": [{"text": "good", "label": "pos"}]}'},
    ),
    Kind(
        "Python's quotes",
        "row 0 (counted from 0): is not valid JSON: Expecting property name enclosed in double quotes",
        {"a.jsonl": "{'text': 'good', 'label': 'pos'}\n"},
    ),
    # files
    Kind(
        "UTF-16 in JSON",
        "is not UTF-8 text (invalid start byte at byte 0). Convert it to UTF-8.",
        {"a.jsonl": lines(("good", "pos")).encode("utf-16")},
    ),
    Kind("UTF-16 without a byte order mark", "line 1: contains a NUL byte.", {"a.csv": ROWS.encode("utf-16-le")}),
    Kind(
        "Latin-1 in a compressed file",
        "is not UTF-8 text (invalid continuation byte at byte 31).",
        {"a.csv.gz": gzip.compress((ROWS + "caf\u00e9,pos\n").encode("latin-1"))},
    ),
    Kind("an empty file inside gzip", "has no rows: there is nothing to evaluate.", {"a.csv.gz": gzip.compress(b"")}),
    Kind("gzip of no bytes", "a.csv.gz is empty.", {"a.csv.gz": b""}),
    Kind(
        "truncated bzip2",
        "cannot be read: Truncated compressed stream. Is it complete",
        {"a.csv.bz2": bz2.compress(ROWS.encode())[:-9]},
    ),
    Kind(
        "gzip files put together",
        READ,
        {"a.jsonl.gz": gzip.compress(lines(("good", "pos")).encode()) + gzip.compress(lines(("bad", "neg")).encode())},
    ),
    Kind(
        "gzip that is called .csv",
        "is compressed by gzip: give it a name that ends with .gz.",
        {"a.csv": gzip.compress(ROWS.encode())},
    ),
    Kind(
        "CSV that is called .gz",
        "incorrect header check. Is it complete, and compressed as its name says?",
        {"a.csv.gz": ROWS},
    ),
    Kind(
        "Parquet that is called .csv",
        "is a Parquet file: give it a name that ends with .parquet.",
        {"a.csv": table(["good"], ["pos"])},
    ),
    Kind("CSV that is called .parquet", "is not a parquet file", {"a.parquet": ROWS * 9}),
    Kind(
        "Excel or ZIP that is called .csv",
        "is a ZIP archive or an Excel file: unpack it, or save it as CSV.",
        {"a.csv": archive()},
    ),
    Kind("a pointer of Git LFS", "is a Git LFS pointer, not the data", {"a.parquet": GIT_LFS}),
    Kind(
        "a web page in place of the data",
        "is an HTML page, perhaps from a failed download",
        {"a.csv": "<!DOCTYPE html>\n<html>Not found</html>\n"},
    ),
    Kind("a link to nothing", "a.csv is a symbolic link to b.csv, which does not exist.", {"a.csv": Path("b.csv")}),
    Kind("a link to itself", "a.csv is a symbolic link to a.csv, which does not exist.", {"a.csv": Path("a.csv")}),
    # several files
    Kind("a byte order mark in each file", ALSO, {"a.csv": "\ufeff" + ROWS, "b.csv": "\ufeff" + ROWS}),
    Kind(
        "Spark's marks beside the data",
        READ,
        {"part-0.csv": ROWS, "_SUCCESS": "", ".part-0.csv.crc": "x", "part-0.csv.crc": "x", "README.md": "x"},
    ),
    Kind("files without rows among others", READ, {"a.csv": csv(), "b.csv": ROWS, "c.csv.gz": gzip.compress(b"")}),
    Kind("an empty folder", "contains no data: it was not saved by datasets and has no files.", {"data": None}, "data"),
    Kind(
        "a folder of several formats",
        "have different formats: name the files you want, such as",
        {"a.csv": ROWS, "b.parquet": table(["good"], ["pos"])},
    ),
    Kind(
        "something else in the folder",
        "contains b.csv.part, which is not data: name the files you want",
        {"a.csv": ROWS, "b.csv.part": ROWS},
    ),
    Kind(
        "a folder in the folder",
        "contains old, which is a folder: name the files you want",
        {"a.csv": ROWS, "old/b.csv": ROWS},
    ),
    Kind("a pattern that matches nothing", "No file matches", {"a.csv": ROWS}, "*.tsv"),
    Kind(
        "a file that is named twice",
        "a.csv is named twice: each of its rows would count twice.",
        {"a.csv": ROWS},
        ("a.csv", "*.csv"),
    ),
    Kind(
        "a file and a link to it",
        "b.csv are the same file: each of its rows would count twice.",
        {"a.csv": ROWS, "b.csv": Path("a.csv")},
    ),
    Kind(
        "a loop of links", "loop/a.csv are the same file", {"data/a.csv": ROWS, "data/loop": Path(".")}, "data/**/*.csv"
    ),
    Kind(
        "a column that one file lacks",
        "b.csv has no column 'label', but",
        {"a.csv": ROWS, "b.csv": "text,class\ngood,pos\n"},
    ),
    Kind("a header in the first file only", "b.csv has no column 'text', but", {"a.csv": ROWS, "b.csv": "good,pos\n"}),
    Kind(
        "text in one file, numbers in another",
        "b.parquet holds numbers in column 'label', but",
        {"a.parquet": table(["good"], ["pos"]), "b.parquet": table(["good"], [1])},
    ),
    Kind(
        "integers in one file, floats in another",
        "read: 'good' is pos, 'bad' is neg; 1 normalized",
        {"a.parquet": table(["good"], [1]), "b.parquet": table(["bad"], [0.0])},
    ),
    Kind(
        "other names of classes in one file",
        "a.parquet declare different class names in column 'label'",
        {"a.parquet": class_labels("neg", "pos"), "b.parquet": class_labels("pos", "neg")},
    ),
    Kind(
        "a wrong label in the third file",
        "c.csv, row 1 (counted from 0): the label in column 'label' is 'x'",
        {"a.csv": ROWS, "b.csv": csv(), "c.csv": csv("good,pos", "bad,x")},
    ),
    Kind(
        "a null in the second file",
        "b.jsonl, row 1 (counted from 0): the text in column 'text' is missing (null).",
        {"a.jsonl": lines(("good", "pos")), "b.jsonl": lines(("good", "pos"), (None, "neg"))},
    ),
    Kind(
        "a damaged file among others",
        "b.csv.gz cannot be read: Truncated compressed stream.",
        {"a.csv": ROWS, "b.csv.gz": GZIPPED[:-1]},
    ),
)


def word_tokenizer() -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.WordLevel({"<unk>": 0}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>")


WORDS = word_tokenizer()


def outcome_of(dataset: str | list[str], folder: Path, classes: Sequence[str]) -> str:
    """Returns what was read, or the message."""
    rows = LabelledRows(dataset, ["text"], "label", classes)
    try:
        data = tokenize_dataset(rows, folder, tokenizer=WORDS, max_length=9)
        texts, digest = read_texts(rows, range(len(data)))
    except DataError as error:
        return str(error)
    assert digest == data.facts.text_digest
    shown = ", ".join(f"{texts[row][0]!r} is {classes[label]}" for row, label in enumerate(data.labels))
    return f"read: {shown}" + (f"; {data.facts.normalized_labels} normalized" if data.facts.normalized_labels else "")


@pytest.mark.parametrize("kind", KINDS, ids=[kind.name for kind in KINDS])
def test_it_is_read_rightly_or_refused_in_one_sentence(kind: Kind, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    for name, content in {".": None, **kind.files}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if content is None:
            path.mkdir(exist_ok=True)
        elif isinstance(content, Path):
            path.symlink_to(content)
        else:
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
    (tmp_path / "tokens").mkdir()
    given = kind.dataset or (next(iter(kind.files)) if len(kind.files) == 1 else ".")
    dataset = str(folder / given) if isinstance(given, str) else [str(folder / name) for name in given]
    outcome = outcome_of(dataset, tmp_path / "tokens", kind.classes)
    if kind.says.startswith("read: "):
        assert outcome == kind.says
    else:
        assert kind.says in outcome
        assert str(folder) in outcome, "the file is named"
    assert "\n" not in outcome


@contextmanager
def as_nobody() -> Iterator[None]:
    """Root may read everything."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(before)


@pytest.mark.parametrize("name", ["closed.csv", "closed", "closed/a.csv"])
def test_what_may_not_be_read_is_named(name: str, tmp_path: Path) -> None:
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)
    path = tmp_path / name.partition("/")[0]
    if path.suffix:
        path.write_text(ROWS)
    else:
        path.mkdir()
        (path / "a.csv").write_text(ROWS)
    (tmp_path / "tokens").mkdir(mode=0o777)
    (tmp_path / "tokens").chmod(0o777)
    path.chmod(0)
    with as_nobody():
        outcome = outcome_of(str(tmp_path / name), tmp_path / "tokens", ["neg", "pos"])
    path.chmod(0o755)
    assert str(tmp_path / name) in outcome
    assert "cannot be read: Permission denied" in outcome.replace("[Errno 13] ", "")
