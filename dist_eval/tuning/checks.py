"""Evaluation between epochs, with the code of an evaluation run, in the same process and on the same connection."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dist_eval.data.dataset import TokenizedDataset
from dist_eval.data.plan import plan_batches, shard_batches
from dist_eval.distributed.collectives import all_gather
from dist_eval.distributed.stop import Stop, common_reason
from dist_eval.errors import RunStopped
from dist_eval.evaluation.context import RunContext
from dist_eval.evaluation.scoring import gather, score
from dist_eval.inference.forward import predict_batches
from dist_eval.metrics.computing import Metrics
from dist_eval.metrics.predictions import Predictions
from dist_eval.model.base_model_spec import BaseModelSpec
from dist_eval.model.classifier import Classifier
from dist_eval.tuning.config import TuningConfig
from dist_eval.tuning.folder import TuningFolder


def evaluate_classifier(
    context: RunContext[TuningConfig, TuningFolder],
    base: BaseModelSpec,
    classifier: Classifier,
    data: TokenizedDataset,
    *,
    stopping: Callable[[], bool],
) -> Metrics | None:
    """Evaluates a classifier as an evaluation run does; every rank calls it."""
    topology = context.topology
    plan = plan_batches(data.lengths, token_budget=base.token_budget, extra_tokens=classifier.tuned.pre_seq_len)
    numbers = shard_batches(len(plan), rank=topology.rank, world_size=topology.world_size)
    outcomes = predict_batches(
        classifier,
        data,
        plan,
        numbers,
        window=context.window(base),
        stopping=stopping,
        drain_timeout=context.config.stop_grace,
    )
    parts = [Predictions.empty(classifier.num_labels)]
    for outcome in outcomes:
        rows = plan.batch(outcome.batch)
        parts.append(Predictions.from_answers(rows, np.asarray(data.labels)[rows], outcome.answers))
    require_no_stop(context.stop, "during an evaluation")
    gathered = gather(Predictions.concatenate(parts))
    return score(gathered, len(data), classifier.tuned.label_names)[1] if topology.is_leader else None


def require_no_stop(stop: Stop, when: str) -> None:
    """Raises `RunStopped` on all ranks if any of them was asked to stop; every rank calls it."""
    reason = common_reason(all_gather(stop.reason))
    if reason:
        stop.request(reason)
        raise RunStopped(f"stopped {when}, because {reason}: start the same command again to resume from there", None)
