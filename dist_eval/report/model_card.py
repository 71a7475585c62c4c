"""Formats a run as the `model-index` of a Hugging Face model card. Uploads nothing."""

from __future__ import annotations

from huggingface_hub import EvalResult, ModelCardData

from dist_eval.errors import RunError
from dist_eval.report.kinds import shown_run
from dist_eval.results.run import AnyCompleteRun


def model_index(results: AnyCompleteRun, model_name: str) -> str:
    """Builds the metadata of a model card."""
    entries = [EvalResult(**entry) for entry in shown_run(results).entries() if entry["metric_value"] is not None]
    if not entries:
        raise RunError("All metrics of this run are undefined, so a model card would be empty.")
    return ModelCardData(model_name=model_name, eval_results=entries).to_yaml() + "\n"
