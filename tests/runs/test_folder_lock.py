"""The lock of a run's folder: only ever the file of that name itself."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dist_eval.errors import RunError
from dist_eval.runs.folder_lock import LOCK_FILE, take_lock


@pytest.mark.parametrize("link", [Path.symlink_to, Path.hardlink_to])
def test_a_file_behind_a_link_is_not_written_to(tmp_path: Path, link: object) -> None:
    victim = tmp_path / "thesis.txt"
    victim.write_text("years of work")
    (tmp_path / "journal").mkdir()
    link(tmp_path / "journal" / LOCK_FILE, victim)  # type: ignore[operator]
    with pytest.raises(RunError, match=r"journal/lock is a link to something else"):
        take_lock(tmp_path)
    assert victim.read_text() == "years of work"


def test_a_journal_elsewhere_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "journal").symlink_to(tmp_path / "other")
    with pytest.raises(RunError, match=r"journal is a link to something else"):
        take_lock(tmp_path)
    assert list((tmp_path / "other").iterdir()) == []


def test_the_folder_itself_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "there" / "journal").mkdir(parents=True)
    (tmp_path / "here").symlink_to(tmp_path / "there")
    os.close(take_lock(tmp_path / "here"))
    assert (tmp_path / "there" / "journal" / LOCK_FILE).read_text().startswith(f"process {os.getpid()} ")
