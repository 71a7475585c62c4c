"""Intervals of custom metrics."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

import numpy as np

from dist_eval.metrics.custom_metrics import CustomMetric, Inputs, custom_results
from dist_eval.metrics.predictions import PredictionsLike
from dist_eval.metrics.statistic import OfRows
from dist_eval.metrics.units import Units

# calls of a custom metric for its interval: few, because how long a call takes is unknown
_RESAMPLES = 199


def statistics_of_functions(
    metrics: Sequence[CustomMetric], predictions: PredictionsLike, units: Units
) -> list[OfRows]:
    """Returns custom metrics as statistics.

    Args:
        metrics: the custom metrics.
        predictions: at least one example.
        units: the resampling units: single examples or groups.
    """
    if not metrics:
        return []
    inputs = Inputs.of(predictions)
    return [_statistic(metric, inputs, units) for metric in metrics]


def _statistic(metric: CustomMetric, inputs: Inputs, units: Units) -> OfRows:
    @functools.lru_cache(maxsize=1)
    def values(positions: bytes) -> Mapping[str, float | None]:
        return custom_results([metric], inputs.rows(np.frombuffer(positions, dtype=np.int64))).values

    everything = values(np.arange(len(inputs)).tobytes())
    names = {name: (lambda positions, name=name: values(positions.tobytes()).get(name)) for name in everything}
    statistic = OfRows(units, names)
    statistic.most_resamples = _RESAMPLES
    return statistic
