"""Imports of large libraries, without what slows them down."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def gc_paused() -> Iterator[None]:
    """Within this context no garbage is looked for, and what it leaves behind is never looked through again.

    For imports: torch and Petals make a million objects that stay. To search them again and again takes a sixth of
    the time that they are imported in, and transformers does so once more for each model that it loads.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()
