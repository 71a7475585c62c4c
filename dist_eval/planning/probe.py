"""The probe: sends a few batches through the swarm as the run would, and estimates the run's time from their answers.

A full pipeline works at the speed of its slowest stage, so time is linear in tokens: the start (the first passage, and
the growth of the windows), then a constant number of seconds per token to the end. These are the two parameters of
R. W. Hockney and C. R. Jesshope (1981), "Parallel Computers", 1.3.2: half-performance length and asymptotic rate. The
probe has the same start, so the run is expected to take as long as the probe up to half of the probe's answers, and
then to continue at the speed of the other half.

The probe's batches are spread evenly over the lengths, as a systematic sample of the plan, and seconds per token are
estimated as a ratio of sums (W. G. Cochran (1977), "Sampling Techniques", chapters 6 and 8). The range of the estimate
is that of six parts of the second half, one after the other: their median is outside it once in 32 times.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass

import numpy as np

from dist_eval.data.plan import BatchPlan, shard_batches
from dist_eval.distributed.rank_store import Topology
from dist_eval.inference.forward import TextSource, predict_batches
from dist_eval.inference.in_flight import Window
from dist_eval.inference.models import AnsweringModel
from dist_eval.planning.record import TimeEstimate

# answers to wait for: of all ranks together, and per rank if there are many. Windows grow in the first half; the second
# half is measured
_MOST_ANSWERS, _FEWEST_ANSWERS, _ANSWERS_OF_A_RANK = 96, 24, 4
_SHARE_OF_PLAN = 0.25  # of a short run's batches, whose time needs fewer answers
_ANSWERS_FOR_A_SPEED = 2
_PARTS, _OF_A_PART = 6, 2


@dataclass
class Probed:
    """The measurements of a rank; times are seconds since the start of the probe."""

    seconds: np.ndarray  # time of each answer, ascending, float64 of shape [n]
    tokens: np.ndarray  # of each batch, with prompts and padding, int64 of shape [n]
    stopped: float = math.inf  # when it stopped sending; infinite if it sent all batches of its shard


def probe(
    model: AnsweringModel,
    data: TextSource,
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

    It ends once all ranks together have enough answers. Batches still in flight are dropped, so that all counted ones
    were answered while the window was full.

    `count` adds to the number of all ranks' answers and returns it. The probe ends after `longest` seconds, unless
    there are too few answers to measure a speed. `predict_batches` describes the other arguments.
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
    """Returns how many answers of all ranks together are enough for a run with this number of batches."""
    of_plan = math.ceil(_SHARE_OF_PLAN * batches)
    return max(min(_MOST_ANSWERS, max(_FEWEST_ANSWERS, of_plan)), _ANSWERS_OF_A_RANK * ranks)


def spread_order(count: int) -> np.ndarray:
    """Orders 0 to count - 1 such that any number of first ones is spread evenly over all.

    This is the sequence of J. G. van der Corput (1935): numbers sorted by their reversed bits.
    """
    bits = count.bit_length()
    return np.asarray(sorted(range(count), key=lambda number: f"{number:0{bits}b}"[::-1]), dtype=np.int64)


def expected_time(ranks: Sequence[Probed], tokens: int, *, start_up: float = 0.0) -> TimeEstimate:
    """Estimates how long all ranks together take for all batches of a run."""
    end = min(rank.stopped for rank in ranks)  # afterwards the other ranks have the servers to themselves
    seconds, sizes = np.concatenate([rank.seconds for rank in ranks]), np.concatenate([rank.tokens for rank in ranks])
    order = np.argsort(seconds, kind="stable")
    order = order[: max(1, np.searchsorted(seconds[order], end, side="right"))]
    seconds, sizes = seconds[order], sizes[order]
    half = len(seconds) // 2
    start, left = (float(seconds[half - 1]), tokens - int(sizes[:half].sum())) if half else (0.0, tokens)
    times, amounts = np.diff(seconds[half:], prepend=start), sizes[half:]
    per_token = times.sum() / amounts.sum()
    if not per_token > 0:  # all arrived at the same time
        start, left, per_token = 0.0, tokens, seconds[-1] / sizes.sum()
    expected = start + left * float(per_token)
    low = high = None
    if len(times) >= _PARTS * _OF_A_PART:
        sums = [np.array([part.sum() for part in np.array_split(values, _PARTS)]) for values in (times, amounts)]
        of_parts = sums[0] / sums[1]
        low = start + left * float(of_parts.min())
        high = start + left * float(of_parts.max()) + float(seconds[0])  # ranks and replicas do not all end together
        low, high = min(low, expected), max(high, expected)
    return TimeEstimate(
        seconds=expected,
        low=low,
        high=high,
        start_up=start_up,
        probe_batches=len(seconds),
        probe_seconds=float(seconds[-1]),
        tokens_per_second=float(1 / per_token),
        first_answer=float(seconds[0]),
    )
