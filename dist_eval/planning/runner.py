"""One plan, from its configuration to what it prints."""

from __future__ import annotations

import json
import os
import sys
import time
from functools import partial
from typing import Any, cast

import psutil

from dist_eval.data.plan import BatchPlan
from dist_eval.distributed.collectives import all_gather, require_agreement
from dist_eval.errors import RunError
from dist_eval.evaluation.audit import AuditedModel, audited_batches
from dist_eval.evaluation.context import RunContext
from dist_eval.evaluation.generation import GenerationTask
from dist_eval.evaluation.requests import Requests, fingerprint_of, open_requests, requested_model, window_of_requests
from dist_eval.evaluation.runner import tokenize
from dist_eval.evaluation.task import EvalTask
from dist_eval.inference.forward import TextModel, Texts
from dist_eval.inference.in_flight import Window
from dist_eval.model.backbone import ModelOnBackbone
from dist_eval.model.base_model_spec import BaseModelSpec
from dist_eval.model.language_model import CausalModel, LanguageModel
from dist_eval.model.output_embedding import OutputEmbedding
from dist_eval.options.groups import ModelOptions
from dist_eval.petals.base_model.problem_types import REGRESSION
from dist_eval.planning.config import PlanConfig
from dist_eval.planning.probe import expected_time, probe
from dist_eval.planning.record import (
    HopValues,
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
    """Describes a run, and estimates its time from a probe; every rank calls it."""
    with context:
        config = context.config
        if not config.probe and not context.topology.is_leader:
            return None
        planned = _plan_generation(context) if config.generate else _plan_classification(context)
        if planned is None:
            return None
        text = json.dumps(planned.model_dump(mode="json"), indent=2) if config.json else format_plan(planned)
        print(text, flush=True)
        if why := lost_output():
            raise RunError(f"The plan cannot be printed: {why}.")
        return planned


def _plan_classification(context: PlanContext) -> PlannedRun | None:
    config, task = context.config, EvalTask.of(context.config)
    if config.probe:
        context.open_swarm(task.base)
    context.publish_dataset(partial(tokenize, config, task))
    model = context.load_model(task.base, task.target) if config.probe else None
    data, plan = task.open_dataset(context.wait_for_dataset())
    time = None
    if model is not None:
        asked: TextModel = model
        if config.audit:
            asked = AuditedModel(cast(ModelOnBackbone, model), tolerance=config.audit_tolerance)
        with context.process_group():
            require_agreement(task.fingerprint(config, data, plan).values)
            time = _estimate(context, asked, data, plan, context.window(task.base))
    if not context.topology.is_leader:
        return None
    target = task.target
    of_labels: tuple[Any, ...] = data.labels, target.label_names, target.problem
    return _planned(
        context,
        plan,
        task.base,
        examples=len(data),
        data=data.facts,
        half_width=None if target.problem is REGRESSION else _half_width(config, len(data), data.facts.selection),
        lengths=text_lengths(data.lengths),
        cut=cut_texts(data),
        labels=label_counts(*of_labels),
        targets=target_ranges(*of_labels),
        deep=target.pre_seq_len if target.tuning_mode == "deep_ptune" else 0,
        time=time,
    )


def _plan_generation(context: PlanContext) -> PlannedRun | None:
    config, target = context.config, CausalModel.read(str(context.config.model))
    base, task = BaseModelSpec.read(config.select(ModelOptions), target), None
    if context.topology.is_leader:
        OutputEmbedding(base.name, base.config)
        task = GenerationTask(config, base, target)
        context.publish_dataset(task.write)
    time = None
    if config.probe:
        context.open_swarm(base)
        model = cast(LanguageModel, context.load_model(base, target))
        with context.process_group():
            data = open_requests(context)
            plan = data.plan(base.token_budget)
            require_agreement(fingerprint_of(config, base, data, plan).values)
            window = window_of_requests(context, base, data, plan)
            time = _estimate(context, requested_model(model, data, base, context), data, plan, window)
    if task is None:
        return None
    data = Requests(context.scratch_dir)
    plan = data.plan(base.token_budget)
    return _planned(
        context,
        plan,
        base,
        examples=len(data),
        data=task.dataset(),
        prompts=data.prompts.facts,
        half_width=_half_width(config, len(data), task.rows.selection),
        lengths=text_lengths(task.rows.lengths),
        time=time,
    )


def _planned(
    context: PlanContext, plan: BatchPlan, base: BaseModelSpec, *, deep: int = 0, **sections: Any
) -> PlannedRun:
    """Returns a plan, given what depends on the kind of run, and the number of deep prompts."""
    hop, width = None, base.config.hidden_size
    if context.config.backend == "petals":
        hop = HopValues(activations=int(plan.tokens.sum()) * width, prompts=len(plan) * deep * width)
    return PlannedRun(
        ranks=context.topology.world_size,
        confidence=context.config.confidence,
        plan=plan.summary(),
        hop=hop,
        **sections,
    )


def _estimate(context: PlanContext, model: TextModel, data: Texts, plan: BatchPlan, window: Window) -> TimeEstimate:
    """Probes with all ranks, and estimates the time of all batches."""
    config, start_up = context.config, _seconds_since_launch()
    if context.topology.is_leader:
        print(f"probing for at most {config.probe_seconds:g} s ...", file=sys.stderr, flush=True)
    with context.rank_store.connect() as store:
        probed = probe(
            *(model, data, plan, context.topology, window),
            count=lambda answers: store.add(_ANSWERS, answers),
            longest=config.probe_seconds,
            skip_failed=config.on_error == "skip",
            audited=audited_batches(len(plan), config.audit),
        )
    tokens = int(plan.tokens.sum())
    return expected_time(all_gather(probed), tokens, confidence=config.confidence, start_up=start_up)


def _half_width(config: PlanConfig, examples: int, selection: SelectionSummary | None) -> float | None:
    if config.group_column:
        return None
    population = selection.population if selection and selection.sampling_fraction else None
    return half_width(examples, config.confidence, population)


def _seconds_since_launch() -> float:
    """Returns how long ago this command was started: its only process, or the agent that started the ranks."""
    process = psutil.Process(os.getppid() if "TORCHELASTIC_RUN_ID" in os.environ else None)
    return time.time() - process.create_time()
