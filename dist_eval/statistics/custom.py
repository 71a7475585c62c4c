"""Custom metrics as statistics, if they are functions of all examples."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

import numpy as np

from dist_eval.metrics.custom_computing import custom_results
from dist_eval.metrics.custom_metrics import CustomMetric, Inputs
from dist_eval.metrics.predictions import PredictionsLike
from dist_eval.statistics.resampling import OfRows
from dist_eval.statistics.units import Units

_RESAMPLES_OF_A_FUNCTION = 199
"""Calls of a custom metric for its interval: few, because how long a call takes is unknown."""


def statistics_of_functions(
    metrics: Sequence[CustomMetric], predictions: PredictionsLike, units: Units
) -> list[OfRows]:
    """Builds statistics from custom metrics; those with a `reduction` are left out, as batches cannot be resampled.

    Args:
        metrics: the custom metrics.
        predictions: at least one example.
        units: the resampling units: single examples or groups.
    """
    functions = [metric for metric in metrics if metric.reduction is None]
    if not functions:
        return []
    inputs = Inputs.of(predictions)
    return [_statistic(metric, inputs, units) for metric in functions]


def _statistic(metric: CustomMetric, inputs: Inputs, units: Units) -> OfRows:
    @functools.lru_cache(maxsize=1)
    def figures(positions: bytes) -> Mapping[str, float | None]:
        return custom_results([metric], inputs.rows(np.frombuffer(positions, dtype=np.int64)), {}).values

    everything = figures(np.arange(len(inputs)).tobytes())
    names = {name: (lambda positions, name=name: figures(positions.tobytes()).get(name)) for name in everything}
    statistic = OfRows(units, names)
    statistic.most_resamples = _RESAMPLES_OF_A_FUNCTION
    return statistic
