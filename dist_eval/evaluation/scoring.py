"""From the predictions of all ranks to the metrics of all examples: the same steps in every kind of evaluation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from dist_eval.distributed.collectives import gather_columns, sum_arrays
from dist_eval.metrics.computing import Metrics, compute_metrics
from dist_eval.metrics.predictions import Predictions, prove_coverage
from dist_eval.metrics.totals import Totals, require_same_totals
from dist_eval.results.inputs import Coverage


@dataclass(frozen=True)
class Gathered:
    """The predictions of all ranks.

    Attributes:
        predictions: of all examples, in dataset order; empty except on the leader.
        totals: the ranks' own sums, added up by all_reduce.
    """

    predictions: Predictions
    totals: Totals


def gather(local: Predictions) -> Gathered:
    """Gathers the predictions of all ranks on the leader, and adds up their totals; every rank calls it."""
    predictions = Predictions(**gather_columns(local.columns))
    return Gathered(predictions, Totals(**sum_arrays(vars(Totals.of(local)))))


def score(
    gathered: Gathered,
    examples: int,
    label_names: Sequence[str],
    failed: Iterable[int] = (),
    rows: np.ndarray | None = None,
) -> tuple[Coverage, Metrics]:
    """Computes the metrics, once it is proven that they are those of each example, counted once; on the leader.

    Args:
        gathered: the predictions of all ranks.
        examples: number of examples in the dataset.
        label_names: name of each class, label or output.
        failed: positions in the dataset of the examples without a prediction.
        rows: their positions in the dataset, if they are only some of its rows (see `prove_coverage`).

    Raises:
        CoverageError: an example is missing, or counted more than once.
        ExactnessError: the totals of the ranks and of the gathered predictions differ.
    """
    coverage = prove_coverage(gathered.predictions.index, examples, failed, rows)
    require_same_totals(gathered.totals, Totals.of(gathered.predictions))
    return coverage, compute_metrics(gathered.predictions, label_names)
