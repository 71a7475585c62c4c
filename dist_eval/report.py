"""What a person gets from a run: `predictions.parquet`, `confusion_matrix.png`, and the table that is printed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from dist_eval.files import replaced_atomically
from dist_eval.metrics import Metrics
from dist_eval.predictions import Predictions

RESULTS, PREDICTIONS, CONFUSION_MATRIX = "results.json", "predictions.parquet", "confusion_matrix.png"
_CELLS_WITH_NUMBERS, _CLASSES_IN_TABLE = 20, 40


def write_predictions(path: Path, predictions: Predictions) -> None:
    """Writes one row per example: index, label, prediction, loss, probabilities. Equal input gives equal bytes."""
    import pyarrow as pa
    from pyarrow import parquet

    numbers, classes = ("index", "label", "prediction"), predictions.num_labels
    schema = pa.schema(
        [
            *((name, pa.int64()) for name in numbers),
            ("loss", pa.float64()),
            ("probabilities", pa.list_(pa.float64(), classes)),
        ]
    )
    # piece by piece, because the probabilities take more memory than the predictions themselves; a dictionary pays for
    # the classes only
    with (
        replaced_atomically(path) as file,
        parquet.ParquetWriter(
            file,
            schema,
            use_dictionary=["label", "prediction"],
            column_encoding={"index": "DELTA_BINARY_PACKED"},
        ) as writer,
    ):
        for piece in predictions.pieces():
            columns = [pa.array(getattr(piece, name)) for name in (*numbers, "loss")]
            probabilities = pa.FixedSizeListArray.from_arrays(pa.array(piece.probabilities.ravel()), classes)
            writer.write_batch(pa.record_batch([*columns, probabilities], schema=schema))


def draw_confusion_matrix(path: Path, metrics: Metrics) -> None:
    """Draws the confusion matrix as a PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from sklearn.metrics import ConfusionMatrixDisplay

    classes = len(metrics.label_names)
    side = min(4.0 + 0.45 * classes, 24.0)
    figure, axes = pyplot.subplots(figsize=(side + 0.8, side), layout="constrained")
    display = ConfusionMatrixDisplay(metrics.confusion, display_labels=metrics.label_names)
    display.plot(
        ax=axes,
        cmap="Blues",
        values_format="d",
        include_values=classes <= _CELLS_WITH_NUMBERS,
        xticks_rotation="horizontal" if max(map(len, metrics.label_names)) <= 3 else "vertical",
    )
    for label in (*axes.get_xticklabels(), *axes.get_yticklabels()):
        label.set_parse_math(False)
    total, hits = int(metrics.confusion.sum()), int(metrics.confusion.trace())
    axes.set_title(f"{hits} of {total} right (accuracy {hits / total:.4f})")
    axes.set_xlabel("predicted class")
    axes.set_ylabel("true class")
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


_HEADLINES = ("accuracy", "balanced_accuracy", "f1_macro", "f1_weighted", "mcc", "loss")
_AVERAGES = ("macro", "micro", "weighted")


def format_results(metrics: Metrics, facts: dict[str, Any], folder: Path) -> str:
    """Returns the table that a person sees at the end.

    Args:
        metrics: the metrics.
        facts: the further sections of `results.json`.
        folder: where the files are.
    """
    values, coverage, data = metrics.values, facts["coverage"], facts["data"]
    auc = [name for name in values if name.startswith("roc_auc")]
    lines = [""]
    for name in (*_HEADLINES, "log_loss", *auc):
        note = (
            f"  (always guessing the most frequent class: {metrics.majority_share:.4f})" if name == "accuracy" else ""
        )
        note = f"  ({metrics.undefined[name]})" if name in metrics.undefined else note
        lines.append(f"{name:<20}  {_number(values[name])}{note}")
    width = max([len("weighted avg"), *(len(name) for name in metrics.label_names[:_CLASSES_IN_TABLE])])
    lines += ["", f"{'class':<{width}}  precision  recall      f1  support"]
    for row in metrics.per_class[:_CLASSES_IN_TABLE]:
        lines.append(_class_line(row["label"], row["precision"], row["recall"], row["f1"], row["support"], width))
    if len(metrics.per_class) > _CLASSES_IN_TABLE:
        lines.append(f"... and {len(metrics.per_class) - _CLASSES_IN_TABLE} more classes in {RESULTS}")
    for average in _AVERAGES:
        precision, recall, f1 = (values[f"{name}_{average}"] for name in ("precision", "recall", "f1"))
        lines.append(_class_line(f"{average} avg", precision, recall, f1, coverage["seen"], width))
    shown = {*_HEADLINES, "log_loss", *auc}
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
        *_audit_lines(facts["audit"]),
        "files:",
        *(f"  {folder / name}" for name in (RESULTS, PREDICTIONS, CONFUSION_MATRIX)),
    ]
    return "\n".join(lines)


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


def _class_line(
    name: str, precision: float | None, recall: float | None, f1: float | None, support: int, width: int
) -> str:
    return f"{name:<{width}}  {_number(precision):>9}  {_number(recall)}  {_number(f1)}  {support:>7}"


def print_error(message: str) -> None:
    """Prints an error for a person."""
    print(f"dist_eval: {message}", file=sys.stderr, flush=True)
