"""The README's Python programs, run as they stand there; what they print stands behind them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from conftest import Launcher

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
PROGRAMS = re.findall(r"^```python\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.rsplit("import ", 1)[-1].splitlines()[0])
def test_a_program_prints_what_the_readme_says(program: str, launcher: Launcher) -> None:
    expected = re.findall(r"print\(.*\)  # (.*)$", program, re.MULTILINE)
    assert expected, "it prints nothing that could be compared"
    done = launcher.run("-c", program)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == expected
    assert not launcher.leftovers()
