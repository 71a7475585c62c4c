"""From the answers of a probe to the time of a run. Pure arithmetic.

A pipeline that is kept full works at the speed of its slowest stage, so the time for a number of tokens is a line: what
the start takes (the first passage, and the growth of the windows), and then so many seconds for each token, to the very
end. These are the two parameters of R. W. Hockney and C. R. Jesshope (1981), "Parallel Computers", 1.3.2: half-
performance length and asymptotic rate. The probe runs through its start, too, so the run is taken to go like the probe
until half of the probe's answers are there, and on at the speed of the other half.

The probe's batches are spread evenly over the lengths, as a systematic sample of the plan, and seconds per token are
estimated as a ratio of sums (W. G. Cochran (1977), "Sampling Techniques", chapters 6 and 8). Its standard error is
that of batch means (B. Schmeiser (1982), "Batch size effects in the analysis of simulation output", Operations
Research 30, 556-568): consecutive answers depend on each other, sums over groups of them hardly do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from dist_eval.planning.probe import Probed
from dist_eval.planning.record import TimeEstimate

_GROUPS, _FEWEST_GROUPS = 8, 3


def expected_time(
    ranks: Sequence[Probed], tokens: int, *, confidence: float = 0.95, start_up: float = 0.0
) -> TimeEstimate:
    """Estimates how long all ranks together take for all batches of a run."""
    end = min(rank.stopped for rank in ranks)  # from then on the others have the servers to themselves
    seconds, sizes = np.concatenate([rank.seconds for rank in ranks]), np.concatenate([rank.tokens for rank in ranks])
    order = np.argsort(seconds, kind="stable")
    order = order[: max(1, np.searchsorted(seconds[order], end, side="right"))]
    seconds, sizes = seconds[order], sizes[order]
    half = len(seconds) // 2
    start, left = (float(seconds[half - 1]), tokens - int(sizes[:half].sum())) if half else (0.0, tokens)
    times, amounts = np.diff(seconds[half:], prepend=start), sizes[half:]
    per_token = times.sum() / amounts.sum()
    if not per_token > 0:  # all came at the same time
        start, left, per_token = 0.0, tokens, seconds[-1] / sizes.sum()
    error = _standard_error(times, amounts)
    low = high = None
    if error is not None:
        from scipy.stats import t

        margin = left * error[0] * float(t.ppf((1 + confidence) / 2, error[1]))
        low = start + max(0.0, left * per_token - margin)
        high = start + left * per_token + margin + float(seconds[0])  # ranks and replicas do not all end together
    return TimeEstimate(
        seconds=start + left * float(per_token),
        low=low,
        high=high,
        confidence=confidence,
        start_up=start_up,
        probe_batches=len(seconds),
        probe_seconds=float(seconds[-1]),
        tokens_per_second=float(1 / per_token),
        first_answer=float(seconds[0]),
    )


def _standard_error(times: np.ndarray, amounts: np.ndarray) -> tuple[float, int] | None:
    """Returns the standard error of `times.sum() / amounts.sum()` and its degrees of freedom; None for few items."""
    groups = min(_GROUPS, len(times) // 2)
    if groups < _FEWEST_GROUPS:
        return None
    sums = [np.array([part.sum() for part in np.array_split(values, groups)]) for values in (times, amounts)]
    residuals = sums[0] - sums[1] * sums[0].sum() / sums[1].sum()
    spread = math.sqrt(float((residuals**2).sum()) / (groups * (groups - 1)))
    return spread / float(sums[1].mean()), groups - 1
