"""Atomic replacement of files."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from samples import watch

from dist_eval.process.files import (
    BY_UMASK,
    allow_many_files,
    private_files,
    remove_temporary,
    replaced_atomically,
    write_atomically,
)


def test_readers_see_the_old_file_or_the_new_one(tmp_path: Path) -> None:
    contents = [bytes([letter]) * 2_000_000 for letter in b"abcdefgh"]
    write_atomically(tmp_path / "file", contents[0])

    def change() -> None:
        for content in contents * 5:
            write_atomically(tmp_path / "file", content)

    seen = watch(tmp_path / "file", change)
    assert len(seen) > 3
    assert set(seen) <= set(contents)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.fixture
def no_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("no_umask")
def test_files_are_private_unless_the_user_named_them(tmp_path: Path) -> None:
    write_atomically(tmp_path / "ours", b"")
    write_atomically(tmp_path / "named", b"", BY_UMASK)
    with private_files():
        (tmp_path / "of a library").write_text("")
        (tmp_path / "folder").mkdir()
    (tmp_path / "later").write_text("")
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert modes == {"ours": 0o600, "named": 0o666, "of a library": 0o600, "folder": 0o700, "later": 0o666}


def test_a_link_is_replaced_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text("years of work")
    (tmp_path / "file").symlink_to(tmp_path / "elsewhere")
    write_atomically(tmp_path / "file", b"new")
    assert (tmp_path / "elsewhere").read_text() == "years of work"
    assert not (tmp_path / "file").is_symlink()


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_atomically(tmp_path / "file", b"old")

    def full_disk(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full_disk)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(tmp_path / "file", b"new")
    assert (tmp_path / "file").read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    writing = replaced_atomically(tmp_path / "results.json")
    writing.__enter__().write(b"half of it")
    (tmp_path / ".results.json.notes").touch()
    (tmp_path / "results.json").touch()
    assert len([*tmp_path.iterdir()]) == 3
    remove_temporary(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {".results.json.notes", "results.json"}


def test_a_process_may_open_as_many_files_as_the_system_allows() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(512, before[1]), before[1]))
        allow_many_files()
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        assert (soft, hard) == (min(before[1], 1 << 16), before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
