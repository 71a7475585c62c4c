"""Progress of all ranks, logged to the experiment trackers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from dist_eval.errors import one_line, print_error
from dist_eval.statistics.intervals import wilson
from dist_eval.tracking import Trackers

_BETWEEN_LOGS_SECONDS = 10.0
_SCORING_SECONDS = 1.0  # per log, because other ranks wait for this rank's heartbeat; the next log continues

Scored = Mapping[str, Sequence[bool] | np.ndarray]
"""By name of an accuracy, whether each of some samples is correct."""


class TrackedProgress:
    """Logs the progress of all ranks at intervals and at the end.

    `total` counts the examples of the whole run, and `confidence` is the level of the intervals of accuracies. `scorer`
    yields whether samples since the last call are correct; None if unknown.
    """

    def __init__(
        self, trackers: Trackers, total: int, confidence: float, scorer: Callable[[], Iterable[Scored]] | None = None
    ) -> None:
        self._trackers, self._total, self._confidence, self._scorer = trackers, total, confidence, scorer
        self._counts: dict[str, tuple[int, int]] = {}  # numbers of samples and of correct samples
        self._start = self._next = time.monotonic()
        self._logged = 0

    def show(self, done: int, before: int) -> None:
        """Logs the number of finished examples; `before` is the number that earlier starts finished."""
        now = time.monotonic()
        if done == self._logged or (now < self._next and done < self._total):
            return
        self._next, self._logged = now + _BETWEEN_LOGS_SECONDS, done
        values: dict[str, float | None] = {
            "progress": done / self._total,
            "examples_per_second": (done - before) / max(now - self._start, 1e-9),
        }
        for name, (samples, right) in self._scored().items():
            low, high = wilson(right, samples, self._confidence)
            accuracy = {name: right / samples, f"{name}/low": low, f"{name}/high": high}
            values |= {f"provisional/{key}": value for key, value in accuracy.items()}
        self._trackers.log(values, done)

    def _scored(self) -> Mapping[str, tuple[int, int]]:
        end = time.monotonic() + _SCORING_SECONDS
        try:
            for scored in self._scorer() if self._scorer else ():
                for name, are_right in scored.items():
                    samples, right = self._counts.get(name, (0, 0))
                    self._counts[name] = samples + len(are_right), right + int(np.sum(are_right))
                if time.monotonic() > end:
                    break
        except Exception as error:  # such as a folder that is temporarily unreadable
            self._scorer, self._counts = None, {}
            reason = one_line(error).rstrip(".")
            print_error(f"--tracker: the running accuracy is no longer available: {reason}. The run continues.")
        return {name: counts for name, counts in self._counts.items() if counts[0]}
