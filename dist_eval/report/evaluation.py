"""Describes an evaluation on a dataset: metrics, confusions, classes, calibration, slices, mistakes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from dist_eval.analysis.mistakes import worst_mistakes
from dist_eval.metrics.catalogue import OF_CLASS, lower_is_better, metric_names
from dist_eval.options.groups import DataOptions
from dist_eval.petals.base_model.problem_types import MULTI_LABEL, REGRESSION, SINGLE_LABEL
from dist_eval.report.classes import (
    calibration_sections,
    class_sections,
    confusion_sections,
    frequent_confusions,
    metric_table,
)
from dist_eval.report.document import Mistakes, Plot, ReportOptions, Rows, Section, Table, metric_number
from dist_eval.report.naming import dataset_name, name_of
from dist_eval.report.sections import (
    audit_lines,
    caveats,
    format_coverage,
    format_selection,
    metrics_shown,
    work_details,
)
from dist_eval.report.shown import ShownRun
from dist_eval.results.inputs import DatasetSummary, PromptSummary, have_same_selection
from dist_eval.results.run import CompleteRun
from dist_eval.runs.plots import POINTS, RELIABILITY, draw_scatter, plot_name
from dist_eval.runs.reading import FinishedRun
from dist_eval.tables import Footnotes, format_count

_LABELS_SHOWN, _METRICS_OF_A_SLICE = 10, 2
_AVERAGES = ("macro", "micro", "weighted")

# names of metrics on the hub, where they differ
_HUB_NAMES = {"mcc": "matthews_correlation", "pearson": "pearsonr", "spearman": "spearmanr"}
_AVERAGED = ("f1", "precision", "recall", "roc_auc_ovr", "average_precision")


class ShownEvaluation(ShownRun):
    """An evaluation on a dataset."""

    results: CompleteRun
    unit = "examples"

    def __init__(self, results: CompleteRun, folder: Path = Path()) -> None:
        super().__init__(results, folder)
        model, problem = results.model, results.problem_type
        self.kind = problem.replace("_", " ")
        self.model = (
            name_of(model.checkpoint, is_path=True) if model.checkpoint else name_of(model.base, model.base_is_path)
        )
        self.data = dataset_name(results.data)
        self.main_metrics = [*metric_names(problem, "compared"), *results.custom_metrics]
        self.slice_metrics = metric_names(problem, "slices")[:_METRICS_OF_A_SLICE]
        self.cards = [(name, name) for name in metric_names(problem, "cards")]
        self.plots = [plot_name(problem), *([RELIABILITY] if results.calibration else [])]
        self.weights = model.weights_digest

    @cached_property
    def _confusions(self) -> tuple[list[tuple[int, int, int]], int]:
        return frequent_confusions(self.results)

    def coverage(self) -> str:
        return format_coverage(self.results)

    def sections(self) -> list[Section]:
        results = self.results
        return [
            _metrics(results),
            *confusion_sections(results, *self._confusions),
            *_labels_and_predictions(FinishedRun(self.folder, results)),
            *class_sections(results),
            *calibration_sections(results),
        ]

    def find_mistakes(self, options: ReportOptions) -> Mistakes:
        """Lists the worst mistakes, including some of each of the most frequent confusions."""
        run, problem = FinishedRun(self.folder, self.results), self.results.problem_type
        confusions = [(row, column) for row, column, _ in self._confusions[0]]
        is_regression = problem == REGRESSION.name
        of_each_pair = options.most // (2 * max(1, len(confusions)))
        total, mistakes = worst_mistakes(run.predictions(), options.most, confusions, of_each_pair)
        texts = run.texts({mistake.index for mistake in mistakes}, options.dataset) if options.texts else {}
        score = "loss" if is_regression else "probability"
        rows = [
            [
                f"#{mistake.index}",
                _format_label(mistake.label, problem, self.results.label_names),
                _format_label(mistake.prediction, problem, self.results.label_names),
                f"{score} {mistake.score:.4g}",
                _cut(texts.get(mistake.index, ""), options.longest),
            ]
            for mistake in mistakes
        ]
        return Mistakes(
            "Largest errors" if is_regression else "Mistakes",
            _note(total, len(rows), options, of_each_pair if confusions else 0, is_regression=is_regression),
            rows,
            "true" if problem == SINGLE_LABEL.name else "label",
        )

    def details(self) -> dict[str, Any]:
        results, options = self.results, self.options
        data, model = results.data, results.model
        where_from = (dataset_name(data), options.get("subset"), options.get("split"))
        return {
            "base model": name_of(model.base, model.base_is_path),
            "LoRA adapter": model.adapter and name_of(model.adapter),
            "tuned checkpoint": model.checkpoint and name_of(model.checkpoint, is_path=True),
            **_prompt(model.prompt),
            "dataset": " ".join(part for part in where_from if part),
            "rows": format_selection(data.selection),
            "backend": _backend(options),
            "--max-length": _longest(data, is_given=bool(options.get("max_length"))),
            "custom metrics": ", ".join(options.get("metric") or ()),
            "--confidence": options.get("confidence"),
            "--group-column": options.get("group_column"),
            "--slice-by": ", ".join(options.get("slice_by") or ()),
            **work_details(results),
            "precision of the servers": ", ".join((results.swarm and results.swarm.precisions) or ()),
            "audit": "; ".join(line.removeprefix("audit: ") for line in audit_lines(results.audit)),
            "digest of texts and labels": data.text_digest,
        }

    def is_lower_better(self, metric: str) -> bool:
        return lower_is_better(metric)

    def has_data_of(self, other: ShownRun) -> bool:
        """Returns whether texts, labels and rows are the same.

        The recorded digest covers the texts with their prompt, and the labels' numbers. So with a prompt, or if models
        have the same classes in another order, the digests of columns and the numbers of examples by class decide.
        """
        if not isinstance(other, ShownEvaluation):
            return False
        one, another = self.results, other.results
        has_prompt = one.model.prompt is not None or another.model.prompt is not None
        by_columns = has_prompt or _have_classes_in_another_order(one, another)
        is_same = one.data.text_digest == another.data.text_digest or (
            by_columns and one.data.has_texts_of(another.data)
        )
        return one.problem_type == another.problem_type and have_same_selection(one.data, another.data) and is_same

    def entries(self) -> list[dict[str, Any]]:
        results = self.results
        part_words = f"({format_selection(results.data.selection)})" if results.data.selection else ""
        options = DataOptions.recorded_in(results.config)
        is_regression = results.problem_type == REGRESSION.name
        return [
            {
                "task_type": "text-regression" if is_regression else "text-classification",
                "dataset_type": self.data,
                "dataset_name": " ".join(
                    part for part in (self.data, options.subset, options.split, part_words) if part
                ),
                "dataset_config": options.subset,
                "dataset_split": options.split,
                "metric_type": _hub_name(name),
                "metric_name": name,
                "metric_value": results.metrics[name],
            }
            for name in metrics_shown(results)
        ]


def _hub_name(metric: str) -> str:
    stem = next((stem for stem in _AVERAGED if metric.startswith(f"{stem}_")), metric)
    return _HUB_NAMES.get(stem, "roc_auc" if stem.startswith("roc_auc") else stem)


def _have_classes_in_another_order(run: CompleteRun, other: CompleteRun) -> bool:
    first, second = ([(row.label, getattr(row, "support", None)) for row in each.per_class] for each in (run, other))
    return first != second and Counter(first) == Counter(second)


def _metrics(results: CompleteRun) -> Section:
    shown = metrics_shown(results)
    tables = [metric_table("", shown, results, summary_rows=len(shown)), *_averages(results)]
    in_tables = {*shown, *(f"{ratio}_{average}" for ratio in OF_CLASS for average in _AVERAGES)}
    others = [name for name in results.metrics if name not in in_tables]
    if others:
        tables.append(metric_table(f"{len(others)} more metrics", others, results, is_folded=True))
    if share := results.majority_share:
        majority = f"Always predicting the most frequent class would give an accuracy of {share:.4f}."
        tables[0] = replace(tables[0], notes=[*tables[0].notes, majority])
    return Section("Metrics", tables, notes=caveats(results))


def _averages(results: CompleteRun) -> list[Table]:
    """Returns the averages over classes or labels; none for a regression."""
    if results.problem_type == REGRESSION.name:
        return []
    notes = Footnotes()
    rows: Rows = [
        [average, *(metric_number(f"{ratio}_{average}", results, notes) for ratio in OF_CLASS)] for average in _AVERAGES
    ]
    caption = f"Averages over {'classes' if results.problem_type == SINGLE_LABEL.name else 'labels'}"
    return [Table(caption, ["average", *OF_CLASS], rows, notes.lines(), summary_rows=len(rows))]


def _labels_and_predictions(run: FinishedRun) -> list[Section]:
    if run.results.problem_type != REGRESSION.name:
        return []
    plot = Plot(
        "Labels (upwards) by prediction (to the right) of each output; on the dashed line they are equal",
        lambda: draw_scatter(run.results.label_names, *run.sample(POINTS)),
    )
    shown = min(POINTS, run.results.coverage.seen)
    return [Section("Labels and predictions", [plot], [f"{shown} of {run.results.coverage.seen} examples."])]


def _prompt(prompt: PromptSummary | None) -> dict[str, str]:
    """Describes the prompt and the label words of a language model."""
    if prompt is None:
        return {}
    return {
        "prompt": repr(prompt.template),
        "label words": ", ".join(map(repr, prompt.words)),
        "examples before each prompt": str(len(prompt.few_shot_rows) or ""),
        "--length-normalization": "" if prompt.length_normalization == "none" else prompt.length_normalization,
    }


def _backend(options: Mapping[str, Any]) -> str:
    """Returns the backend that ran the model's blocks, and the compression of activations."""
    words = "local: in each rank's own process" if options.get("backend") == "local" else "petals: on a swarm"
    compression = options.get("compression", "none")
    return words if compression == "none" else f"{words}, activations sent as {compression}"


def _longest(data: DatasetSummary, *, is_given: bool) -> str:
    words = f"{format_count(data.max_length, 'token')}" + ("" if is_given else " (by default)")
    return f"{words}; {format_count(data.truncated, 'text') if data.truncated else 'no texts'} cut"


def _note(total: int, shown: int, options: ReportOptions, of_each_pair: int, *, is_regression: bool) -> str:
    if not total:
        return "There are none."
    words = f"{format_count(total, 'mistake')}, the most confident first."
    if is_regression:
        words = f"{format_count(total, 'example')}, those with the largest loss first."
    if shown < total:
        which = f"The first {shown}"
        if of_each_pair:
            which = f"{shown} of them, including up to {of_each_pair} of each of the most frequent confusions,"
        words += f" {which} are in this file, all in predictions.parquet."
    if options.texts:
        return f"{words} Texts are cut after {options.longest} characters."
    return f"{words} Their texts are not in this file: dist-eval report RUN --texts adds them."


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else text[:longest] + " […]"


def _format_label(label: Any, problem: str, names: Sequence[str]) -> str:
    """Formats a label or a prediction: an int64, or an array of shape [num_labels] for several labels or outputs."""
    if problem == SINGLE_LABEL.name:
        return names[int(label)]
    if problem == MULTI_LABEL.name:
        present = [names[number] for number in np.flatnonzero(label).tolist()]
        more = [f"and {len(present) - _LABELS_SHOWN} more"] if len(present) > _LABELS_SHOWN else []
        return ", ".join([*present[:_LABELS_SHOWN], *more]) or "none"
    return ", ".join(f"{number:.6g}" for number in label[:_LABELS_SHOWN])
