"""Large buffers are taken from memory that the process has already touched."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

# Page faults of ten buffers after the first one, each of 10,240 pages
COUNT = """
import resource
from dist_eval.process.memory import keep_freed_memory, return_freed_memory

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def use_buffers(count):
    before = faults()
    for _ in range(count):
        bytes(b"x" * (40 << 20))
    return faults() - before

by_default = use_buffers(10)
keep_freed_memory()
use_buffers(1)
print(by_default, use_buffers(10))
return_freed_memory()
print(use_buffers(1))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="is about glibc")
def test_freed_buffers_are_used_again() -> None:
    out = subprocess.run([sys.executable, "-c", COUNT], capture_output=True, text=True, check=True).stdout.split()
    by_default, kept, returned = map(int, out)
    assert by_default > 10 * 10_000 > 10_000 > kept
    assert returned > 10_000
