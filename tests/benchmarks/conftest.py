"""The programs themselves are for the second tier, even when small; what they compute with is not."""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == Path(__file__).parent and "launcher" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.slow)
