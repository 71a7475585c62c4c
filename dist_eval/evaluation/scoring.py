"""Computes metrics, and their sections of `results.json`, from the predictions of all ranks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np

from dist_eval.analysis.options import AnalysisOptions, analyse
from dist_eval.distributed.collectives import gather_columns, sum_arrays
from dist_eval.metrics.computing import Metrics, compute_metrics
from dist_eval.metrics.confusion import MOST_DENSE_CLASSES
from dist_eval.metrics.custom_metrics import CustomMetric, MetricInputs, custom_results
from dist_eval.metrics.predictions import Predictions, prove_coverage
from dist_eval.metrics.totals import Totals, require_same_totals
from dist_eval.petals.base_model.problem_types import REGRESSION, SINGLE_LABEL
from dist_eval.results.inputs import Coverage
from dist_eval.results.scores import MOST_CELLS, Analysis, ConfusionMatrix, ProblemType, Scores, SparseConfusionMatrix
from dist_eval.results.work import RankResults, Spread
from dist_eval.statistics.metrics import statistics_of_functions


@dataclass(frozen=True)
class Gathered:
    """The predictions of all ranks."""

    predictions: Predictions  # of all examples, in dataset order; empty except on the leader
    totals: Totals  # the sums of all ranks, added by all_reduce


def gather(local: Predictions, totals: Totals | None = None) -> Gathered:
    """Gathers the predictions of all ranks on the leader, and adds their totals; every rank calls it."""
    predictions = Predictions(**gather_columns(local.columns))
    return Gathered(predictions, Totals(**sum_arrays(vars(totals or Totals.of(local)))))


def score(
    gathered: Gathered,
    examples: int,
    label_names: Sequence[str],
    failed: Iterable[int] = (),
    rows: np.ndarray | None = None,
) -> tuple[Coverage, Metrics]:
    """Proves that every example is counted exactly once, and computes the metrics; on the leader.

    `examples` is the number of examples in the dataset; `failed` and `rows` are positions in it, as in
    `prove_coverage`. Raises CoverageError if an example is missing or counted more than once, and ExactnessError if the
    totals of the ranks and of the gathered predictions differ.
    """
    coverage = prove_coverage(gathered.predictions.index, examples, failed, rows)
    require_same_totals(gathered.totals, Totals.of(gathered.predictions))
    return coverage, compute_metrics(gathered.predictions, label_names)


def _with_custom_metrics(metrics: Metrics, custom_metrics: Sequence[CustomMetric], predictions: Predictions) -> Metrics:
    if not custom_metrics:  # probabilities take much memory
        return metrics
    custom = custom_results(custom_metrics, MetricInputs.of(predictions))
    return replace(
        metrics,
        values={**metrics.values, **custom.values},
        undefined={**metrics.undefined, **custom.undefined},
        custom=list(custom.values),
    )


def analysed(
    predictions: Predictions, metrics: Metrics, custom_metrics: Sequence[CustomMetric], options: AnalysisOptions
) -> tuple[Metrics, Analysis]:
    """Adds custom metrics to those of predictions, and analyses all of them."""
    metrics = _with_custom_metrics(metrics, custom_metrics, predictions)
    extra_statistics = statistics_of_functions(custom_metrics, predictions)
    return metrics, analyse(predictions, metrics, options, extra_statistics)


def scores_of(metrics: Metrics) -> Scores:
    """Returns the sections of `results.json` with metrics."""
    return Scores(
        problem_type=cast(ProblemType, metrics.problem),
        metrics=metrics.values,
        undefined=metrics.undefined,
        custom_metrics=metrics.custom,
        majority_share=metrics.majority_share,
        confusion_matrix=_confusion_matrix(metrics),
    )


def spread_of(ranks: Sequence[RankResults], metrics: Metrics) -> Spread | None:
    """Returns the section `spread` of `results.json`: how much the values of single ranks differ."""
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


def _confusion_matrix(metrics: Metrics) -> ConfusionMatrix | SparseConfusionMatrix | None:
    if metrics.problem == REGRESSION.name:
        return None
    if metrics.problem != SINGLE_LABEL.name or len(metrics.label_names) <= MOST_DENSE_CLASSES:
        return ConfusionMatrix(labels=metrics.label_names, matrix=metrics.confusion.tolist())
    cells = metrics.cells.tocoo()
    kept = np.sort(np.argsort(-cells.data, kind="stable")[:MOST_CELLS])
    return SparseConfusionMatrix(
        labels=metrics.label_names,
        cells=np.stack([cells.row, cells.col, cells.data], axis=1)[kept].tolist(),
        omitted=int(cells.data.sum() - cells.data[kept].sum()),
    )
