"""Puts the results of a run together from what was gathered, computed and looked up."""

from __future__ import annotations

from typing import cast

from dist_eval.evaluation.combination import Combined, spread, throughput
from dist_eval.metrics.computing import Metrics
from dist_eval.results.inputs import Coverage, DatasetSummary, FailedExample, ModelSummary, PlanSummary, SessionsSummary
from dist_eval.results.run import EvaluationResults
from dist_eval.results.scores import Analysis, ConfusionMatrix, ProblemType, Scores
from dist_eval.results.work import Audit, BackendComparison, Swarm


def results_of(
    combined: Combined,
    metrics: Metrics,
    analysis: Analysis,
    *,
    coverage: Coverage,
    data: DatasetSummary,
    model: ModelSummary,
    plan: PlanSummary,
    sessions: SessionsSummary | None,
    swarm: Swarm | None,
    audit: Audit | None,
    backends: BackendComparison | None,
) -> EvaluationResults:
    """Returns all sections of `results.json` that only a complete run has.

    Args:
        combined: the results of all ranks.
        metrics: of the predictions.
        analysis: of the predictions.
        coverage: the proof that they cover the dataset.
        data: the dataset.
        model: the model.
        plan: the batches.
        sessions: what was planned for sessions, None without any.
        swarm: the servers, None without a swarm.
        audit: the findings of the audits, None without any.
        backends: the comparison of the backends, None without one.
    """
    return EvaluationResults(
        **dict(scores_of(metrics)),
        **dict(analysis),
        coverage=coverage,
        failures=[FailedExample(index=index, reason=reason) for index, reason in combined.failed],
        data=data,
        model=model,
        plan=plan,
        sessions=sessions,
        ranks=combined.ranks,
        spread=spread(combined.ranks, metrics),
        throughput=throughput(combined.ranks),
        swarm=swarm and swarm.model_copy(update={"precisions": combined.precisions}),
        audit=audit,
        backends=backends,
    )


def scores_of(metrics: Metrics) -> Scores:
    """Returns the sections of `results.json` that hold metrics."""
    matrix = None
    if metrics.confusion.size:
        matrix = ConfusionMatrix(labels=metrics.label_names, matrix=metrics.confusion.tolist())
    return Scores(
        problem_type=cast(ProblemType, metrics.problem),
        metrics=metrics.values,
        undefined=metrics.undefined,
        custom_metrics=metrics.custom,
        majority_share=metrics.majority_share,
        confusion_matrix=matrix,
    )
