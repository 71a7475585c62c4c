"""One evaluation run, from its configuration to its report."""

from __future__ import annotations

from functools import cache, partial
from pathlib import Path
from typing import cast

import numpy as np

from dist_eval.analysis.options import AnalysisOptions, columns_asked_for
from dist_eval.data.collector import Columns
from dist_eval.data.dataset import TokenizedDataset
from dist_eval.data.plan import BatchPlan
from dist_eval.distributed.tracked_progress import Judged
from dist_eval.evaluation.audit import AuditedModel, audited_batches
from dist_eval.evaluation.context import RunContext
from dist_eval.evaluation.drive import RunOutput, decide_plan, drive
from dist_eval.evaluation.rescoring import (
    analysis_of,
    announce_selection,
    keep_recorded_analysis,
    rescore_complete,
)
from dist_eval.evaluation.scoring import Gathered, analysed, combine, score, scores_of, spread_of
from dist_eval.evaluation.task import EvalTask, write_dataset
from dist_eval.evaluation.worker import FailurePolicy
from dist_eval.metrics.catalogue import accuracy_names
from dist_eval.metrics.predictions import Predictions
from dist_eval.model.backbone import AnsweringModel, ModelOnBackbone
from dist_eval.options.config import EvaluationConfig
from dist_eval.options.groups import DataOptions
from dist_eval.petals.base_model.problem_types import exact_matches
from dist_eval.report.page import format_run, report_on
from dist_eval.results.inputs import FailedExample
from dist_eval.results.run import EvaluationResults
from dist_eval.results.work import RankResults
from dist_eval.runs.evaluation_folder import EvaluationFolder
from dist_eval.runs.journal import Journal

EvalContext = RunContext[EvaluationConfig, EvaluationFolder]


def evaluate_run(context: EvalContext) -> dict[str, float | None] | None:
    """Evaluates a classifier on a dataset; every rank calls it.

    Args:
        context: this rank's part of the run, not yet opened.

    Returns:
        On the leader the metrics by name, else None.

    Raises:
        EvaluationError: the run failed; on the rank that has the root cause.
        RunStopped: it was asked to stop before its end; on all ranks.
    """
    with context:
        config = keep_recorded_analysis(context)
        task = EvalTask.of(config)
        needs_model = not context.found_results
        if needs_model:
            context.open_swarm(task.base)
        context.publish_dataset(partial(tokenize, config, task))
        dataset = cache(lambda: task.open_dataset(context.wait_for_dataset()))
        context.claim(lambda: context.folder.claim(task.fingerprint(config, *dataset())))
        model = context.load_model(task.base, task.target) if needs_model else None
        if context.is_complete() or model is None:
            if not context.topology.is_leader:  # nor may it open the data, which end with a leader that is done
                return None
            return rescore_complete(context.folder, config, task.custom_metrics, dataset()[0])
        data = dataset()[0]
        announce_selection(context, data.facts.selection)
        share = 0.0 if config.audit else config.session_share
        plan = decide_plan(context, partial(task.plan, data), task.base, model, share)
        analysis = analysis_of(config, data) if context.topology.is_leader else AnalysisOptions()
        fingerprint = task.fingerprint(config, data, plan)
        journal = context.open_journal(plan, model.columns, fingerprint)
        window = context.window(task.base, plan)

        def columns_of(rows: np.ndarray, answers: np.ndarray) -> Columns:
            return Predictions.from_answers(rows, data.labels_of(rows), answers).columns

        problem = task.target.problem
        accuracies = accuracy_names(problem.name)

        def judge(rows: np.ndarray, answers: np.ndarray) -> Judged:
            return {accuracies[0]: exact_matches(data.labels_of(rows), problem.predict(answers["logits"]))}

        driven = drive(
            context,
            with_audit(model, config, journal),
            data,
            plan,
            fingerprint,
            journal,
            columns_of,
            window=window,
            audited=audited_batches(len(plan), config.audit),
            judge=judge if accuracies else None,
        )
        with context.process_group(), driven as local:
            gathered, work = combine(local)
            del local  # this rank's predictions, after a restart nearly all
        if context.topology.is_leader:
            return finish(context, task, data, plan, analysis, gathered, work)
        context.wait_for_results()
        return None


def with_audit(model: AnsweringModel, config: EvaluationConfig, journal: Journal) -> AnsweringModel:
    """Returns the model, of which some batches are audited if the options ask for that."""
    if not config.audit:
        return model
    return AuditedModel(cast(ModelOnBackbone, model), journal.exclude, config.audit_tolerance)


def finish(
    context: EvalContext,
    task: EvalTask,
    data: TokenizedDataset,
    plan: BatchPlan,
    analysis: AnalysisOptions,
    gathered: Gathered,
    work: RunOutput[RankResults],
) -> dict[str, float | None]:
    """Computes the metrics, and writes and prints the results; on the leader."""
    config, folder, predictions = context.config, context.folder, gathered.predictions
    if work.failed:
        FailurePolicy.of(config).require_few(len(work.failed), len(data), work.failed[-1][1])
    failed = (index for index, _ in work.failed)
    coverage, metrics = score(gathered, len(data), task.target.label_names, failed, data.rows)
    metrics, found = analysed(predictions, metrics, task.custom_metrics, analysis)
    results = EvaluationResults(
        **dict(scores_of(metrics)),
        **dict(found),
        **work.sections(plan, context.swarm),
        coverage=coverage,
        failures=[FailedExample(index=index, reason=reason) for index, reason in work.failed],
        data=data.facts,
        model=task.base.summary(task.target),
        spread=spread_of(work.ranks, metrics),
        audit=work.audit.summary(config.audit) if config.audit or work.audit else None,
    )
    folder.complete(predictions, results, analysis.groups(predictions))
    context.announce_results()
    context.log_results(folder.results())
    report_on(folder.path, config.report)
    print(format_run(folder.path), flush=True)
    return metrics.values


def tokenize(config: EvaluationConfig, task: EvalTask, folder: Path) -> None:
    """Writes the tokenized dataset to a folder, with the columns that the analysis needs."""
    extra_columns = columns_asked_for(config.slice_by, config.group_column)
    write_dataset(folder, config.select(DataOptions), task.base, task.target, extra_columns, task.selection)
