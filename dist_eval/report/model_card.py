"""A run as the `model-index` of a Hugging Face model card. Nothing is uploaded."""

from __future__ import annotations

from huggingface_hub import EvalResult, ModelCardData

from dist_eval.errors import RunError
from dist_eval.options.groups import DataOptions
from dist_eval.petals.base_model.problem_types import REGRESSION
from dist_eval.report.naming import dataset_name
from dist_eval.report.sections import format_selection, metrics_shown
from dist_eval.results.run import CompleteHarnessRun, CompleteRun

# Names of metrics on the hub that differ from those here
_TYPES = {"mcc": "matthews_correlation", "pearson": "pearsonr", "spearman": "spearmanr"}

_AVERAGED = ("f1", "precision", "recall", "roc_auc_ovr", "average_precision")


def model_index(results: CompleteRun | CompleteHarnessRun, model_name: str) -> str:
    """Builds the metadata of a model card."""
    eval_results = _task_results(results) if isinstance(results, CompleteHarnessRun) else _dataset_results(results)
    if not eval_results:
        raise RunError("All metrics of this run are undefined: there is nothing for a model card.")
    return ModelCardData(model_name=model_name, eval_results=eval_results).to_yaml() + "\n"


def _task_results(results: CompleteHarnessRun) -> list[EvalResult]:
    return [
        EvalResult(
            task_type="text-generation",
            dataset_type=name,
            dataset_name=name,
            metric_type=metric.metric,
            metric_name=metric.key,
            metric_value=metric.value,
        )
        for name, metric in [*results.task_metrics, *results.group_metrics]
        if metric.value is not None
    ]


def _dataset_results(results: CompleteRun) -> list[EvalResult]:
    part_words = f"({format_selection(results.data.selection)})" if results.data.selection else ""
    options, dataset = DataOptions.recorded_in(results.config), dataset_name(results.data)
    is_regression = results.problem_type == REGRESSION.name
    return [
        EvalResult(
            task_type="text-regression" if is_regression else "text-classification",
            dataset_type=dataset,
            dataset_name=" ".join(part for part in (dataset, options.subset, options.split, part_words) if part),
            dataset_config=options.subset,
            dataset_split=options.split,
            metric_type=_metric_type(name),
            metric_name=name,
            metric_value=results.metrics[name],
        )
        for name in metrics_shown(results)
        if results.metrics[name] is not None
    ]


def _metric_type(name: str) -> str:
    stem = next((stem for stem in _AVERAGED if name.startswith(f"{stem}_")), name)
    return _TYPES.get(stem, "roc_auc" if stem.startswith("roc_auc") else stem)
