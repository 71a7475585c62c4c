"""An evaluation on a dataset, as a document: metrics, confusions, classes, calibration, slices, mistakes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from dist_eval.analysis.mistakes import worst_mistakes
from dist_eval.metrics.catalogue import OF_CLASS, OF_OUTPUT, metric_names
from dist_eval.petals.base_model.problem_types import MULTI_LABEL, REGRESSION, SINGLE_LABEL
from dist_eval.report.document import (
    Document,
    Mistakes,
    Number,
    Plot,
    ReportOptions,
    Rows,
    Section,
    Table,
    format_interval,
    format_metric,
    metric_card,
    metric_number,
)
from dist_eval.report.naming import dataset_name, name_of, options_of
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
from dist_eval.results.scores import Calibration, CalibrationBin, ClassResults, ConfusionMatrix, OutputResults
from dist_eval.runs.files import PREDICTIONS, RESULTS
from dist_eval.runs.plots import (
    POINTS,
    RELIABILITY,
    confusion_cells,
    draw_confusion_matrix,
    draw_reliability,
    draw_scatter,
    plot_name,
)
from dist_eval.runs.reading import FinishedRun
from dist_eval.tables import Footnotes, format_count

_LABELS_SHOWN, _LONG_TABLE, _ROWS_IN_SUMMARY, _METRICS_OF_A_SLICE = 10, 40, 30, 2
_CLASSES_IN_MATRIX, _CONFUSIONS, _CONFUSIONS_IN_SUMMARY = 24, 20, 5
_LABEL_WIDTH = 30  # characters of a label on a terminal
_AVERAGES = ("macro", "micro", "weighted")


def describe_evaluation(run: FinishedRun, options: ReportOptions) -> Document:
    """Describes a run."""
    results, model = run.results, run.results.model
    confusions, kinds = _frequent_confusions(results)
    sections = [
        _metrics(results),
        *_confusion_sections(results, confusions, kinds),
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
        model=name_of(model.checkpoint, is_path=True) if model.checkpoint else name_of(model.base, model.base_is_path),
        data=dataset_name(results.data),
        facts=[format_coverage(results), format_speed(results, "examples")],
        files=[RESULTS, PREDICTIONS, plot_name(results.problem_type), *([RELIABILITY] if results.calibration else [])],
        cards=[metric_card(name, name, results) for name in metric_names(results.problem_type, "cards")],
        sections=sections,
        find_mistakes=lambda: _find_mistakes(run, [(row, column) for row, column, _ in confusions], options),
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


def _frequent_confusions(results: CompleteRun) -> tuple[list[tuple[int, int, int]], int]:
    """Returns (true class, predicted class, examples) of the most frequent confusions, and how many kinds there are."""
    if results.problem_type != SINGLE_LABEL.name or results.confusion_matrix is None:
        return [], 0
    cells = confusion_cells(results.confusion_matrix).tocoo()
    wrong = np.flatnonzero((cells.row != cells.col) & (cells.data > 0))
    most = wrong[np.argsort(-cells.data[wrong], kind="stable")[:_CONFUSIONS]]
    return [*zip(*(part[most].tolist() for part in (cells.row, cells.col, cells.data)), strict=True)], len(wrong)


def _confusion_sections(results: CompleteRun, confusions: Sequence[tuple[int, int, int]], kinds: int) -> list[Section]:
    """Returns the section about confusions (see `_frequent_confusions`); none of a regression."""
    matrix, names = results.confusion_matrix, results.label_names
    if results.problem_type == SINGLE_LABEL.name and matrix is not None:
        lines = []
        if len(names) > _CLASSES_IN_MATRIX + 1:
            lines.append(f"Of {len(names)} classes those {_CLASSES_IN_MATRIX} with the most mistakes are drawn.")
        if omitted := getattr(matrix, "omitted", 0):
            lines.append(f"Cells with few examples, {omitted} in all, are left out.")
        plot = Plot(
            "Confusion matrix: examples by true class (rows) and predicted class (columns)",
            lambda: draw_confusion_matrix(results, _CLASSES_IN_MATRIX),
        )
        support = [row.support for row in results.per_class if isinstance(row, ClassResults)]
        rows: Rows = [
            [names[label], names[prediction], Number(str(count)), Number(f"{100 * count / support[label]:.1f} %")]
            for label, prediction, count in confusions
        ]
        table = Table(
            "Most frequent confusions",
            ["true class", "predicted class", "examples", "of the true class"],
            rows,
            keys=2,
            summary_rows=_CONFUSIONS_IN_SUMMARY,
            filters_mistakes=True,
            further_rows=kinds - len(confusions),
            longest_text=_LABEL_WIDTH,
        )
        return [Section("Confusion", [plot, table], lines)]
    if results.problem_type == MULTI_LABEL.name and isinstance(matrix, ConfusionMatrix):
        line = "Each cell has the number of examples, and its share of those that have the label, or that do not."
        columns = ["label", "there, found", "there, missed", "not there, predicted", "not there, left out"]
        matrices: Any = matrix.matrix
        table = Table(
            "What became of each label",
            columns,
            [[name, *_label_counts(counts)] for name, counts in zip(names, matrices, strict=True)],
        )
        return [Section("Confusion", [table], [line])]
    return []


def _label_counts(matrix: Sequence[Sequence[int]]) -> list[Number]:
    (right_no, wrong_yes), (wrong_no, right_yes) = matrix
    yes, no = right_yes + wrong_no, right_no + wrong_yes
    counts = [(right_yes, yes), (wrong_no, yes), (wrong_yes, no), (right_no, no)]
    return [Number(str(count), f" {100 * count / total:.1f} %" if total else "") for count, total in counts]


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
        longest_text=_LABEL_WIDTH,
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
    options, data, model = options_of(results), results.data, results.model
    where_from = (dataset_name(data), options.get("subset"), options.get("split"))
    details = {
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


def _find_mistakes(run: FinishedRun, confusions: Sequence[tuple[int, int]], options: ReportOptions) -> Mistakes:
    """Lists the worst mistakes of a run, up to a number of each of its most frequent confusions."""
    problem = run.results.problem_type
    is_regression = problem == REGRESSION.name
    of_each_pair = options.most // (2 * max(1, len(confusions)))
    total, mistakes = worst_mistakes(run.predictions(), options.most, confusions, of_each_pair)
    texts = run.texts({mistake.index for mistake in mistakes}, options.dataset) if options.texts else {}
    score = "loss" if is_regression else "probability"
    rows = [
        [
            f"#{mistake.index}",
            _format_label(mistake.label, problem, run.results.label_names),
            _format_label(mistake.prediction, problem, run.results.label_names),
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


def _note(total: int, shown: int, options: ReportOptions, of_each_pair: int, *, is_regression: bool) -> str:
    if not total:
        return "There are none."
    words = f"{total} mistakes, the most confident first."
    if is_regression:
        words = f"{total} examples, those with the largest loss first."
    if shown < total:
        which = f"The first {shown}"
        if of_each_pair:
            which = f"{shown} of them, up to {of_each_pair} of each of the most frequent confusions among them,"
        words += f" {which} are in this file, all in predictions.parquet."
    if options.texts:
        return f"{words} Texts are cut after {options.longest} characters."
    return f"{words} Their texts are not in this file: dist-eval report RUN --texts adds them."


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else text[:longest] + " […]"


def _format_label(label: Any, problem: str, names: Sequence[str]) -> str:
    """Formats a label or a prediction: an int64, or an array of shape [num_labels] of several labels or outputs."""
    if problem == SINGLE_LABEL.name:
        return names[int(label)]
    if problem == MULTI_LABEL.name:
        present = [names[number] for number in np.flatnonzero(label).tolist()]
        more = [f"and {len(present) - _LABELS_SHOWN} more"] if len(present) > _LABELS_SHOWN else []
        return ", ".join([*present[:_LABELS_SHOWN], *more]) or "none"
    return ", ".join(f"{number:.6g}" for number in label[:_LABELS_SHOWN])
