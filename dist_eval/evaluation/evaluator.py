"""One evaluation run, from its configuration to its report."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import cast

import psutil
import torch

from dist_eval.analysis.options import AnalysisOptions, analyse, columns_asked_for
from dist_eval.data.dataset import TokenizedDataset, tokenize_dataset
from dist_eval.data.plan import Plan, plan_batches
from dist_eval.distributed.collectives import explaining_lost_ranks, process_group, require_agreement
from dist_eval.distributed.progress import Progress
from dist_eval.distributed.rank_store import RankStore, Topology
from dist_eval.distributed.stop import Stop
from dist_eval.errors import CheckpointError, ConfigError, RunError, first_line
from dist_eval.evaluation.audit import Audit, audited_batches
from dist_eval.evaluation.combination import (
    combine,
    compare_all,
    with_custom_metrics,
)
from dist_eval.evaluation.completed import rescore_complete, with_recorded_analysis
from dist_eval.evaluation.results import results_of
from dist_eval.evaluation.work import BatchWorker, FailurePolicy
from dist_eval.inference.window import Window, largest_window
from dist_eval.metrics.computing import Totals, compute_metrics, require_same_totals
from dist_eval.metrics.custom_metrics import CustomMetric
from dist_eval.metrics.metric_loading import load_metrics, synthetic_predictions
from dist_eval.metrics.predictions import prove_coverage
from dist_eval.model.backends import load_classifier, load_on_host, open_swarm
from dist_eval.model.base_model_spec import BaseModelSpec, EvalTarget, target_of
from dist_eval.model.classifier import Classifier
from dist_eval.model.pretrained_classifier import PretrainedClassifier
from dist_eval.options.config import EvaluationConfig, RunConfig
from dist_eval.report.page import report_on
from dist_eval.report.table import format_results
from dist_eval.runs.journal import Fingerprint, Journal
from dist_eval.runs.run_folder import RunFolder
from dist_eval.statistics.custom import statistics_of_functions

_OPENING_SECONDS = 120.0
_CLAIM, _TO_DO, _COMPLETE, _REPORTED = "claim", "to do", "complete", "reported"
_PREPARATION_SECONDS = 72 * 3600.0
"""Longest wait for the rank that tokenizes; if it dies, torchrun ends the waiting ranks at once. A hundred million long
texts take about a day."""


def evaluate_run(
    config: EvaluationConfig,
    topology: Topology,
    rank_store: RankStore,
    scratch_dir: Path,
    stop: Stop | None = None,
    folder: RunFolder | None = None,
) -> dict[str, float | None] | None:
    """Evaluates a classifier on a dataset; every rank calls it.

    Args:
        config: the run's options.
        topology: this process's place among the ranks.
        rank_store: the store shared by the ranks.
        scratch_dir: this rank's private folder for sockets and tokenized data (see `process.lifetime.workspace`).
        stop: tells whether the run was asked to stop.
        folder: the run's folder, if the caller wants to record how the run ended.

    Returns:
        On the leader the metrics by name, else None.

    Raises:
        EvaluationError: the run failed; on the rank that has the root cause.
        RunStopped: it was asked to stop before its end; on all ranks.
    """
    folder, stop = folder or RunFolder(config), stop or Stop()
    with ExitStack() as stack:
        if topology.is_leader:
            folder.open(topology.attempt)
            stack.callback(folder.close)
            rank_store.publish("opened", "")
        rank_store.wait_for("opened", _OPENING_SECONDS)
        folder.is_ours = True
        if topology.is_leader:
            config = with_recorded_analysis(config, folder.results())
            folder.config = config
        torch.set_num_threads(1)  # so that sums are added up in the same order on any number of ranks
        target = target_of(config)
        base = BaseModelSpec.of(config, target)
        custom_metrics = find_metrics(config, target)
        peers, check = stack.enter_context(open_swarm(config, base, topology, rank_store))
        if topology.is_host_leader:
            extra_columns = columns_asked_for(config)
            rank_store.publish(
                f"data/{topology.node}", str(prepare_data(config, base, target, scratch_dir, extra_columns))
            )
        prepared = open_plan(base, target, topology, rank_store) if topology.is_leader else None
        if prepared is not None:
            is_new = folder.claim(fingerprint_of(config, base, target, *prepared))
            complete = folder.results()
            is_new = is_new or (config.compare_backends and not (complete and complete.backends))
            rank_store.publish(_CLAIM, _TO_DO if is_new else _COMPLETE)
        classifier, swarm = load_classifier(config, base, target, peers, scratch_dir, check, topology=topology)
        stack.callback(classifier.close)
        if rank_store.wait_for(_CLAIM, _PREPARATION_SECONDS) == _COMPLETE:
            return rescore_complete(folder, config, custom_metrics, *prepared) if prepared else None
        local = load_on_host(base, target, topology) if config.compare_backends else None
        data, plan = prepared or open_plan(base, target, topology, rank_store)
        analysis_options = (
            AnalysisOptions.of(config, data) if topology.is_leader else AnalysisOptions()
        )  # checked now, so that an error shows before anything is sent
        run_id = fingerprint_of(config, base, target, data, plan).digest()
        journal = Journal(folder.path, plan.sizes, target.num_labels, rank=topology.rank, run=run_id)
        stack.callback(journal.close)
        window = window_for(config, base, topology)
        rank_store.barrier("ready", _PREPARATION_SECONDS)
        with (
            process_group(topology, rank_store, config.collective_timeout),
            folder.recording_stop(rank=topology.rank, host=topology.host, is_leader=topology.is_leader),
        ):
            require_agreement({"tuned checkpoint": target.digest(), "data": data.facts.digest, "plan": plan.digest()})
            audit = (
                Audit(cast(Classifier, classifier), journal.exclude, config.audit_tolerance) if config.audit else None
            )
            progress = Progress(
                *(topology, rank_store, len(data)),
                stop=stop,
                folder=folder.path,
                notice=classifier.notice,
                stall_timeout=config.collective_timeout,
            )
            failures = FailurePolicy(skip=config.on_error == "skip", limit=config.max_failed)
            work = BatchWorker(
                *(audit or classifier, data, plan, journal, progress, window, stop),
                drain_timeout=config.stop_grace,
                failures=failures,
                audited=audited_batches(len(plan), config.audit),
            )
            with progress.shown():
                stop.defer_signals()
                assigned_batches = work.run(topology, config.collective_timeout)
                backends = local and compare_all(local, data, plan, journal, assigned_batches, stop, rank_store)
                with explaining_lost_ranks(topology, rank_store, lambda: stop.reason):
                    combined = combine(work, assigned_batches, topology, classifier, custom_metrics, plan)
        if not topology.is_leader:
            if (
                topology.hosts > 1 and topology.is_host_leader
            ):  # a scheduler does not restart a host that has exited with 0, should the leader's fail
                rank_store.wait_for(_REPORTED, _PREPARATION_SECONDS)
            return None
        if combined.failed:
            failures.require_few(len(combined.failed), len(data), combined.failed[-1][1])
        coverage = prove_coverage(combined.predictions.index, len(data), (index for index, _ in combined.failed))
        require_same_totals(combined.totals, Totals.of(combined.predictions))
        metrics = compute_metrics(combined.predictions, target.label_names)
        if custom_metrics:
            metrics = with_custom_metrics(metrics, custom_metrics, combined)
        extra_statistics = statistics_of_functions(
            custom_metrics, combined.predictions, analysis_options.units(combined.predictions)
        )
        results = results_of(
            combined,
            metrics,
            analyse(combined.predictions, metrics, analysis_options, extra_statistics),
            coverage=coverage,
            data=data.facts,
            model=base.summary(target),
            plan=plan.summary(),
            swarm=swarm,
            audit=combined.audit.summary(config.audit) if config.audit or combined.audit else None,
            backends=backends.summary(folder.path) if backends else None,
        )
        folder.save_timelines(combined.timelines)
        folder.complete(combined.predictions, metrics, results, analysis_options.groups(combined.predictions))
        rank_store.publish(_REPORTED, "")
        report_on(folder.path, config.report)
        print(format_results(metrics, results.to_json(), folder.path), flush=True)
        return metrics.values


def find_metrics(config: EvaluationConfig, target: EvalTarget) -> list[CustomMetric]:
    """Loads the custom metrics and tries them on synthetic predictions (see `load_metrics`)."""
    if not config.metric:
        return []
    sample = synthetic_predictions(target.problem, target.num_labels)
    return load_metrics(
        config.metric, target.problem, target.num_labels, list(compute_metrics(sample, target.label_names).values)
    )


def open_plan(
    base: BaseModelSpec, target: EvalTarget, topology: Topology, rank_store: RankStore
) -> tuple[TokenizedDataset, Plan]:
    """Waits for this host's tokenized dataset, and plans the batches."""
    data = TokenizedDataset(Path(rank_store.wait_for(f"data/{topology.node}", _PREPARATION_SECONDS)))
    return data, plan_batches(data.lengths, token_budget=base.token_budget, prefix=target.pre_seq_len)


def fingerprint_of(
    config: EvaluationConfig, base: BaseModelSpec, target: EvalTarget, data: TokenizedDataset, plan: Plan
) -> Fingerprint:
    """Returns the inputs and options that a run's results depend on, by names for error messages."""
    return Fingerprint(
        {
            "base model": base.digest(),
            "tuned checkpoint": target.digest(),
            "names of the classes": json.dumps(target.label_names),
            "problem_type": target.problem.name,
            "tokenizer": data.facts.tokenizer_digest,
            "dataset": data.facts.text_digest,
            "--max-length": str(data.facts.max_length),
            "--token-budget": str(base.token_budget),
            "--compression": config.compression,
            "--backend": config.backend,
            "token ids": data.facts.digest,
            "plan": plan.digest(),
        }
    )


def window_for(config: RunConfig, base: BaseModelSpec, topology: Topology) -> Window:
    """Returns a rank's window of requests in flight, sized within its share of the host's memory."""
    memory = psutil.virtual_memory().available * topology.hosts // topology.world_size
    largest = largest_window(base.token_budget, base.config.hidden_size, memory)
    return Window(config.in_flight, largest=largest, timeout=config.request_timeout)


def prepare_data(
    config: RunConfig, base: BaseModelSpec, target: EvalTarget, folder: Path, extra_columns: Sequence[str] = ()
) -> Path:
    """Tokenizes the dataset into a folder, once for all ranks of a host, with extra columns such as groups."""
    from transformers import AutoTokenizer

    own_tokenizer = target.folder is not None and (target.folder / "tokenizer_config.json").exists()
    place = str(target.folder) if own_tokenizer else base.name
    try:
        tokenizer = AutoTokenizer.from_pretrained(place, trust_remote_code=False)
    except Exception as error:  # transformers raises OSError, ValueError, errors of tokenizers and of the hub's client
        also = "" if own_tokenizer or not target.folder else f" (the checkpoint {target.folder} has none of its own)"
        raise CheckpointError(f"There is no readable tokenizer in {place}{also}: {first_line(error)}") from error
    if (
        isinstance(target, PretrainedClassifier)
        and len(config.text_column) == 2
        and "token_type_ids" in tokenizer.model_input_names
        and getattr(base.config, "type_vocab_size", 0) > 1
    ):
        raise ConfigError(
            f"--text-column names two columns, but {base.name} tells the texts of a pair apart by token types, which "
            "dist_eval does not pass on."
        )
    try:
        tokenize_dataset(
            str(config.dataset),
            folder,
            tokenizer=tokenizer,
            text_columns=config.text_column,
            label_column=config.label_column,
            label_names=target.label_names,
            max_length=base.max_length,
            vocab_size=getattr(base.config, "vocab_size", None),
            labels=config.labels,
            problem=target.problem,
            strict=config.strict,
            extra_columns=extra_columns,
            subset=config.subset,
            split=config.split,
        )
    except OSError as error:
        raise RunError(
            f"The tokenized dataset cannot be written to {folder}: {os.strerror(error.errno or 0)}. Nothing was lost. "
            "Free some space, or name another place with the environment variable TMPDIR."
        ) from error
    return folder
