"""Brings together what all ranks found and did, from their journals: every rank calls `combine`."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from dist_eval.data.collector import Columns
from dist_eval.data.dataset import TokenizedDataset
from dist_eval.data.plan import Plan
from dist_eval.data.problem_types import REGRESSION
from dist_eval.distributed.collectives import all_gather
from dist_eval.distributed.rank_store import Topology
from dist_eval.evaluation.scoring import Gathered, gather
from dist_eval.evaluation.worker import BatchWorker
from dist_eval.metrics.computing import Metrics, Totals
from dist_eval.metrics.custom_computing import ReducedMetrics, custom_results, reduce_batches
from dist_eval.metrics.custom_metrics import CustomMetric, Inputs
from dist_eval.metrics.predictions import Predictions
from dist_eval.model.backends import LoadedModel
from dist_eval.results.work import RankResults, RankTimeline, RankWork, Spread, Throughput
from dist_eval.swarm.findings import Findings

_SHORTEST_SECONDS = 1e-3


@dataclass(frozen=True)
class Combined:
    """The results of all ranks.

    Attributes:
        gathered: the predictions of all ranks, on the leader only, and their totals.
        failed: examples without a prediction: position in the dataset, and the reason.
        ranks: each rank's entry in the section `ranks` of `results.json`.
        audit: the findings of all audits.
        precisions: in which the servers computed that gave the answers.
        timelines: each rank's entry in `timeline.json`.
        metrics: custom metrics with a reduction, reduced over all batches; on the leader only.
        fell_back: batches that took plain forwards instead of a session.
    """

    gathered: Gathered
    failed: list[tuple[int, str]]
    ranks: list[RankResults]
    audit: Findings
    precisions: list[str]
    timelines: list[RankTimeline]
    metrics: ReducedMetrics
    fell_back: int


def combine(
    worker: BatchWorker,
    batches: np.ndarray,
    topology: Topology,
    classifier: LoadedModel,
    custom_metrics: Sequence[CustomMetric],
    data: TokenizedDataset,
    plan: Plan,
) -> Combined:
    """Combines the results in the journals; every rank calls it, with its assigned batches."""

    def predictions_of(rows: np.ndarray, answers: np.ndarray) -> Columns:
        return Predictions.from_answers(rows, data.labels_of(rows), answers).columns

    columns, failed, findings, precisions = worker.collect(batches, predictions_of)
    local = Predictions(**columns)
    totals = Totals.of(local)
    contributed = RankResults(
        **dict(worker.work(topology, classifier.traffic())),
        combined=totals.samples,
        accuracy=None if local.problem is REGRESSION else totals.accuracy,
        loss=totals.mean_loss,
    )
    timeline = RankTimeline(
        rank=topology.rank,
        host=topology.host,
        batches=worker.timeline.bins(),
        servers={peer: timeline.bins() for peer, timeline in classifier.timelines().items()},
    )
    reduced: ReducedMetrics = {}
    if any(metric.reduction for metric in custom_metrics):
        ordered = local.in_dataset_order()
        reduced = reduce_batches(
            custom_metrics,
            lambda places: Inputs.of(ordered.at(places)),
            ordered.index,
            plan,
            batches,
            all_gather,
            leads=topology.is_leader,
        )
    return Combined(
        gathered=gather(local),
        failed=sorted(itertools.chain.from_iterable(all_gather(failed))),
        ranks=all_gather(contributed),
        audit=Findings.merged(all_gather(findings)),
        precisions=sorted(set[str]().union(*all_gather(precisions))),
        timelines=all_gather(timeline),
        metrics=reduced,
        fell_back=sum(all_gather(worker.fell_back)),
    )


def with_custom_metrics(metrics: Metrics, custom_metrics: Sequence[CustomMetric], combined: Combined) -> Metrics:
    """Adds the values of custom metrics."""
    needs_all = any(metric.reduction is None for metric in custom_metrics)  # probabilities take much memory
    predictions = combined.gathered.predictions
    inputs = Inputs.of(predictions if needs_all else predictions.rows(0, 0))
    custom = custom_results(custom_metrics, inputs, combined.metrics)
    return replace(
        metrics,
        values={**metrics.values, **custom.values},
        undefined={**metrics.undefined, **custom.undefined},
        custom=list(custom.values),
    )


def spread(ranks: Sequence[RankResults], metrics: Metrics) -> Spread | None:
    """Returns the section `spread` of `results.json`: how far the ranks' own values are apart."""
    is_regression = metrics.problem == REGRESSION.name
    values = [(rank.loss if is_regression else rank.accuracy, rank.rank) for rank in ranks]
    own = [(value, number) for value, number in values if value is not None]
    if len(own) < 2:
        return None
    (lowest, lowest_rank), (highest, highest_rank) = min(own), max(own)
    return Spread(
        figure="loss" if is_regression else "accuracy",
        lowest=lowest,
        lowest_rank=lowest_rank,
        highest=highest,
        highest_rank=highest_rank,
        mean=sum(value for value, _ in own) / len(own),
    )


def throughput(ranks: Sequence[RankWork]) -> Throughput:
    """Returns the section `throughput` of `results.json`: all ranks' work over the slowest rank's time."""
    seconds = max(max(work.seconds for work in ranks), _SHORTEST_SECONDS)
    return Throughput(
        seconds=seconds,
        examples_per_second=sum(work.samples for work in ranks) / seconds,
        tokens_per_second=sum(work.tokens for work in ranks) / seconds,
    )
