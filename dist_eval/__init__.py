"""Evaluates large language models hosted on a Petals swarm, exactly, on any number of processes.

    torchrun --nproc_per_node=4 -m dist_eval --model MODEL --checkpoint TUNED --dataset FILE --initial-peers ADDRESS...

The names below are the public API, together with the documented names of `dist_eval.demo`, `dist_eval.errors`,
`dist_eval.schema` and `dist_eval.statistics`, the command line options, and the files of a run: `results.json`, whose
schema has a version, and `predictions.parquet`. The public API is stable within a major version; everything else may
change at any time.

The names are imported on first use, so that importing the package is fast.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dist_eval.api.evaluate import evaluate
    from dist_eval.api.pipeline import PetalsPipeline
    from dist_eval.api.run import run, run_tasks
    from dist_eval.errors import EvaluationError
    from dist_eval.metrics.computing import Metrics, compute_metrics
    from dist_eval.metrics.predictions import Predictions, prove_coverage
    from dist_eval.options.config import EvaluationConfig
    from dist_eval.petals import (
        AutoDistributedModel,
        AutoDistributedModelForCausalLM,
        AutoDistributedModelForSequenceClassification,
        PrivateSwarm,
    )
    from dist_eval.petals.model.checkpoint import TunedCheckpoint
    from dist_eval.results.inputs import Coverage

_MODULES = {
    "AutoDistributedModel": "petals",
    "AutoDistributedModelForCausalLM": "petals",
    "AutoDistributedModelForSequenceClassification": "petals",
    "Coverage": "results.inputs",
    "EvaluationConfig": "options.config",
    "EvaluationError": "errors",
    "Metrics": "metrics.computing",
    "PetalsPipeline": "api.pipeline",
    "Predictions": "metrics.predictions",
    "PrivateSwarm": "petals",
    "TunedCheckpoint": "petals.model.checkpoint",
    "compute_metrics": "metrics.computing",
    "evaluate": "api.evaluate",
    "prove_coverage": "metrics.predictions",
    "run": "api.run",
    "run_tasks": "api.run",
}

__all__ = [
    "AutoDistributedModel",
    "AutoDistributedModelForCausalLM",
    "AutoDistributedModelForSequenceClassification",
    "Coverage",
    "EvaluationConfig",
    "EvaluationError",
    "Metrics",
    "PetalsPipeline",
    "Predictions",
    "PrivateSwarm",
    "TunedCheckpoint",
    "compute_metrics",
    "evaluate",
    "prove_coverage",
    "run",
    "run_tasks",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
