"""Faster imports of large libraries."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def gc_paused() -> Iterator[None]:
    """Disables garbage collection within this context, and exempts the objects created in it from later collections.

    For imports: torch and Petals create a million permanent objects. Scanning them again and again takes a sixth of the
    import time, and transformers scans them once more for each model that it loads.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()
