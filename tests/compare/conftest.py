"""Three runs that differ, shared by the tests of comparing."""

from __future__ import annotations

from pathlib import Path

import pytest
from compare_runs import predictions, run_of


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("runs")
    return [run_of(folder / name, predictions(skill)) for name, skill in (("a", 1.0), ("b", 1.6), ("c", 1.02))]
