"""Temporary changes to libraries, the environment and garbage collection."""

from __future__ import annotations

import gc
import inspect
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def patched(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Replaces an attribute of a module or class within this context."""
    original = inspect.getattr_static(owner, name)  # class methods are not bound to the owner
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, original)


@contextmanager
def environment_with(name: str, value: str) -> Iterator[None]:
    """Sets an environment variable within this context."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


@contextmanager
def gc_paused() -> Iterator[None]:
    """Disables garbage collection within this context, and exempts the objects created in it from later collections.

    For imports: torch and Petals create a million permanent objects. Repeated scans take a sixth of the import time,
    and transformers triggers another for each model that it loads.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()
