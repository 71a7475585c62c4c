"""What a person gets from a run: `predictions.parquet`, a picture (see `figures`), and the table that is printed."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from dist_eval.figures import figure_name
from dist_eval.files import replaced_atomically
from dist_eval.metrics import Metrics
from dist_eval.predictions import Predictions
from dist_eval.problems import MULTI_LABEL, REGRESSION, SINGLE_LABEL, Problem
from dist_eval.regression import FIGURES

RESULTS, PREDICTIONS, CHANGES = "results.json", "predictions.parquet", "backend_changes.jsonl"
TIMELINE, REPORT = "timeline.json", "report.html"
_CLASSES_IN_TABLE, _NAME_WIDTH = 40, 20


def write_predictions(path: Path, predictions: Predictions) -> None:
    """Writes one row per example: index, label, prediction, loss, probabilities. Equal input gives equal bytes.

    For several labels each, label and prediction are lists of true and false, one for each class. A regression has no
    probabilities; its labels and predictions are numbers, or lists of them where the head has several outputs.
    """
    import pyarrow as pa
    from pyarrow import parquet

    problem, outputs = predictions.problem, predictions.num_labels
    kinds = _column_kinds(problem, outputs)
    schema = pa.schema(list(kinds.items()))
    # piece by piece, because the probabilities take more memory than the predictions themselves; a dictionary pays for
    # the classes only
    with (
        replaced_atomically(path) as file,
        parquet.ParquetWriter(
            file,
            schema,
            use_dictionary=["label", "prediction"] if problem is SINGLE_LABEL else False,
            column_encoding={"index": "DELTA_BINARY_PACKED"},
        ) as writer,
    ):
        for piece in predictions.pieces():
            columns = [_column(getattr(piece, name), kind) for name, kind in kinds.items()]
            writer.write_batch(pa.record_batch(columns, schema=schema))


def read_predictions(path: Path) -> dict[str, np.ndarray]:
    """Reads what `write_predictions` wrote, lists as two-dimensional arrays.

    Raises:
        OSError: there is no such file, or none that can be read.
    """
    import pyarrow as pa
    from pyarrow import parquet

    columns = {}
    for name, column in zip((table := parquet.read_table(path)).column_names, table.columns, strict=True):
        whole = column.combine_chunks()
        if pa.types.is_fixed_size_list(whole.type):
            columns[name] = whole.flatten().to_numpy(zero_copy_only=False).reshape(len(whole), whole.type.list_size)
        else:
            columns[name] = whole.to_numpy(zero_copy_only=False)
    return columns


def _column_kinds(problem: Problem, outputs: int) -> dict[str, Any]:
    import pyarrow as pa

    kind = {SINGLE_LABEL: pa.int64(), MULTI_LABEL: pa.bool_(), REGRESSION: pa.float64()}[problem]
    if problem is MULTI_LABEL or (problem is REGRESSION and outputs > 1):
        kind = pa.list_(kind, outputs)
    kinds = {"index": pa.int64(), "label": kind, "prediction": kind, "loss": pa.float64()}
    return kinds if problem is REGRESSION else {**kinds, "probabilities": pa.list_(pa.float64(), outputs)}


def _column(values: np.ndarray, kind: Any) -> Any:
    import pyarrow as pa

    flat = pa.array(values.ravel())
    return pa.FixedSizeListArray.from_arrays(flat, kind.list_size) if pa.types.is_fixed_size_list(kind) else flat


_HEADLINES = {
    SINGLE_LABEL.name: ("accuracy", "balanced_accuracy", "f1_macro", "f1_weighted", "mcc", "loss", "log_loss"),
    MULTI_LABEL.name: ("subset_accuracy", "hamming_loss", "f1_micro", "f1_macro", "f1_weighted", "loss"),
    REGRESSION.name: ("mae", "mse", "rmse", "r2", "pearson", "spearman", "loss"),
}
_AVERAGES = ("macro", "micro", "weighted")
_RANKINGS = ("roc_auc", "average_precision")


def format_results(metrics: Metrics, facts: dict[str, Any], folder: Path) -> str:
    """Returns the table that a person sees at the end.

    Args:
        metrics: the metrics.
        facts: the further sections of `results.json`.
        folder: where the files are.
    """
    values, coverage, data = metrics.values, facts["coverage"], facts["data"]
    shown = figures_shown(metrics.problem, values, metrics.custom)
    notes = {name: why for name, why in metrics.undefined.items() if name in shown}
    if metrics.majority_share is not None:
        notes["accuracy"] = f"always guessing the most frequent class: {metrics.majority_share:.4f}"
    intervals = facts["intervals"]
    confidence = next(iter(intervals.values()))["confidence"]
    width = max([_NAME_WIDTH, *map(len, shown)])
    lines = ["", f"{'':<{width}}   value  {100 * confidence:g}% interval"]
    lines += format_figures({name: values[name] for name in shown}, notes, intervals)
    lines += ["", *(_output_lines(metrics) if metrics.problem == REGRESSION.name else _class_lines(metrics, coverage))]
    lines += [f"{name}: undefined, {why}" for name, why in metrics.undefined.items() if name not in shown]
    throughput, ranks = facts["throughput"], len(facts["ranks"])
    lines += [
        "",
        f"coverage: {coverage['seen']} of {coverage['expected']} examples, each exactly once"
        + (f"; {coverage['failed']} failed and are in no figure (see failures)" if coverage["failed"] else "")
        + (f"; {data['truncated']} texts cut to {data['max_length']} tokens" if data["truncated"] else "")
        + (f"; {data['multiline']} texts have several lines" if data["multiline"] else "")
        + (f"; {data['blank']} texts have no token of their own" if data["blank"] else "")
        + (f"; {data['unknown']} texts have no token that the tokenizer knows" if data["unknown"] else ""),
        f"speed: {throughput['examples_per_second']:.1f} examples/s, {throughput['tokens_per_second']:.0f} tokens/s "
        f"on {ranks} rank{'s' if ranks > 1 else ''}",
        *_spread_lines(facts.get("spread")),
        *_backend_lines(facts.get("backends")),
        *_audit_lines(facts["audit"]),
        "files:",
        *(f"  {folder / name}" for name in (RESULTS, PREDICTIONS, figure_name(metrics))),
        *([f"  {folder / REPORT}"] if (folder / REPORT).exists() else []),
    ]
    return "\n".join(lines)


def format_figures(
    values: dict[str, float | None], notes: dict[str, str], intervals: dict[str, dict[str, Any]] | None = None
) -> list[str]:
    """Returns a line for each figure, with its interval and a note where there are such."""
    width, lines = max([_NAME_WIDTH, *map(len, values)]), []
    for name, value in values.items():
        interval = "" if value is None else _interval((intervals or {}).get(name))
        note = f"  ({notes[name]})" if name in notes else ""
        lines.append(f"{name:<{width}}  {_number(value)}{interval}{note}")
    return lines


def figures_shown(problem: str, values: Iterable[str], custom: Iterable[str]) -> list[str]:
    """Returns the names of those figures of a problem that a person is shown first."""
    return [*_HEADLINES[problem], *(name for name in values if name.startswith(_RANKINGS)), *custom]


def headline(metrics: dict[str, Any], problem: str) -> tuple[str, float | None]:
    """Returns name and value of the figure that says most, out of the section `metrics` of `results.json`."""
    name = "r2" if problem == REGRESSION.name else _HEADLINES[problem][0]
    return name, metrics.get(name)


def _class_lines(metrics: Metrics, coverage: dict[str, int]) -> list[str]:
    what, values, rows = ("class", metrics.values, metrics.per_class[:_CLASSES_IN_TABLE])
    what = "label" if metrics.problem == MULTI_LABEL.name else what
    width = max([len("weighted avg"), *(len(row["label"]) for row in rows)])
    lines = [f"{what:<{width}}  precision  recall      f1  support"]
    for row in rows:
        lines.append(_class_line(row["label"], row["precision"], row["recall"], row["f1"], row["support"], width))
    if len(metrics.per_class) > _CLASSES_IN_TABLE:
        plural = "classes" if what == "class" else "labels"
        lines.append(f"... and {len(metrics.per_class) - _CLASSES_IN_TABLE} more {plural} in {RESULTS}")
    for average in _AVERAGES:
        precision, recall, f1 = (values[f"{name}_{average}"] for name in ("precision", "recall", "f1"))
        lines.append(_class_line(f"{average} avg", precision, recall, f1, coverage["seen"], width))
    return lines


def _output_lines(metrics: Metrics) -> list[str]:
    if len(metrics.per_class) < 2:
        return []
    rows = metrics.per_class[:_CLASSES_IN_TABLE]
    width = max([len("output"), *(len(row["label"]) for row in rows)])
    lines = [f"{'output':<{width}}" + "".join(f"  {figure:>8}" for figure in FIGURES)]
    for row in rows:
        lines.append(f"{row['label']:<{width}}" + "".join(f"  {_number(row[figure]):>8}" for figure in FIGURES))
    if len(metrics.per_class) > len(rows):
        lines.append(f"... and {len(metrics.per_class) - len(rows)} more outputs in {RESULTS}")
    return lines


def _spread_lines(spread: dict[str, Any] | None) -> list[str]:
    if spread is None:
        return []
    return [
        f"by rank: {spread['figure']} from {spread['lowest']:.4f} (rank {spread['lowest_rank']}) to "
        f"{spread['highest']:.4f} (rank {spread['highest_rank']}), their plain mean {spread['mean']:.4f}; the figures "
        "above are over all examples"
    ]


def _backend_lines(backends: dict[str, Any] | None) -> list[str]:
    if backends is None:
        return []
    changed = backends["changed"]
    what = "" if changed is None else f"; {changed or 'no'} prediction{'s' if changed != 1 else ''} changed"
    return [
        f"swarm and local backend: largest difference of a logit {backends['largest_difference']:.1e}, over "
        f"{backends['compared']} examples{what}" + (f" (see {backends['file']})" if backends["file"] else "")
    ]


def _audit_lines(audit: dict[str, Any] | None) -> list[str]:
    if audit is None:
        return []
    without = audit["alone"] + audit["unanswered"]
    lines = [
        f"audit: {audit['batches']} batches sent twice, over different servers; "
        + (f"{audit['disputes']} differ" if audit["disputes"] else "all agree")
        + f" (largest difference that counts as equal: {audit['largest_difference']:.1e})"
        + (f"; for {without} there was no other server" if without else "")
    ]
    for server in audit["servers"]:
        if server["odd"]:
            lines.append(f"audit: others agree against {server['peer']}; what it had answered was done again")
    for dispute in audit["first_disputes"][:1]:
        lines.append(
            f"audit: nobody can tell which of {' and '.join(dispute['peers'])} is right ({dispute['why']}); the result "
            f"may be wrong, all disputes are in {RESULTS}"
        )
    return lines


def _number(value: float | None) -> str:
    return "     -" if value is None else f"{value:6.4f}"


def _interval(interval: dict[str, Any] | None) -> str:
    if interval is None:
        return ""
    if interval["low"] is None:
        return f"  (no interval: {interval['reason']})"
    return f" [{interval['low']:.4f}, {interval['high']:.4f}]"


def _class_line(
    name: str, precision: float | None, recall: float | None, f1: float | None, support: int, width: int
) -> str:
    return f"{name:<{width}}  {_number(precision):>9}  {_number(recall)}  {_number(f1)}  {support:>7}"


def print_error(message: str) -> None:
    """Prints an error for a person."""
    print(f"dist_eval: {message}", file=sys.stderr, flush=True)
