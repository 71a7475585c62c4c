"""Runs a plan, from its configuration to its output."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

import psutil

from dist_eval.data.dataset import TokenizedDataset
from dist_eval.data.plan import BatchPlan
from dist_eval.distributed.collectives import all_gather, require_agreement
from dist_eval.errors import RunError
from dist_eval.evaluation.audit import audited_batches
from dist_eval.evaluation.context import RunContext
from dist_eval.evaluation.generation import Generation
from dist_eval.evaluation.job import Job
from dist_eval.evaluation.kinds import kind_of
from dist_eval.evaluation.requests import Requests
from dist_eval.model.base_model_spec import BaseModelSpec
from dist_eval.petals.base_model.problem_types import REGRESSION
from dist_eval.planning.config import PlanConfig
from dist_eval.planning.probe import expected_time, probe
from dist_eval.planning.record import (
    NetworkValues,
    PlannedRun,
    TimeEstimate,
    cut_texts,
    label_counts,
    target_ranges,
    text_lengths,
)
from dist_eval.planning.table import format_plan
from dist_eval.process.programs import lost_output
from dist_eval.results.inputs import SelectionSummary
from dist_eval.runs.run_folder import NoFolder
from dist_eval.statistics.sampling import half_width

_ANSWERS = "answers"

PlanContext = RunContext[PlanConfig, NoFolder]


def plan_run(context: PlanContext) -> PlannedRun | None:
    """Describes a run and estimates its time from a probe; every rank calls it."""
    with context:
        config, is_leader = context.config, context.topology.is_leader
        if not config.probe and not is_leader:
            return None
        job = kind_of(config)(config)
        if is_leader:
            job.prepare()
        if config.probe:
            context.open_swarm(job.base)
        if is_leader or job.each_host_reads:
            context.publish_dataset(job.write)
        time = _estimate(context, job) if config.probe else None
        if not is_leader:
            return None
        data = job.open(context.scratch_dir)
        sections = _of_texts(job, data) if isinstance(job, Generation) else _of_classes(job, data)
        planned = _planned(context, job.plan(data), job.base, examples=len(data), time=time, **sections)
        text = json.dumps(planned.model_dump(mode="json"), indent=2) if config.json else format_plan(planned)
        print(text, flush=True)
        if why := lost_output():
            raise RunError(f"The plan cannot be printed: {why}.")
        return planned


def _of_classes(job: Any, data: TokenizedDataset) -> dict[str, Any]:
    target, selection = job.target, data.facts.selection
    of_labels: tuple[Any, ...] = data.labels, target.label_names, target.problem
    return {
        "data": data.facts,
        "half_width": None if target.problem is REGRESSION else _half_width(job.config, len(data), selection),
        "lengths": text_lengths(data.lengths),
        "cut": cut_texts(data),
        "labels": label_counts(*of_labels),
        "targets": target_ranges(*of_labels),
        "outputs": len(data) * target.outputs_per_text,
        "prompt_tokens": target.pre_seq_len,
        "forwards": len(data) * target.forwards_per_text,
        "is_deep": target.tuning_mode == "deep_ptune",
    }


def _of_texts(job: Generation, data: Requests) -> dict[str, Any]:
    return {
        "data": job.dataset(),
        "prompts": data.prompts.facts,
        "half_width": _half_width(job.config, len(data), job.rows.selection),
        "lengths": text_lengths(job.rows.lengths),
        "outputs": len(data) * job.decoding.max_new_tokens,
    }


def _planned(
    context: PlanContext,
    plan: BatchPlan,
    base: BaseModelSpec,
    *,
    outputs: int,
    prompt_tokens: int = 0,
    forwards: int = 0,
    is_deep: bool = False,
    **sections: Any,
) -> PlannedRun:
    """Returns a plan, given the sections and numbers of its kind of run."""
    network, width = None, base.config.hidden_size
    ranks, tokens = context.topology.world_size, int(plan.tokens.sum())
    if context.config.backend == "petals":
        network = NetworkValues(
            ids=tokens - prompt_tokens * forwards,
            prompts=len(plan) * prompt_tokens * width,
            deep_prompts=is_deep * ranks * base.config.num_hidden_layers * prompt_tokens * width,
            outputs=outputs * width,
            activations=tokens * width,
        )
    return PlannedRun(
        ranks=ranks, confidence=context.config.confidence, plan=plan.summary(), network=network, **sections
    )


def _estimate(context: PlanContext, job: Job[Any, Any]) -> TimeEstimate:
    """Probes with all ranks and estimates the time of all batches."""
    config, model = context.config, context.load_model(job.base, job.target)
    with context.process_group():
        job.fetch(context)
        data = job.open(context.wait_for_dataset())
        plan = job.plan(data)
        require_agreement(job.fingerprint(data, plan).values)
        asked, start_up = job.asked(model, data, context), _seconds_since_launch()
        if context.topology.is_leader:
            print(f"probing for at most {config.probe_seconds:g} s ...", file=sys.stderr, flush=True)
        with context.rank_store.connect() as store:
            probed = probe(
                job.audited(asked, lambda server: None) if job.audit else asked,
                data,
                plan,
                context.topology,
                job.window(data, plan, context),
                count=lambda answers: store.add(_ANSWERS, answers),
                longest=config.probe_seconds,
                skip_failed=config.on_error == "skip",
                audited=audited_batches(len(plan), job.audit),
            )
        tokens = int(plan.tokens.sum())
        return expected_time(all_gather(probed), tokens, start_up=start_up)


def _half_width(config: PlanConfig, examples: int, selection: SelectionSummary | None) -> float | None:
    if config.group_column:
        return None
    population = selection.population if selection and selection.sampling_fraction else None
    return half_width(examples, config.confidence, population)


def _seconds_since_launch() -> float:
    """Returns the seconds since this command started: its only process, or the agent that started the ranks."""
    process = psutil.Process(os.getppid() if "TORCHELASTIC_RUN_ID" in os.environ else None)
    return time.time() - process.create_time()
