"""Decides how many blocks a task has.

Petals makes a task of each block, and copies the activations from the GPU to the handler's process and back after each.
They are large (16 MiB for 1024 tokens of a 70B model in bfloat16), so here they stay on the GPU for several blocks.

Forwards are computed in the order in which they arrive, because the next server of a chain would idle while several
requests took turns. A task of a forward ends early if a step of a session waits, and after two seconds, so that an
abandoned request does not take longer. Other tasks have as many blocks as take a quarter of a second.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from multiprocessing.sharedctypes import RawValue

import torch

TASK_SECONDS = 0.25
"""Longest time of a task with more than one block, and until a forward checks whether a step of a session waits."""

FORWARD_SECONDS = 2.0
"""Time after which a task of a forward ends."""

# Of one token in one block, in the latest task of each kind; shared by the handlers, which are forked later
_seconds_per_work = {kind: RawValue("d", math.inf) for kind in ("forward", "backward", "inference")}


def blocks_of_tasks(kind: str, hidden: torch.Tensor, count: int) -> Iterator[slice]:
    """Yields the blocks of each task of a request, as many as fit into the time, judging by earlier tasks."""
    start = 0
    while start < count:
        seconds = _seconds_per_work[kind].value * _tokens(hidden)
        end = min(count, start + max(1, int(min(count, TASK_SECONDS / seconds))))
        yield slice(start, end)
        start = end


def record_speed(kind: str, seconds: float, hidden: torch.Tensor, count: int) -> None:
    """Records the time of a task of several blocks."""
    _seconds_per_work[kind].value = max(1e-12, seconds / (_tokens(hidden) * count))


def _tokens(hidden: torch.Tensor) -> int:
    return max(1, hidden.shape[0] * hidden.shape[1])
