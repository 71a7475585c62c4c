"""Coverage of intervals of a random sample for the metrics of all rows that it was drawn from.

A part of `python -m benchmarks.intervals`. Samples are drawn without replacement, as `--sample` draws them, from the
same rows again and again, whose metrics are known.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np

from benchmarks import harness
from dist_eval.data.selection import allocate, draw_rows
from dist_eval.metrics.confusion import margins
from dist_eval.metrics.definitions import metrics_of_margins
from dist_eval.statistics import Sums, Units, gather_evidence, wilson

QUESTION = "How many of the 95% intervals of a sample contain the metric of all rows?"
OURS = "(dist_eval)"
_ROWS, _SHARES, _RECALLS = 2_000, (0.4, 0.3, 0.2, 0.1), (0.9, 0.85, 0.8, 0.7)
_METRICS = ("f1_macro", "mcc")
_RESAMPLES = 999


def cover_rows(options: argparse.Namespace, sizes: Sequence[int], simulations: int) -> harness.Report:
    """Measures the coverage of intervals with and without the correction for a finite population."""
    report = harness.Report("intervals-samples", QUESTION, unit="%", options=options)
    for size in sizes:
        for is_stratified in (False, True):
            group = f"{size:,} of {_ROWS:,} rows" + (", stratified" if is_stratified else "")
            for name, share in coverage_of_rows(size, simulations, is_stratified).items():
                report.add(group, name, 100 * share, {"simulations": simulations})
                if name.endswith(OURS) and not is_stratified:
                    bar = None if options.quick else 2.0
                    report.bound(f"points away from 95: {name}, {group}", [abs(100 * share - 95)], bar)
    report.note(
        f"Rows of {len(_SHARES)} classes with shares {_SHARES} and recalls {_RECALLS}. Each figure rests on "
        f"{simulations:,} samples. The intervals of a stratified sample are those of a plain one, so they are wider "
        "than need be."
    )
    return report


def coverage_of_rows(size: int, simulations: int, is_stratified: bool) -> dict[str, float]:
    """Returns the share of intervals that contain the metric of all rows, by metric and method."""
    generator = np.random.default_rng(0)
    label = generator.choice(len(_SHARES), size=_ROWS, p=_SHARES)
    is_right = generator.random(_ROWS) < np.asarray(_RECALLS)[label]
    prediction = np.where(is_right, label, (label + 1) % len(_SHARES))
    statistic = _statistic(label, prediction)
    truth = {name: float(value[0]) for name, value in statistic.values(statistic.units.observed_weights()).items()}
    quotas = allocate(size, np.bincount(label)) if is_stratified else np.asarray([size])
    fraction, hits = size / _ROWS, dict[str, list[bool]]()

    def count(name: str, ends: tuple[float, float] | None, value: float) -> None:
        hits.setdefault(name, []).append(ends is not None and ends[0] <= value <= ends[1])

    for seed in range(simulations):
        rows = draw_rows(_ROWS, quotas, seed, label if is_stratified else None)
        right = int(is_right[rows].sum())
        count("accuracy: Wilson", wilson(right, size), is_right.mean())
        count(f"accuracy: Wilson, corrected {OURS}", wilson(right, size, sampling_fraction=fraction), is_right.mean())
        sampled = _statistic(label[rows], prediction[rows])
        whole = sampled.values(sampled.units.observed_weights())
        values = {name: float(whole[name][0]) for name in _METRICS}
        for name, one in gather_evidence(sampled, values, resamples=_RESAMPLES, seed=seed).items():
            count(f"{name}: BCa", one.interval().limits, truth[name])
            count(f"{name}: BCa, corrected {OURS}", one.interval(sampling_fraction=fraction).limits, truth[name])
    return {name: float(np.mean(found)) for name, found in sorted(hits.items())}


def _statistic(label: np.ndarray, prediction: np.ndarray) -> Sums:
    return Sums(Units.by_value(label, prediction), margins(label, prediction), metrics_of_margins)
