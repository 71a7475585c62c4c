"""The lock of a run's folder: only ever the file of that name itself."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from dist_eval.errors import RunError
from dist_eval.runs.folder_lock import HOLDER_FILE, LOCK_FILE, last_holder, take_lock


def test_a_file_behind_a_link_is_not_created(tmp_path: Path) -> None:
    (tmp_path / "journal").mkdir()
    (tmp_path / "journal" / LOCK_FILE).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RunError, match=r"journal/lock is a symbolic link"):
        take_lock(tmp_path)
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("link", [Path.symlink_to, Path.hardlink_to])
@pytest.mark.parametrize("name", [LOCK_FILE, HOLDER_FILE])
def test_a_file_behind_a_link_is_not_written_to(tmp_path: Path, link: Callable[[Path, Path], None], name: str) -> None:
    victim = tmp_path / "thesis.txt"
    victim.write_text("years of work")
    (tmp_path / "journal").mkdir()
    link(tmp_path / "journal" / name, victim)
    with suppress(RunError):
        os.close(take_lock(tmp_path).descriptor)
    assert victim.read_text() == "years of work"


def test_the_folder_itself_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "there" / "journal").mkdir(parents=True)
    (tmp_path / "here").symlink_to(tmp_path / "there")
    lock = take_lock(tmp_path / "here")
    os.close(lock.descriptor)
    assert last_holder(tmp_path / "there") == lock.holder
    assert lock.holder.startswith(f"process {os.getpid()} ")
