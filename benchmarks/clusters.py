"""Coverage of intervals for clustered examples, such as the sentences of a document.

A part of `python -m benchmarks.intervals`. The difficulty varies between groups, so that the predictions within a group
are correlated; samples of whole groups are drawn from a population whose metrics are known.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np

from benchmarks import harness
from dist_eval.metrics.confusion import margins
from dist_eval.metrics.definitions import metrics_of_margins
from dist_eval.statistics import Sums, Units, bca, gather_evidence, wilson

QUESTION = "How many of the 95% intervals contain the truth where examples come in groups?"
OURS = "(dist_eval)"
_ACCURACY, _CORRELATION, _GROUP_SIZE = 0.85, 0.3, 10
_TRUTH = {"accuracy": _ACCURACY, "f1_macro": _ACCURACY, "mcc": 2 * _ACCURACY - 1}
"""For two balanced classes with symmetric errors."""

_RESAMPLES, _ENOUGH_GROUPS = 1_999, 50


def cover_groups(options: argparse.Namespace, groups: Sequence[int], simulations: int) -> harness.Report:
    """Measures the coverage of intervals from resampling examples and from resampling whole groups."""
    report = harness.Report("intervals-groups", QUESTION, unit="%", options=options)
    for count in groups:
        group = f"{count} groups of {_GROUP_SIZE} examples"
        for name, share in coverage_of_groups(count, simulations).items():
            report.add(group, name, 100 * share, {"simulations": simulations})
            if name.endswith(OURS) and count >= _ENOUGH_GROUPS:
                bar = None if options.quick else 3.0
                report.bound(f"points away from 95: {name}, {group}", [abs(100 * share - 95)], bar)
    report.note(
        f"The accuracy of a group is drawn from a beta distribution with mean {_ACCURACY:g}; two examples of a group "
        f"are both right or both wrong with a correlation of {_CORRELATION:g}. Each figure rests on {simulations:,} "
        "samples."
    )
    return report


def coverage_of_groups(groups: int, simulations: int) -> dict[str, float]:
    """Returns the share of intervals that contain the truth, by metric and method."""
    generator = np.random.default_rng(groups)
    names = np.repeat(np.arange(groups), _GROUP_SIZE)
    weight = 1 / _CORRELATION - 1
    hits: dict[str, list[bool]] = {}

    def count(name: str, low: float | None, high: float | None, value: float) -> None:
        hits.setdefault(name, []).append(low is not None and high is not None and low <= value <= high)

    for number in range(simulations):
        accuracy = generator.beta(_ACCURACY * weight, (1 - _ACCURACY) * weight, size=groups)
        label = generator.integers(2, size=len(names))
        is_right = generator.random(len(names)) < accuracy[names]
        prediction = np.where(is_right, label, 1 - label)
        count("accuracy: Wilson, by examples", *wilson(int(is_right.sum()), len(names)), _ACCURACY)
        for kind, units in (
            ("by examples", Units.by_value(label, prediction)),
            (f"by groups {OURS}", Units.groups(names)),
        ):
            statistic = Sums(units, margins(label, prediction), metrics_of_margins)
            whole = statistic.values(units.observed_weights())
            values = {name: float(whole[name][0]) for name in _TRUTH}
            for name, evidence in gather_evidence(statistic, values, resamples=_RESAMPLES, seed=number).items():
                assert evidence.distribution is not None and evidence.influence is not None
                defined = evidence.distribution[~np.isnan(evidence.distribution)]
                # also below the number of groups for which `Evidence.interval` gives an interval: this shows why
                low, high = bca(defined, evidence.value, evidence.influence, evidence.multiplicity)
                count(f"{name}: BCa, {kind}", low, high, _TRUTH[name])
    return {name: float(np.mean(found)) for name, found in sorted(hits.items())}
