"""An evaluation on a dataset, as a document: metrics, confusions, classes, calibration, slices, mistakes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from dist_eval.data.problem_types import MULTI_LABEL, REGRESSION, SINGLE_LABEL
from dist_eval.metrics.catalogue import OF_CLASS, OF_OUTPUT, metric_names
from dist_eval.metrics.formatting import format_interval, format_metric
from dist_eval.report.confusions import LABEL_WIDTH, confusion_sections, find_mistakes, frequent_confusions
from dist_eval.report.document import (
    Document,
    Number,
    Plot,
    ReportOptions,
    Rows,
    Section,
    Table,
    metric_card,
    metric_number,
)
from dist_eval.report.naming import base_name, checkpoint_name, dataset_name, name_of, options_of
from dist_eval.report.sections import (
    audit_lines,
    caveats,
    failure_sections,
    format_coverage,
    format_selection,
    format_speed,
    metrics_shown,
    slice_sections,
    work_details,
    work_section,
)
from dist_eval.results.inputs import DatasetSummary, PromptSummary
from dist_eval.results.run import CompleteRun
from dist_eval.results.scores import Calibration, CalibrationBin, ClassResults, OutputResults
from dist_eval.runs.files import PREDICTIONS, RESULTS
from dist_eval.runs.plots import POINTS, RELIABILITY, draw_reliability, draw_scatter, plot_name
from dist_eval.runs.reading import FinishedRun
from dist_eval.tables import Footnotes, format_count

_LABELS_SHOWN, _LONG_TABLE, _ROWS_IN_SUMMARY, _METRICS_OF_A_SLICE = 10, 40, 30, 2
_AVERAGES = ("macro", "micro", "weighted")


def describe_evaluation(run: FinishedRun, options: ReportOptions) -> Document:
    """Describes a run."""
    results = run.results
    confusions, kinds = frequent_confusions(results)
    sections = [
        _metrics(results),
        *confusion_sections(results, confusions, kinds),
        *_labels_and_predictions(run),
        *_classes(results),
        *_calibration(results),
        *slice_sections(results.slices, metric_names(results.problem_type, "slices")[:_METRICS_OF_A_SLICE]),
        work_section(results, "examples", with_hosts=options.texts),
        *failure_sections(results.failures),
    ]
    return Document(
        title=run.folder.resolve().name,
        kind=results.problem_type.replace("_", " "),
        model=checkpoint_name(results.model) or base_name(results.model),
        data=dataset_name(results.data),
        facts=[format_coverage(results), format_speed(results, "examples")],
        files=[RESULTS, PREDICTIONS, plot_name(results.problem_type), *([RELIABILITY] if results.calibration else [])],
        cards=[metric_card(name, name, results) for name in metric_names(results.problem_type, "cards")],
        sections=sections,
        find_mistakes=lambda: find_mistakes(run, [(row, column) for row, column, _ in confusions], options),
        details=_details(results),
    )


def _metrics(results: CompleteRun) -> Section:
    shown = metrics_shown(results)
    tables = [_metric_table("", shown, results, summary_rows=len(shown)), *_averages(results)]
    in_tables = {*shown, *(f"{ratio}_{average}" for ratio in OF_CLASS for average in _AVERAGES)}
    others = [name for name in results.metrics if name not in in_tables]
    if others:
        tables.append(_metric_table(f"{len(others)} more metrics", others, results, is_folded=True))
    if share := results.majority_share:
        majority = f"Always guessing the most frequent class would have an accuracy of {share:.4f}."
        tables[0] = replace(tables[0], notes=[*tables[0].notes, majority])
    return Section("Metrics", tables, notes=caveats(results))


def _averages(results: CompleteRun) -> list[Table]:
    """Returns the averages over classes or labels; none of the outputs of a regression."""
    if results.problem_type == REGRESSION.name:
        return []
    notes = Footnotes()
    rows: Rows = [
        [average, *(metric_number(f"{ratio}_{average}", results, notes) for ratio in OF_CLASS)] for average in _AVERAGES
    ]
    caption = f"Averages over {'classes' if results.problem_type == SINGLE_LABEL.name else 'labels'}"
    return [Table(caption, ["average", *OF_CLASS], rows, notes.lines(), summary_rows=len(rows))]


def _metric_table(caption: str, names: Sequence[str], results: CompleteRun, **options: Any) -> Table:
    notes = Footnotes()
    rows: Rows = [[name, metric_number(name, results, notes)] for name in names]
    columns = ["metric", f"value [{100 * results.confidence:g} % interval]"]
    return Table(caption, columns, rows, notes.lines(), **options)


def _labels_and_predictions(run: FinishedRun) -> list[Section]:
    if run.results.problem_type != REGRESSION.name:
        return []
    plot = Plot(
        "Labels (upwards) by prediction (to the right) of each output; on the dashed line they are equal",
        lambda: draw_scatter(run.results.label_names, *run.sample(POINTS)),
    )
    shown = min(POINTS, run.results.coverage.seen)
    return [Section("Labels and predictions", [plot], [f"{shown} of {run.results.coverage.seen} examples."])]


def _classes(results: CompleteRun) -> list[Section]:
    is_regression, notes = results.problem_type == REGRESSION.name, Footnotes()
    if is_regression and len(results.per_class) < 2:
        return []
    what = "output" if is_regression else "label" if results.problem_type == MULTI_LABEL.name else "class"
    columns = OF_OUTPUT if is_regression else (*OF_CLASS, "support")
    rows: Rows = [[row.label, *(_class_number(name, row, notes) for name in columns)] for row in results.per_class]
    table = Table(
        f"By {what}, with {100 * results.confidence:g} % intervals",
        [what, *columns],
        rows,
        notes.lines(),
        is_folded=len(rows) > _LONG_TABLE,
        summary_rows=_ROWS_IN_SUMMARY,
        values_caption=f"By {what}",
        longest_text=LABEL_WIDTH,
    )
    return [Section(f"By {what}", [table])]


def _class_number(name: str, row: ClassResults | OutputResults, notes: Footnotes) -> Number:
    value, interval = getattr(row, name), getattr(row.intervals, name, None)  # the support has none
    text = "-" if value is None else str(value) if name == "support" else format_metric(name, value)
    return Number(text, "" if interval is None else format_interval(name, interval, notes))


def _calibration(results: CompleteRun) -> list[Section]:
    calibration = results.calibration
    if calibration is None:
        return []
    rows = calibration.per_label or []
    means = ", means over the labels" if rows else ""
    parts: list[Table | Plot] = [
        _metric_table(f"Expected calibration error and Brier score{means}", ["ece", "brier"], results),
        Plot("Reliability diagram: accuracy by mean confidence, with intervals", lambda: draw_reliability(calibration)),
        *_bin_tables(calibration),
    ]
    if rows:
        numbers: Rows = [[row.label, Number(f"{row.ece:.4f}"), Number(f"{row.brier:.4f}")] for row in rows]
        parts.insert(1, Table("Calibration by label", ["label", "ece", "brier"], numbers))
    ideal = "a label is there as often as the model says" if rows else "the model is right as often as it says"
    return [Section("Calibration", parts, [f"On the dashed line of a diagram, {ideal}."])]


def _bin_tables(calibration: Calibration) -> list[Table]:
    if calibration.bins is not None:
        return [_bin_table("Reliability by confidence", ("confidence", "accuracy"), calibration.bins)]
    return [
        _bin_table(f"Reliability of {row.label}", ("probability", "share of positives"), row.bins, is_folded=True)
        for row in (calibration.per_label or [])[:_LABELS_SHOWN]
    ]


def _bin_table(caption: str, heads: tuple[str, str], bins: Sequence[CalibrationBin], **options: Any) -> Table:
    notes = Footnotes()
    rows: Rows = [
        [
            f"{bin_.low:.2f} to {bin_.high:.2f}",
            Number(str(bin_.n)),
            Number(f"{bin_.mean_confidence:.4f}"),
            Number(f"{bin_.accuracy:.4f}", format_interval("accuracy", bin_.interval, notes)),
        ]
        for bin_ in bins
        if bin_.n
    ]
    return Table(caption, [heads[0], "examples", "mean", heads[1]], rows, notes.lines(), **options)


def _details(results: CompleteRun) -> list[tuple[str, str]]:
    options, data = options_of(results), results.data
    where_from = (dataset_name(data), options.get("subset"), options.get("split"))
    details = {
        "base model": base_name(results.model),
        "LoRA adapter": results.model.adapter and name_of(results.model.adapter),
        "tuned checkpoint": checkpoint_name(results.model),
        **_prompt(results.model.prompt),
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
    return [(name, str(value)) for name, value in details.items() if value]


def _prompt(prompt: PromptSummary | None) -> dict[str, str]:
    """Returns how a language model was asked for the classes."""
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
    words = f"{format_count(data.max_length, 'token')}" + ("" if is_given else " (the option was not given)")
    return f"{words}; {format_count(data.truncated, 'text') if data.truncated else 'no texts'} had to be cut to it"
