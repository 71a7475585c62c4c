"""Puts the results of a run together from what was gathered, computed and looked up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np

from dist_eval.data.plan import BatchPlan
from dist_eval.data.problem_types import REGRESSION, SINGLE_LABEL
from dist_eval.evaluation.combination import throughput
from dist_eval.evaluation.drive import RunOutput
from dist_eval.metrics.computing import Metrics
from dist_eval.metrics.confusion import MOST_DENSE_CLASSES
from dist_eval.results.inputs import Coverage, DatasetSummary, FailedExample, ModelSummary
from dist_eval.results.run import EvaluationResults
from dist_eval.results.scores import MOST_CELLS, Analysis, ConfusionMatrix, ProblemType, Scores, SparseConfusionMatrix
from dist_eval.results.work import Audit, RankResults, Spread, Swarm


def results_of(
    work: RunOutput[RankResults],
    metrics: Metrics,
    analysis: Analysis,
    *,
    coverage: Coverage,
    data: DatasetSummary,
    model: ModelSummary,
    plan: BatchPlan,
    swarm: Swarm | None,
    audit: Audit | None,
) -> EvaluationResults:
    """Returns all sections of `results.json` that only a complete run has."""
    return EvaluationResults(
        **dict(scores_of(metrics)),
        **dict(analysis),
        coverage=coverage,
        failures=[FailedExample(index=index, reason=reason) for index, reason in work.failed],
        data=data,
        model=model,
        plan=plan.summary(),
        sessions=plan.sessions(work.fell_back),
        ranks=work.ranks,
        spread=_spread(work.ranks, metrics),
        throughput=throughput(work.ranks),
        swarm=swarm and swarm.model_copy(update={"precisions": work.precisions}),
        audit=audit,
    )


def scores_of(metrics: Metrics) -> Scores:
    """Returns the sections of `results.json` that hold metrics."""
    return Scores(
        problem_type=cast(ProblemType, metrics.problem),
        metrics=metrics.values,
        undefined=metrics.undefined,
        custom_metrics=metrics.custom,
        majority_share=metrics.majority_share,
        confusion_matrix=_confusion_matrix(metrics),
    )


def _spread(ranks: Sequence[RankResults], metrics: Metrics) -> Spread | None:
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
