"""Brings together the predictions of all ranks: every rank calls `combine`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from dist_eval.data.problem_types import REGRESSION
from dist_eval.evaluation.drive import RankOutput, RunOutput
from dist_eval.evaluation.scoring import Gathered, gather
from dist_eval.metrics.computing import Metrics
from dist_eval.metrics.custom_metrics import CustomMetric, Inputs, custom_results
from dist_eval.metrics.predictions import Predictions, PredictionsLike
from dist_eval.metrics.totals import Totals
from dist_eval.results.work import RankResults, RankWork, Throughput

_SHORTEST_SECONDS = 1e-3


@dataclass(frozen=True)
class Combined:
    """The results of all ranks."""

    gathered: Gathered  # the predictions of all ranks, on the leader only, and their totals
    work: RunOutput[RankResults]  # what all ranks did


def combine(found: RankOutput) -> Combined:
    """Combines the results of all ranks; every rank calls it."""
    local = Predictions(**found.columns)
    totals = Totals.of(local)
    entry = RankResults(
        **dict(found.work),
        combined=totals.samples,
        accuracy=None if local.problem is REGRESSION else totals.accuracy,
        loss=totals.mean_loss,
    )
    return Combined(gather(local), RunOutput.gather(found, entry))


def with_custom_metrics(
    metrics: Metrics, custom_metrics: Sequence[CustomMetric], predictions: PredictionsLike
) -> Metrics:
    """Adds the values of custom metrics, computed from all predictions."""
    if not custom_metrics:  # probabilities take much memory
        return metrics
    custom = custom_results(custom_metrics, Inputs.of(predictions))
    return replace(
        metrics,
        values={**metrics.values, **custom.values},
        undefined={**metrics.undefined, **custom.undefined},
        custom=list(custom.values),
    )


def throughput(ranks: Sequence[RankWork]) -> Throughput:
    """Returns the section `throughput` of `results.json`: all ranks' work over the slowest rank's time."""
    seconds = max(max(work.seconds for work in ranks), _SHORTEST_SECONDS)
    return Throughput(
        seconds=seconds,
        examples_per_second=sum(work.samples for work in ranks) / seconds,
        tokens_per_second=sum(work.tokens for work in ranks) / seconds,
    )
