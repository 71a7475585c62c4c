"""Changing a library for a while."""

from __future__ import annotations

import math

import pytest

from dist_eval.process.patching import patched


def test_an_attribute_is_restored_after_an_error() -> None:
    original = math.floor
    with pytest.raises(ZeroDivisionError), patched(math, "floor", math.ceil):
        assert math.floor(0.5) == 1
        raise ZeroDivisionError
    assert math.floor is original
