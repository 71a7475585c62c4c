"""One plan, from its configuration to what it prints."""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from functools import partial
from typing import Any, cast

import psutil

from dist_eval.data.answers import RouteSegment
from dist_eval.data.dataset import TokenizedDataset
from dist_eval.data.plan import Plan
from dist_eval.data.problem_types import REGRESSION
from dist_eval.distributed.collectives import all_gather, require_agreement
from dist_eval.errors import RunError
from dist_eval.evaluation.audit import AuditedModel, audited_batches
from dist_eval.evaluation.runner import tokenize
from dist_eval.evaluation.session import Session
from dist_eval.evaluation.task import EvalTask
from dist_eval.model.backbone import ModelOnBackbone
from dist_eval.model.backends import LoadedModel
from dist_eval.planning.config import PlanConfig
from dist_eval.planning.contents import cut_texts, label_counts, target_ranges, text_lengths
from dist_eval.planning.estimate import expected_time
from dist_eval.planning.probe import Probed, probe
from dist_eval.planning.record import HopValues, PlannedRun
from dist_eval.planning.table import format_plan
from dist_eval.planning.traffic import range_traffic
from dist_eval.process.output import lost_output
from dist_eval.runs.no_folder import NoFolder
from dist_eval.statistics.sampling import half_width

_ANSWERS = "answers"

PlanSession = Session[PlanConfig, NoFolder]


def plan_run(session: PlanSession) -> PlannedRun | None:
    """Describes a run, and estimates its time from a probe; every rank calls it.

    Args:
        session: this rank's part of the plan, not yet opened.

    Returns:
        On the leader the plan, which was printed, else None.

    Raises:
        EvaluationError: the run would fail before its first batch, or the probe failed.
    """
    with session:
        config, is_leader = session.config, session.topology.is_leader
        if not config.probe and not is_leader:
            return None
        task = EvalTask.of(config)
        if config.probe:
            session.open_swarm(task.base)
        session.publish_dataset(partial(tokenize, config, task))
        model = session.load_model(task.base, task.target) if config.probe else None
        data, plan = task.open_dataset(session.wait_for_dataset())
        probes: list[Probed] = []
        start_up = 0.0
        if model is not None:
            with session.process_group():
                require_agreement(task.fingerprint(config, data, plan).values)
                start_up = seconds_since_launch()
                probes = all_gather(probe_of(session, task, data, plan, model))
        if not is_leader:
            return None
        planned = planned_run(session, task, data, plan, probes, start_up)
        print(
            json.dumps(planned.model_dump(mode="json"), indent=2) if config.json else format_plan(planned), flush=True
        )
        if why := lost_output():
            raise RunError(f"The plan cannot be printed: {why}.")
        return planned


def probe_of(session: PlanSession, task: EvalTask, data: TokenizedDataset, plan: Plan, model: LoadedModel) -> Probed:
    """Sends this rank's batches of the probe (see `dist_eval.planning.probe`)."""
    config = session.config
    if session.topology.is_leader:
        print(f"probing for at most {config.probe_seconds:g} s ...", file=sys.stderr, flush=True)
    with session.rank_store.connect() as store:
        return probe(
            AuditedModel(cast(ModelOnBackbone, model), tolerance=config.audit_tolerance) if config.audit else model,
            *(data, plan, session.topology, session.window(task.base)),
            count=lambda answers: store.add(_ANSWERS, answers),
            longest=config.probe_seconds,
            skip_failed=config.on_error == "skip",
            audited=audited_batches(len(plan), config.audit),
        )


def planned_run(
    session: PlanSession,
    task: EvalTask,
    data: TokenizedDataset,
    plan: Plan,
    probes: list[Probed],
    start_up: float = 0.0,
) -> PlannedRun:
    """Brings together what is known.

    Args:
        session: the leader's part of the plan.
        task: what is evaluated.
        data: the dataset.
        plan: its batches.
        probes: what each rank found, empty without a probe.
        start_up: seconds until the probe began.
    """
    config, target = session.config, task.target
    hop = hop_values(task, plan) if config.backend == "petals" else None
    routes: Counter[RouteSegment] = sum((one.routes for one in probes), start=Counter())
    answers, tokens = [one.answers for one in probes], int(plan.tokens.sum())
    of_labels: tuple[Any, ...] = data.labels, target.label_names, target.problem
    return PlannedRun(
        ranks=session.topology.world_size,
        data=data.facts,
        confidence=config.confidence,
        half_width=_half_width(data, config) if target.problem is not REGRESSION else None,
        lengths=text_lengths(data.lengths),
        cut=cut_texts(data),
        labels=label_counts(*of_labels),
        targets=target_ranges(*of_labels),
        plan=plan.summary(),
        hop=hop,
        traffic=range_traffic(routes, hop, len(plan), config.compression) if hop else [],
        time=expected_time(answers, tokens, confidence=config.confidence, start_up=start_up) if answers else None,
    )


def _half_width(data: TokenizedDataset, config: PlanConfig) -> float | None:
    facts = data.facts
    population = facts.selection.population if facts.selection and facts.sampling_fraction else None
    return None if config.group_column else half_width(facts.examples, config.confidence, population)


def hop_values(task: EvalTask, plan: Plan) -> HopValues:
    """Counts the numbers that each server on the batches' route is sent."""
    width = task.base.config.hidden_size
    deep = task.target.pre_seq_len if task.target.tuning_mode == "deep_ptune" else 0
    return HopValues(activations=int(plan.tokens.sum()) * width, prompts=len(plan) * deep * width)


def seconds_since_launch() -> float:
    """Returns how long ago this command was started: its only process, or the agent that started the ranks."""
    process = psutil.Process(os.getppid() if "TORCHELASTIC_RUN_ID" in os.environ else None)
    return time.time() - process.create_time()
