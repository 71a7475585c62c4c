"""One evaluation run, from its configuration to its report."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import cast

from dist_eval.analysis.options import AnalysisOptions, analyse, columns_asked_for
from dist_eval.data.dataset import TokenizedDataset
from dist_eval.data.plan import Plan
from dist_eval.distributed.collectives import require_agreement
from dist_eval.distributed.progress import Progress
from dist_eval.evaluation.audit import AuditedModel, audited_batches
from dist_eval.evaluation.combination import Combined, combine, with_custom_metrics
from dist_eval.evaluation.rescoring import analysis_of, rescore_complete, with_recorded_analysis
from dist_eval.evaluation.results import results_of
from dist_eval.evaluation.scoring import score
from dist_eval.evaluation.session import Session
from dist_eval.evaluation.task import EvalTask, write_dataset
from dist_eval.evaluation.worker import BatchWorker, FailurePolicy
from dist_eval.model.backbone import ModelOnBackbone
from dist_eval.model.backends import LoadedModel
from dist_eval.options.config import EvaluationConfig
from dist_eval.options.groups import DataOptions
from dist_eval.report.page import report_on
from dist_eval.report.table import format_results, selection_words
from dist_eval.runs.evaluation_folder import EvaluationFolder
from dist_eval.runs.journal import Journal
from dist_eval.runs.journal_folder import recorded_session_tokens
from dist_eval.statistics.custom import statistics_of_functions

EvalSession = Session[EvaluationConfig, EvaluationFolder]


def evaluate_run(session: EvalSession) -> dict[str, float | None] | None:
    """Evaluates a classifier on a dataset; every rank calls it.

    Args:
        session: this rank's part of the run, not yet opened.

    Returns:
        On the leader the metrics by name, else None.

    Raises:
        EvaluationError: the run failed; on the rank that has the root cause.
        RunStopped: it was asked to stop before its end; on all ranks.
    """
    with session:
        config = keep_recorded_analysis(session)
        task = EvalTask.of(config)
        needs_model = not session.found_results
        if needs_model:
            session.open_swarm(task.base)
        session.publish_dataset(partial(tokenize, config, task))
        dataset = cache(lambda: task.open_dataset(session.wait_for_dataset()))
        session.claim(lambda: session.folder.claim(task.fingerprint(config, *dataset())))
        model = session.load_model(task.base, task.target) if needs_model else None
        data = dataset()[0]
        if session.is_complete() or model is None:
            if not session.topology.is_leader:
                return None
            plan = task.plan(data, recorded_session_tokens(session.folder.path) or 0)
            return rescore_complete(session.folder, config, task.custom_metrics, data, plan)
        announce_selection(session, data)
        share = 0.0 if config.audit else config.session_share
        plan = session.plan_with_sessions(partial(task.plan, data), task.base, model, share)
        run = Evaluation(session, task, data, plan, model)
        with session.process_group(), run.predicting() as worker:
            batches = worker.run(session.topology, config.collective_timeout)
            combined = combine(worker, batches, session.topology, model, task.custom_metrics, run.data, run.plan)
        if session.topology.is_leader:
            return run.finish(combined)
        run.wait_for_results()
        return None


class Evaluation:
    """The phases of an evaluation whose dataset and model are ready."""

    def __init__(
        self,
        session: EvalSession,
        task: EvalTask,
        data: TokenizedDataset,
        plan: Plan,
        model: LoadedModel,
    ) -> None:
        config, topology = session.config, session.topology
        self.session, self.task, self.data, self.plan, self.model = session, task, data, plan, model
        self.analysis = analysis_of(config, data) if topology.is_leader else AnalysisOptions()
        self.failures = FailurePolicy(skip=config.on_error == "skip", limit=config.max_failed)
        self.window = session.window(task.base, plan)
        self.fingerprint = task.fingerprint(config, data, plan)
        run_id = self.fingerprint.digest()
        self.journal = Journal(session.folder.path, plan.sizes, model.columns, rank=topology.rank, run=run_id)
        session.closing(self.journal)

    @contextmanager
    def predicting(self) -> Iterator[BatchWorker]:
        """Shows the progress of all ranks while this rank's worker is at work; every rank calls it."""
        session, config, model = self.session, self.session.config, self.model
        require_agreement(self.fingerprint.values)
        progress = Progress(
            *(session.topology, session.rank_store, len(self.data)),
            stop=session.stop,
            folder=session.folder.path,
            notice=model.notice,
            stall_timeout=config.collective_timeout,
        )
        worker = BatchWorker(
            self.audited_model() if config.audit else model,
            *(self.data, self.plan, self.journal, progress, self.window, session.stop),
            drain_timeout=config.stop_grace,
            failures=self.failures,
            audited=audited_batches(len(self.plan), config.audit),
            session_ranks=session.session_ranks,
        )
        with progress.shown():
            session.stop.defer_signals()
            yield worker

    def audited_model(self) -> AuditedModel:
        """Returns the model, of which some batches are audited."""
        return AuditedModel(
            cast(ModelOnBackbone, self.model), self.journal.exclude, self.session.config.audit_tolerance
        )

    def finish(self, combined: Combined) -> dict[str, float | None]:
        """Computes the metrics, and writes and prints the results; on the leader."""
        task, config, folder = self.task, self.session.config, self.session.folder
        predictions = combined.gathered.predictions
        if combined.failed:
            self.failures.require_few(len(combined.failed), len(self.data), combined.failed[-1][1])
        coverage, metrics = score(
            combined.gathered,
            len(self.data),
            task.target.label_names,
            (index for index, _ in combined.failed),
            self.data.rows,
        )
        if task.custom_metrics:
            metrics = with_custom_metrics(metrics, task.custom_metrics, combined)
        extra_statistics = statistics_of_functions(task.custom_metrics, predictions, self.analysis.units(predictions))
        results = results_of(
            combined,
            metrics,
            analyse(predictions, metrics, self.analysis, extra_statistics),
            coverage=coverage,
            data=self.data.facts,
            model=task.base.summary(task.target),
            plan=self.plan.summary(),
            sessions=self.plan.sessions(combined.fell_back),
            swarm=self.session.swarm,
            audit=combined.audit.summary(config.audit) if config.audit or combined.audit else None,
        )
        folder.save_timelines(combined.timelines)
        folder.complete(predictions, metrics, results, self.analysis.groups(predictions))
        self.session.publish_as_leader("results written", lambda: "")
        report_on(folder.path, config.report)
        print(format_results(results, folder.path), flush=True)
        return metrics.values

    def wait_for_results(self) -> None:
        """Waits on the other hosts until the leader has written the results.

        A scheduler does not restart a host that has exited with 0, should the leader's fail.
        """
        if self.session.topology.hosts > 1 and self.session.topology.is_host_leader:
            self.session.wait_for("results written")


def announce_selection(session: EvalSession, data: TokenizedDataset) -> None:
    """Says on the leader how many rows will be evaluated, if not all of them."""
    words = selection_words(data.facts)
    if words and session.topology.is_leader:
        precision = session.config.precision
        wide = f", for intervals of at most ±{precision:g} at {100 * session.config.confidence:g}%" if precision else ""
        print(f"evaluating {words}{wide}", flush=True)


def keep_recorded_analysis(session: EvalSession) -> EvaluationConfig:
    """Sets and returns the options: on the leader those of the analysis are a complete run's, unless they are given."""
    if session.topology.is_leader:
        session.config = with_recorded_analysis(session.config, session.folder.results())
        session.folder.options = session.config.recorded()
    return session.config


def tokenize(config: EvaluationConfig, task: EvalTask, folder: Path) -> None:
    """Writes the tokenized dataset to a folder, with the columns that the analysis needs."""
    extra_columns = columns_asked_for(config.slice_by, config.group_column)
    write_dataset(folder, config.only(DataOptions), task.base, task.target, extra_columns, task.selection)
