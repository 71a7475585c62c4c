"""Chooses the kind of evaluation on a dataset. Imports no large library until then."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dist_eval.evaluation.job import Job
    from dist_eval.options.config import EvaluationConfig


def kind_of(config: EvaluationConfig) -> type[Job[Any, Any]]:
    """Returns the class of the job that options ask for."""
    if config.generate:
        from dist_eval.evaluation.generation import Generation

        return Generation
    from dist_eval.evaluation.classification import Classification

    return Classification
