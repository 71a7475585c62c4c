"""Classifies the rows of a dataset with a tuned head, a classifier of transformers, or label words."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import cast

import numpy as np

from dist_eval.analysis.options import AnalysisOptions, columns_asked_for
from dist_eval.data.collector import Columns
from dist_eval.data.dataset import TokenizedDataset
from dist_eval.data.plan import BatchPlan
from dist_eval.data.shared_prefixes import plan_with_shared_prefixes
from dist_eval.distributed.tracked_progress import Scored
from dist_eval.evaluation.audit import AuditedModel
from dist_eval.evaluation.inputs import (
    analysis_of,
    find_metrics,
    labelled_rows,
    require_room_after,
    selection_identity,
    selection_of,
    target_of,
    write_dataset,
)
from dist_eval.evaluation.job import Answered, Context, Job, Scorer, answer
from dist_eval.evaluation.printing import announce_selection, show_results
from dist_eval.evaluation.ranks import RunOutput
from dist_eval.evaluation.rescoring import rescore, with_new_scores
from dist_eval.evaluation.scoring import Gathered, analysed, gather, score, scores_of, spread_of
from dist_eval.evaluation.worker import FailurePolicy, RankOutput
from dist_eval.inference.models import AnsweringModel
from dist_eval.metrics.catalogue import accuracy_names
from dist_eval.metrics.computing import compute_metrics
from dist_eval.metrics.custom_metrics import CustomMetric
from dist_eval.metrics.predictions import Predictions
from dist_eval.metrics.totals import Totals
from dist_eval.model.backbone import ModelOnBackbone
from dist_eval.model.base_model_spec import BaseModelSpec, EvalTarget
from dist_eval.model.label_words import LabelWords
from dist_eval.options.config import EvaluationConfig
from dist_eval.options.groups import DataOptions, ModelOptions
from dist_eval.petals.base_model.problem_types import REGRESSION, exact_matches
from dist_eval.results.inputs import FailedExample
from dist_eval.results.run import CompleteRun, EvaluationResults
from dist_eval.results.work import RankResults
from dist_eval.runs.fingerprint import Fingerprint
from dist_eval.runs.saved_samples import read_predictions


class Classification(Job[TokenizedDataset, Gathered]):
    """Classifies a dataset, and computes the metrics that the options name."""

    target: EvalTarget

    def __init__(self, config: EvaluationConfig) -> None:
        super().__init__(config)
        self.audit, self.failures = config.audit, FailurePolicy.of(config)
        self.target = target_of(config)
        self.base = BaseModelSpec.read(config.select(ModelOptions), self.target)
        if config.few_shot and isinstance(self.target, LabelWords):
            require_room_after(config.few_shot, self.target.prompted.tokens_before(), self.base.max_length)
        self._selection = selection_of(config, config.confidence, self.target.problem)
        self._metrics = find_metrics(config.metric, self.target)

    def lead(self, context: Context) -> None:
        answered = answer(self, context)
        if answered is None:
            analysis = analysis_of(self.config, self.open(context.scratch_dir))
            compute = partial(rescored, self.config, self._metrics, analysis)
            rescore(context.folder, self.config, read_predictions, compute)
        else:
            self._finish(answered, context)

    def write(self, folder: Path) -> None:
        config = self.config
        extra_columns = columns_asked_for(config.slice_by, config.group_column)
        write_dataset(folder, config.select(DataOptions), self.base, self.target, extra_columns, self._selection)

    def read_rows(self) -> Iterator[int]:
        data, codes = labelled_rows(self.config.select(DataOptions), self.target), list[np.ndarray]()
        source = data.open()
        reader = data.label_reader(source)
        yield from data.read(source, lambda labels, first: codes.append(reader.codes(labels, first)))
        reader.ids(np.concatenate(codes))

    def open(self, folder: Path) -> TokenizedDataset:
        return TokenizedDataset(folder)

    def plan(self, data: TokenizedDataset, cache_tokens: int = 0) -> BatchPlan:
        return plan_with_shared_prefixes(
            data.lengths,
            token_budget=self.base.token_budget,
            cache_tokens=cache_tokens,
            prefixes=data.prefixes(),
            extra_tokens=self.target.extra_tokens,
            prompt_tokens=self.target.pre_seq_len,
            copies=self.target.forwards_per_text,
            rows=data.rows,
        )

    def fingerprint(self, data: TokenizedDataset, plan: BatchPlan) -> Fingerprint:
        return Fingerprint(
            {
                **self.base.identity(),
                "prompt and label words" if self.config.prompt else "tuned checkpoint": self.target.digest(),
                "names of the classes": json.dumps(self.target.label_names),
                "problem_type": self.target.problem.name,
                "tokenizer": data.facts.tokenizer_digest,
                "dataset": data.facts.text_digest,
                **selection_identity(data.facts.selection),
                **self.batch_identity(data.facts.max_length, data.facts.digest, plan),
            },
            {"dataset": data.file_digests()},
        )

    def begin(self, data: TokenizedDataset) -> None:
        self._analysis = analysis_of(self.config, data)
        announce_selection(self.config, data.facts.selection)

    def audited(self, model: AnsweringModel, exclude: Callable[[str], None]) -> AnsweringModel:
        return AuditedModel(cast(ModelOnBackbone, model), exclude, self.config.audit_tolerance)

    def columns(self, data: TokenizedDataset, positions: np.ndarray, answers: np.ndarray) -> Columns:
        return Predictions.from_answers(positions, data.labels_of(positions), answers).columns

    def scorer(self, data: TokenizedDataset) -> Scorer | None:
        problem = self.target.problem
        names = accuracy_names(problem.name)
        if not names:
            return None

        def scored(positions: np.ndarray, answers: np.ndarray) -> Scored:
            return {names[0]: exact_matches(data.labels_of(positions), problem.predict(answers["logits"]))}

        return scored

    def gather(self, local: RankOutput) -> tuple[Gathered, RunOutput[RankResults]]:
        predictions = Predictions(**local.columns)
        totals = Totals.of(predictions)
        entry = RankResults(
            **dict(local.work),
            combined=totals.samples,
            accuracy=None if predictions.problem is REGRESSION else totals.accuracy,
            loss=totals.mean_loss,
        )
        return gather(predictions, totals), RunOutput.gather(local, entry)

    def _finish(self, answered: Answered[TokenizedDataset, Gathered], context: Context) -> None:
        """Computes the metrics, and writes and shows the results."""
        data, gathered, work = answered.data, answered.found, answered.work
        failed = (index for index, _ in work.failed)
        coverage, metrics = score(gathered, len(data), self.target.label_names, failed, data.rows)
        predictions = self._analysis.grouped(gathered.predictions)
        metrics, found = analysed(predictions, metrics, self._metrics, self._analysis)
        results = EvaluationResults(
            **dict(scores_of(metrics)),
            **dict(found),
            **work.sections(answered.plan, context.swarm, self.audit),
            coverage=coverage,
            failures=[FailedExample(index=index, reason=reason) for index, reason in work.failed],
            data=data.facts,
            model=self.base.summary(self.target),
            spread=spread_of(work.ranks, metrics),
        )
        context.folder.complete(predictions, results)
        show_results(context.folder, self.config)


def rescored(
    config: EvaluationConfig,
    custom_metrics: Sequence[CustomMetric],
    analysis: AnalysisOptions,
    results: CompleteRun,
    predictions: Predictions,
) -> tuple[CompleteRun, Predictions]:
    """Returns newly scored results, and the predictions with their groups (see `rescore`)."""
    grouped, renewed = analysis.grouped(predictions), {metric.name for metric in custom_metrics}
    metrics, found = analysed(grouped, compute_metrics(grouped, results.label_names), custom_metrics, analysis)
    # None equals itself only
    is_regrouped = not np.array_equal(predictions.group, grouped.group)  # type: ignore[arg-type]
    new = with_new_scores(results, metrics, found, config, renewed=renewed, is_regrouped=is_regrouped)
    return new, grouped
