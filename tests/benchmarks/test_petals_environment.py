"""The environment of Petals' own classes of models: what is missing is said in a sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.petals_environment import petals_python
from benchmarks.program import BenchmarkError


def test_without_uv_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BenchmarkError, match=r"packages of launch/petals-2\.2, which uv installs: pip install uv\.$"):
        petals_python.__wrapped__()
