"""The progress of a run as trackers show it: how far it is, how fast, and what its accuracy seems to become."""

from __future__ import annotations

import time

from dist_eval.statistics.intervals import wilson
from dist_eval.tracking import Trackers

_SECONDS = 10.0


class TrackedProgress:
    """Logs the progress of all ranks now and then, and at its end.

    Args:
        trackers: where to.
        total: examples of the whole run.
        confidence: confidence level of the interval of the accuracy.
    """

    def __init__(self, trackers: Trackers, total: int, confidence: float) -> None:
        self._trackers, self._total, self._confidence = trackers, total, confidence
        self._start = self._next = time.monotonic()
        self._logged = 0

    def show(self, done: int, before: int, judged: int, right: int) -> None:
        """Logs how far the run is.

        Args:
            done: finished examples.
            before: those of them that earlier starts have finished.
            judged: examples of this start of which it is known whether they are right; 0 where that is not known.
            right: those that are.
        """
        now = time.monotonic()
        if done == self._logged or (now < self._next and done < self._total):
            return
        self._next, self._logged = now + _SECONDS, done
        values: dict[str, float | None] = {
            "progress": done / self._total,
            "examples_per_second": (done - before) / max(now - self._start, 1e-9),
        }
        if judged:
            low, high = wilson(right, judged, self._confidence)
            accuracy = {"accuracy": right / judged, "accuracy/low": low, "accuracy/high": high}
            values |= {f"provisional/{name}": value for name, value in accuracy.items()}
        self._trackers.log(values, done)
