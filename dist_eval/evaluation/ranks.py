"""What ranks exchange: the plan of the batches before a run, and what each has done after it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from dist_eval.data.plan import BatchPlan
from dist_eval.distributed.collectives import all_gather
from dist_eval.evaluation.context import RunContext
from dist_eval.evaluation.worker import RankOutput
from dist_eval.inference.models import AnsweringModel
from dist_eval.model.backbone import ModelOnBackbone
from dist_eval.model.base_model_spec import BaseModelSpec
from dist_eval.petals.base_model.config import session_tokens
from dist_eval.petals.client.findings import Findings
from dist_eval.petals.client.records import Swarm
from dist_eval.results.work import RankWork, Throughput
from dist_eval.runs.journal import record_plan, recorded_cache_tokens, require_recorded_plan

_SHORTEST_SECONDS = 1e-3

Entry = TypeVar("Entry", bound=RankWork)


@dataclass(frozen=True)
class RunOutput(Generic[Entry]):
    """What all ranks did."""

    ranks: list[Entry]  # entries of the section `ranks` of `results.json`
    failed: list[tuple[int, str]]  # samples without an answer and the reasons, in the order of the data
    audit: Findings
    precisions: list[str]
    fell_back: int

    @classmethod
    def gather(cls, local: RankOutput, entry: Entry) -> RunOutput[Entry]:
        """Gathers what all ranks did; every rank calls it, in an open process group."""
        return cls(
            ranks=all_gather(entry),
            failed=sorted(itertools.chain.from_iterable(all_gather(local.failed))),
            audit=Findings.merged(all_gather(local.findings)),
            precisions=sorted(set[str]().union(*all_gather(local.precisions))),
            fell_back=sum(all_gather(local.fell_back)),
        )

    def sections(self, plan: BatchPlan, swarm: Swarm | None, audit: float) -> dict[str, Any]:
        """Returns the sections of `results.json` about the work, by name; `audit` is the share of batches to audit."""
        seconds = max(max(work.seconds for work in self.ranks), _SHORTEST_SECONDS)
        return {
            "plan": plan.summary(),
            "sessions": plan.sessions(self.fell_back),
            "ranks": self.ranks,
            "throughput": Throughput(
                seconds=seconds,
                examples_per_second=sum(work.samples for work in self.ranks) / seconds,
                tokens_per_second=sum(work.tokens for work in self.ranks) / seconds,
            ),
            "swarm": swarm and swarm.model_copy(update={"precisions": self.precisions}),
            "audit": self.audit.summary(audit) if audit or self.audit else None,
        }


def decide_plan(
    context: RunContext[Any, Any],
    make_plan: Callable[[int], BatchPlan],
    base: BaseModelSpec,
    model: AnsweringModel,
    share: float,
) -> BatchPlan:
    """Plans the batches, identically in all starts of the run; every rank calls it.

    Texts share prefixes if the servers have room for enough sessions: with few, servers would wait longer than the
    saved work takes. This is decided once for a run, and recorded in the journal's folder. The number of sessions does
    not affect results.

    `make_plan` returns the plan for caches of a number of tokens (see `plan_with_shared_prefixes`). All ranks together
    may take the `share` of the servers' free cache.
    """
    plain = make_plan(0)
    can_share = context.config.backend == "petals" and base.shares_prefixes
    if not can_share or not isinstance(model, ModelOnBackbone):
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
            if not room.pays(plan.gain):
                return "0 0"
            record_plan(folder, plan.shared.cache_tokens, plan.digest())
        return f"{plan.shared.cache_tokens} {room.sessions}"

    context.publish_as_leader("sessions", decide)
    tokens, sessions = map(int, context.wait_for("sessions").split())
    if not tokens:
        return plain
    backbone.open_sessions(context.topology.share_of(sessions))
    return replace(make_plan(tokens), sharing_ranks=min(sessions, context.topology.world_size))
