"""One plan, from its configuration to what it prints."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from functools import partial
from typing import Any, cast

import psutil

from dist_eval.data.dataset import TokenizedDataset
from dist_eval.data.plan import Plan
from dist_eval.data.problem_types import REGRESSION
from dist_eval.distributed.collectives import all_gather, require_agreement
from dist_eval.errors import RunError
from dist_eval.evaluation.audit import AuditedModel, audited_batches
from dist_eval.evaluation.context import RunContext
from dist_eval.evaluation.runner import tokenize
from dist_eval.evaluation.task import EvalTask
from dist_eval.model.backbone import ModelOnBackbone
from dist_eval.model.backends import LoadedModel
from dist_eval.planning.config import PlanConfig
from dist_eval.planning.contents import cut_texts, label_counts, target_ranges, text_lengths
from dist_eval.planning.estimate import expected_time
from dist_eval.planning.probe import Probed, probe
from dist_eval.planning.record import HopValues, PlannedRun
from dist_eval.planning.table import format_plan
from dist_eval.process.output import lost_output
from dist_eval.runs.run_folder import NoFolder
from dist_eval.statistics.sampling import half_width

_ANSWERS = "answers"

PlanContext = RunContext[PlanConfig, NoFolder]


def plan_run(context: PlanContext) -> PlannedRun | None:
    """Describes a run, and estimates its time from a probe; every rank calls it."""
    with context:
        config, is_leader = context.config, context.topology.is_leader
        if not config.probe and not is_leader:
            return None
        task = EvalTask.of(config)
        if config.probe:
            context.open_swarm(task.base)
        context.publish_dataset(partial(tokenize, config, task))
        model = context.load_model(task.base, task.target) if config.probe else None
        data, plan = task.open_dataset(context.wait_for_dataset())
        probes: list[Probed] = []
        start_up = 0.0
        if model is not None:
            with context.process_group():
                require_agreement(task.fingerprint(config, data, plan).values)
                start_up = _seconds_since_launch()
                probes = all_gather(_probe(context, task, data, plan, model))
        if not is_leader:
            return None
        planned = _describe(context, task, data, plan, probes, start_up)
        text = json.dumps(planned.model_dump(mode="json"), indent=2) if config.json else format_plan(planned)
        print(text, flush=True)
        if why := lost_output():
            raise RunError(f"The plan cannot be printed: {why}.")
        return planned


def _probe(context: PlanContext, task: EvalTask, data: TokenizedDataset, plan: Plan, model: LoadedModel) -> Probed:
    config = context.config
    if context.topology.is_leader:
        print(f"probing for at most {config.probe_seconds:g} s ...", file=sys.stderr, flush=True)
    with context.rank_store.connect() as store:
        return probe(
            AuditedModel(cast(ModelOnBackbone, model), tolerance=config.audit_tolerance) if config.audit else model,
            *(data, plan, context.topology, context.window(task.base)),
            count=lambda answers: store.add(_ANSWERS, answers),
            longest=config.probe_seconds,
            skip_failed=config.on_error == "skip",
            audited=audited_batches(len(plan), config.audit),
        )


def _describe(
    context: PlanContext,
    task: EvalTask,
    data: TokenizedDataset,
    plan: Plan,
    probes: Sequence[Probed],
    start_up: float,
) -> PlannedRun:
    """Brings together what is known, with what each rank found in the probe, if there was one."""
    config, target = context.config, task.target
    width, tokens = task.base.config.hidden_size, int(plan.tokens.sum())
    deep = target.pre_seq_len if target.tuning_mode == "deep_ptune" else 0
    hop = HopValues(activations=tokens * width, prompts=len(plan) * deep * width)
    of_labels: tuple[Any, ...] = data.labels, target.label_names, target.problem
    margin = None
    if target.problem is not REGRESSION and not config.group_column:
        selection = data.facts.selection
        population = selection.population if selection and data.facts.sampling_fraction else None
        margin = half_width(data.facts.examples, config.confidence, population)
    return PlannedRun(
        ranks=context.topology.world_size,
        data=data.facts,
        confidence=config.confidence,
        half_width=margin,
        lengths=text_lengths(data.lengths),
        cut=cut_texts(data),
        labels=label_counts(*of_labels),
        targets=target_ranges(*of_labels),
        plan=plan.summary(),
        hop=hop if config.backend == "petals" else None,
        time=expected_time(probes, tokens, confidence=config.confidence, start_up=start_up) if probes else None,
    )


def _seconds_since_launch() -> float:
    """Returns how long ago this command was started: its only process, or the agent that started the ranks."""
    process = psutil.Process(os.getppid() if "TORCHELASTIC_RUN_ID" in os.environ else None)
    return time.time() - process.create_time()
