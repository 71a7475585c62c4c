"""Forked interpreters do not depend on each other."""

from __future__ import annotations

import signal

import pytest
from conftest import Launcher

LOCKS = ("mpfuture.MPFuture._initialization_lock", "mpfuture.MPFuture._update_lock", "mpfuture.SharedBytes._lock",
         "asyncio._AsyncContextWrapper.EXECUTOR_LOCK")  # fmt: skip


@pytest.mark.parametrize("lock", LOCKS)
def test_one_that_is_killed_while_it_holds_a_lock_of_hivemind_does_not_block_the_next(
    lock: str, launcher: Launcher
) -> None:
    acquire = f"from hivemind.utils import asyncio, mpfuture; assert {lock}.acquire(timeout=5)"
    killed = launcher.run("-c", f"{acquire}; import os; os.kill(os.getpid(), {signal.SIGKILL.value})")
    assert killed.returncode == -signal.SIGKILL
    assert launcher.run("-c", acquire).returncode == 0
