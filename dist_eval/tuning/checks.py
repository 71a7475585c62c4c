"""Evaluation between epochs, with the code of an evaluation run, in the same process and on the same connection."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dist_eval.data.dataset import TokenizedDataset
from dist_eval.data.plan import Plan, shard_batches
from dist_eval.distributed.collectives import all_gather
from dist_eval.distributed.rank_store import Topology
from dist_eval.distributed.stop import Stop, common_reason
from dist_eval.errors import RunStopped
from dist_eval.evaluation.scoring import gather, score
from dist_eval.inference.forward import predict_batches
from dist_eval.inference.window import Window
from dist_eval.metrics.computing import Metrics
from dist_eval.metrics.predictions import Predictions
from dist_eval.model.classifier import Classifier


def evaluate_classifier(
    classifier: Classifier,
    data: TokenizedDataset,
    plan: Plan,
    topology: Topology,
    window: Window,
    stop: Stop,
    drain_timeout: float,
    *,
    stopping: Callable[[], bool],
) -> Metrics | None:
    """Evaluates a classifier as an evaluation run does; every rank calls it.

    Args:
        classifier: the model.
        data: the tokenized examples to evaluate on.
        plan: all batches of them.
        topology: this process's place among the ranks.
        window: how many batches may be in flight at a time.
        stop: holds the reason to stop.
        drain_timeout: seconds to wait for batches in flight once the run was asked to stop.
        stopping: returns whether to stop.

    Returns:
        The metrics on the leader, None elsewhere.

    Raises:
        RunStopped: a rank was asked to stop; on all ranks.
        EvaluationError: the examples could not be predicted, or totals that are computed twice differ.
    """
    numbers = shard_batches(len(plan), rank=topology.rank, world_size=topology.world_size)
    outcomes = predict_batches(
        classifier, data, plan, numbers, window=window, stopping=stopping, drain_timeout=drain_timeout
    )
    parts = [Predictions.empty(classifier.num_labels)]
    for outcome in outcomes:
        rows = plan.batch(outcome.batch)
        parts.append(Predictions.from_answers(rows, np.asarray(data.labels)[rows], outcome.answers))
    require_no_stop(stop, "during an evaluation")
    local = Predictions.concatenate(parts)
    gathered = gather(local)
    return score(gathered, len(data), classifier.tuned.label_names)[1] if topology.is_leader else None


def require_no_stop(stop: Stop, when: str) -> None:
    """Raises `RunStopped` on all ranks if any of them was asked to stop; every rank calls it.

    Args:
        stop: this rank's request to stop.
        when: how far the run is, for the message.
    """
    reason = common_reason(all_gather(stop.reason))
    if reason:
        stop.request(reason)
        raise RunStopped(f"stopped {when}, because {reason}: start the same command again to resume from there", None)
