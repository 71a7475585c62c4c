"""The probe: a few batches through the swarm, as the run would send them. Their answers are thrown away."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Container
from dataclasses import dataclass

import numpy as np

from dist_eval.data.plan import BatchPlan, shard_batches
from dist_eval.distributed.rank_store import Topology
from dist_eval.inference.forward import TextModel, Texts, predict_batches
from dist_eval.inference.in_flight import Window

# answers to wait for, of all ranks together, or for each of many: windows grow in the first half, and the second one
# is measured
_MOST_ANSWERS, _FEWEST_ANSWERS, _ANSWERS_OF_A_RANK = 96, 24, 4
_SHARE_OF_PLAN = 0.25  # of a short run's batches: for its time, fewer answers are enough
_ANSWERS_FOR_A_SPEED = 2


@dataclass
class Probed:
    """What a rank found; times are seconds since the start of the probe."""

    seconds: np.ndarray  # when each batch was answered, ascending, float64 of shape [n]
    tokens: np.ndarray  # of each batch, with prompts and padding, int64 of shape [n]
    stopped: float = math.inf  # when it stopped sending; infinite if it has sent all batches of its shard


def probe(
    model: TextModel,
    data: Texts,
    plan: BatchPlan,
    topology: Topology,
    window: Window,
    *,
    count: Callable[[int], int],
    longest: float,
    skip_failed: bool = False,
    audited: Container[int] = (),
) -> Probed:
    """Sends batches of this rank's shard, spread over its lengths; all ranks call it at the same time.

    It ends as soon as all ranks together have enough answers. Batches that are in flight then are dropped, so that all
    that count were answered while the window was full.

    `count` adds to the answers of all ranks, and returns how many they are. After `longest` seconds no further answers
    are waited for, unless there are too few for any speed. `predict_batches` describes the other arguments.
    """
    start, stopped, counted = time.monotonic(), math.inf, 0
    enough = answers_wanted(len(plan), topology.world_size)
    moments: list[float] = []
    tokens: list[int] = []

    def stopping() -> bool:
        nonlocal stopped, counted
        answers, counted = count(len(moments) - counted), len(moments)
        elapsed = time.monotonic() - start
        if answers >= enough or (elapsed > longest and answers >= _ANSWERS_FOR_A_SPEED):
            stopped = min(stopped, elapsed)
        return stopped < math.inf

    shard = shard_batches(len(plan), rank=topology.rank, world_size=topology.world_size)
    order = shard[spread_order(len(shard))]
    for outcome in predict_batches(
        model, data, plan, order, window=window, skip_failed=skip_failed, stopping=stopping, audited=audited
    ):
        moments.append(time.monotonic() - start)
        tokens.append(int(plan.tokens[outcome.batch]))
    if len(moments) == len(shard):
        stopped = math.inf
    return Probed(np.asarray(moments), np.asarray(tokens, dtype=np.int64), stopped)


def answers_wanted(batches: int, ranks: int) -> int:
    """Returns how many answers are enough, of all ranks together, for a run with so many batches."""
    of_plan = math.ceil(_SHARE_OF_PLAN * batches)
    return max(min(_MOST_ANSWERS, max(_FEWEST_ANSWERS, of_plan)), _ANSWERS_OF_A_RANK * ranks)


def spread_order(count: int) -> np.ndarray:
    """Orders 0 to count - 1 such that the first ones, however many, are spread evenly over all.

    It is the sequence of J. G. van der Corput (1935): numbers whose bits are read from the other end.
    """
    bits = count.bit_length()
    return np.asarray(sorted(range(count), key=lambda number: f"{number:0{bits}b}"[::-1]), dtype=np.int64)
