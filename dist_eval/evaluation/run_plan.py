"""The plan of a run, and whether batches whose texts begin alike are computed in sessions, which keep the beginning.

The leader decides that once for a run, and records it in the journal's folder. What a session is, only the model and
the swarm know; that texts share a beginning, the plan says; and the rest of a run does not care.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from dist_eval.base_model.config import session_tokens
from dist_eval.data.plan import BatchPlan
from dist_eval.evaluation.context import RunContext
from dist_eval.model.backbone import ModelOnBackbone
from dist_eval.model.backends import LoadedModel
from dist_eval.model.base_model_spec import BaseModelSpec
from dist_eval.runs.journal_folder import record_plan, recorded_cache_tokens, require_recorded_plan

# Least gain of sessions, with the share of servers that they keep busy: plain forwards keep all of them busy
_WORTHWHILE = 1.2


def decide_plan(
    context: RunContext[Any, Any],
    make_plan: Callable[[int], BatchPlan],
    base: BaseModelSpec,
    model: LoadedModel,
    share: float,
) -> BatchPlan:
    """Plans the batches; every rank calls it.

    Texts share their beginning if the servers have room for so many sessions that less work outweighs servers that
    wait. How many there are changes no result.

    Args:
        context: this rank's part of the run.
        make_plan: returns the plan for caches of a number of tokens (see `plan_with_shared_beginnings`).
        base: the base model.
        model: gets this rank's part of the sessions.
        share: of the servers' free memory that all ranks together may take, 0 to 1.

    Returns:
        The plan, the same in all starts of the run.

    Raises:
        RunError: the folder holds a part of a run that was planned otherwise, or its record cannot be read.
    """
    plain = make_plan(0)
    if context.config.backend != "petals" or not isinstance(model, ModelOnBackbone):
        return plain
    folder, backbone = context.folder.path, model.backbone

    def decide() -> str:
        recorded = recorded_cache_tokens(folder)
        plan = make_plan(session_tokens(base.config) if recorded is None else recorded)
        if recorded:
            require_recorded_plan(folder, plan.digest())
        if plan.shared is None:
            return "0 0"
        room = backbone.room_for_sessions(share, plan.shared.largest_cache)
        if recorded is None:
            if plan.gain * room.busy < _WORTHWHILE:
                return "0 0"
            record_plan(folder, plan.shared.cache_tokens, plan.digest())
        return f"{plan.shared.cache_tokens} {room.sessions}"

    context.publish_as_leader("sessions", decide)
    tokens, sessions = map(int, context.wait_for("sessions").split())
    if not tokens:
        return plain
    rank, ranks = context.topology.rank, context.topology.world_size
    backbone.open_sessions(sessions // ranks + (rank < sessions % ranks))
    return replace(make_plan(tokens), sharing_ranks=min(sessions, ranks))
