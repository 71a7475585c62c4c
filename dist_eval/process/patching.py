"""Changing a library for a while."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def patched(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Replaces an attribute of a module or class within this context."""
    original = inspect.getattr_static(owner, name)  # a class method as it is, not bound to the owner
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, original)
