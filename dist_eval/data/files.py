"""Finds the files of a dataset from file names, folders and patterns.

All files (shards) form one dataset in the order of their paths, where part-2 comes before part-10. Anything that is not
data is an error, except for the marker files that other programs leave beside data.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Sequence
from pathlib import Path

from dist_eval.errors import DataError, translating_os_errors
from dist_eval.process.files import is_utf8

FORMATS = (".csv", ".tsv", ".jsonl", ".ndjson", ".json", ".parquet")
"""Suffixes of the known formats."""

COMPRESSIONS = (".gz", ".bz2", ".zst", ".lz4")
"""Suffixes of compressed text files, after that of the format."""

_JSON = (".json", ".jsonl", ".ndjson")
_KNOWN = "Supported are .csv, .tsv, .json, .jsonl and .parquet."
_SAVED_BY_DATASETS = ("state.json", "dataset_dict.json")
_DOCUMENTS = ("readme", "license")
# words that name splits, alone or as in "testset", anywhere in a name, but not within words such as "latest"
_SPLIT = re.compile(
    r"(?<![^\W\d_])(train(?:ing)?|test(?:ing)?|valid(?:ation)?|val|devtest|dev(?:el(?:opment)?)?|eval(?:uation)?|"
    r"held[-_. ]?out|hold[-_. ]?out)(?:set|data|split)?(?![^\W\d_])"
)
_HUMP = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


def format_of(path: Path) -> str:
    """Returns the suffix that identifies a file's format, in lower case; empty if there is none."""
    suffixes = [s.lower() for s in path.suffixes if s.lower() not in COMPRESSIONS]
    return suffixes[-1] if suffixes else ""


def names_of(dataset: str | Sequence[str]) -> list[str]:
    """Returns the names that identify a dataset: files, folders, patterns or a hub name."""
    return [dataset] if isinstance(dataset, str) else list(dataset)


def dataset_name(dataset: str | Sequence[str]) -> str:
    """Returns one name for a dataset, for messages."""
    names = names_of(dataset)
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


def is_pattern(name: str) -> bool:
    """Whether a name is a glob pattern."""
    return glob.has_magic(name) and not Path(name).exists()


def is_saved_by_datasets(folder: Path) -> bool:
    """Whether `save_to_disk` of `datasets` wrote a folder."""
    return any((folder / name).exists() for name in _SAVED_BY_DATASETS)


def find_files(names: Sequence[str]) -> list[Path]:
    """Finds the files of a dataset."""
    files: list[Path] = []
    for name in names:
        with translating_os_errors(DataError, f"{name} cannot be read"):
            files += _files_of(name)
    files.sort(key=_natural_order)
    known: dict[tuple[int, int], Path] = {}
    for path in files:
        with translating_os_errors(DataError, f"{path} cannot be read"):
            status = path.stat()
        other = known.setdefault((status.st_dev, status.st_ino), path)
        if other is not path:
            what = f"{path} is named twice" if other == path else f"{other} and {path} are the same file"
            raise DataError(f"{what}: each of its rows would count twice.")
        if status.st_size == 0:
            raise DataError(f"{path} is empty.")
        if not is_utf8(path):
            raise DataError(f"{str(path)!r}: the name is not UTF-8, so results could not contain it. Rename the file.")
        if format_of(path) not in FORMATS:
            raise DataError(f"{path}: unknown file format. {_KNOWN}")
        if _family(path) != _family(files[0]):
            raise DataError(
                f"{files[0]} and {path} have different formats: name the files you want, such as "
                f"'{path.parent / '*'}{format_of(path)}'."
            )
    return files


def shared_file(dataset: str | Sequence[str], other: str | Sequence[str]) -> str | None:
    """Returns a file or name that two datasets share; None if there is none."""
    files = [_resolved(dataset), _resolved(other)]
    return next((str(path) for real, path in files[0].items() if real in files[1]), None)


def _resolved(dataset: str | Sequence[str]) -> dict[Path, Path]:
    names = names_of(dataset)
    try:
        files = find_files(names)
    except DataError:  # a hub name, or an error that is reported when the dataset is read
        files = list(map(Path, names))
    return {path.resolve(): path for path in files}


def _files_of(name: str) -> list[Path]:
    path = Path(name)
    if path.is_dir():
        return _files_in(path)
    if path.is_file():
        return [path]
    if path.is_symlink():
        raise DataError(f"{name} is a symbolic link to {os.readlink(path)}, which does not exist.")
    if path.exists():
        raise DataError(f"{name} is not a regular file: copy its content to a file.")
    if not is_pattern(name):
        raise DataError(f"There is no file {name}.")
    found: list[Path] = []
    for match in map(Path, glob.iglob(os.path.expanduser(name), recursive=True)):
        if not match.is_dir():
            found += [] if _is_mark(match) else [match]
        elif "**" not in name:  # `**` itself matches the content of folders
            found += _files_in(match)
    if not found:
        raise DataError(f"No file matches {name}.")
    _require_one_split(found, f"{name} matches")
    return found


def _files_in(folder: Path) -> list[Path]:
    if is_saved_by_datasets(folder):
        raise DataError(f"{folder} was saved by datasets: give it alone, not among other files.")
    found = [path for path in sorted(folder.iterdir()) if not (path.name.startswith((".", "_")) or _is_mark(path))]
    files = [path for path in found if path.is_file() and format_of(path) in FORMATS]
    if not files:
        raise DataError(f"{folder} contains no data: it was not saved by datasets and has no files. {_KNOWN}")
    ending = "".join(files[0].suffixes[-2 if files[0].suffix.lower() in COMPRESSIONS else -1 :])
    advice = f"name the files you want, such as '{folder}/*{ending}'."
    for path in found:
        if path not in files:
            what = "a folder" if path.is_dir() else "not data"
            raise DataError(f"{folder} contains {path.name}, which is {what}: {advice}")
    _require_one_split(files, f"{folder} contains")
    return files


def _require_one_split(files: Sequence[Path], what: str) -> None:
    """Rejects files whose names suggest different splits, or a split and the rest of a dataset."""
    above = os.path.commonpath([path.parent for path in files])
    by_words: dict[frozenset[str], Path] = {}
    without: dict[tuple[str, ...], dict[bool, Path]] = {}
    for path in sorted(files, key=_natural_order):
        name = _HUMP.sub("_", os.path.relpath(path, above)).lower()
        words = frozenset(_SPLIT.findall(name))
        if words:
            by_words.setdefault(words, path)
        others = tuple(re.findall(r"[^\W\d_]+", _SPLIT.sub("", name)))
        without.setdefault(others, {}).setdefault(bool(words), path)
    pairs = [list(by_words.values()), *(list(alike.values()) for alike in without.values())]  # digits and digits-test
    for one, other, *_ in (pair for pair in pairs if len(pair) > 1):
        raise DataError(
            f"{what} {os.path.relpath(one, above)} and {os.path.relpath(other, above)}, which look like different "
            f"splits: name the files you want, such as '{one}'."
        )


def _is_mark(path: Path) -> bool:
    """Whether a file is a document or a marker that programs leave beside data, such as Spark's `_SUCCESS`."""
    is_mark = path.name.startswith("_") or path.suffix.lower() == ".crc" or path.stem.lower() in _DOCUMENTS
    return is_mark and format_of(path) not in FORMATS


def _natural_order(path: Path) -> tuple[list[list[str | int]], str]:
    pieces = (re.split(r"([0-9]+)", part) for part in path.parts)
    return [[int(piece) if i % 2 else piece for i, piece in enumerate(part)] for part in pieces], str(path)


def _family(path: Path) -> str:
    return ".json" if format_of(path) in _JSON else format_of(path)
