"""A run's folder: `results.json`, `predictions.parquet`, `confusion_matrix.png`, and the table that is printed.

`results.json` is written first, with status "running", and replaced as a whole whenever something changes, so that
whoever looks sees a complete and true file. `SCHEMA_VERSION` counts changes that a reader could stumble over:

    schema_version    int
    status            "running", "complete", "failed"
    error             null, or {message, rank, host}
    started, finished ISO 8601 times in UTC, finished null while running
    metrics           figure by name, null where undefined
    undefined         for each null figure, why
    majority_share    share of the most frequent class
    per_class         [{label, precision, recall, f1, support}]
    confusion_matrix  {labels, matrix}: rows are true classes, columns predicted ones
    coverage          {expected, seen, duplicates, missing, failed}
    data              {source, examples, truncated, longest, multiline, max_length, digest}
    model             {base, checkpoint, tuning_mode, pre_seq_len, num_labels, weights_digest}
    plan              {batches, padded_tokens, real_tokens, digest}
    ranks             [{rank, host, began, batches, samples, tokens, padded_tokens, seconds, in_flight, traffic}];
                      began is when it sent its first batch, tokens include prompts, padded_tokens also padding,
                      in_flight is the last size of its window, traffic is null without a swarm, else {compression,
                      round_trips, retries, bytes_sent, bytes_received, servers: [{peer, requests, failures,
                      token_blocks, latency_p50, latency_p95}]}; bytes are those of tensors, latencies in seconds
    throughput        {seconds, examples_per_second, tokens_per_second} of the forwards: tokens without padding, the
                      slowest rank's time
    swarm             null, or {dht_prefix, num_blocks, missing_blocks, replicas_per_block, servers}
    config            all options; peer addresses are counted, not written
    environment       {python, platform, packages, git_commit}
"""

from __future__ import annotations

import json
import platform
import re
import subprocess
import sys
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

from dist_eval.config import EvaluationConfig
from dist_eval.errors import RunError
from dist_eval.files import replaced_atomically, write_atomically
from dist_eval.metrics import Metrics
from dist_eval.predictions import Predictions

SCHEMA_VERSION = 1
RESULTS, PREDICTIONS, CONFUSION_MATRIX = "results.json", "predictions.parquet", "confusion_matrix.png"
_PACKAGES = ("dist_eval", "petals", "hivemind", "torch", "transformers", "datasets", "numpy", "scikit-learn")
_PEER = re.compile(
    r"(?:/[\w.:-]+)*/p2p/[1-9A-HJ-NP-Za-km-z]{40,}|\b(?:Qm|12D3Koo)[1-9A-HJ-NP-Za-km-z]{40,}"
)  # with its address, or the identity alone
_CELLS_WITH_NUMBERS, _CLASSES_IN_TABLE = 20, 40


class RunFolder:
    """The folder of one run.

    Args:
        config: the run's options; `config.output_folder` is the folder.
    """

    def __init__(self, config: EvaluationConfig) -> None:
        self.path = config.output_folder
        self._config = config

    def open(self) -> None:
        """Makes the folder and writes `results.json` with status "running".

        Raises:
            RunError: the folder cannot be written, or holds a complete run that is not to be replaced.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            if self._read().get("status") == "complete" and not self._config.overwrite:
                raise RunError(
                    f"{self.path} holds the results of a complete run. Choose another --output, or replace them with "
                    "--overwrite."
                )
            for name in (PREDICTIONS, CONFUSION_MATRIX):
                (self.path / name).unlink(missing_ok=True)
            options = self._config.to_dict()
            options["initial_peers"] = f"{len(self._config.initial_peers)} addresses, not recorded"
            self._write(
                {
                    "schema_version": SCHEMA_VERSION,
                    "status": "running",
                    "error": None,
                    "started": _now(),
                    "finished": None,
                    "config": options,
                    "environment": environment(),
                }
            )
        except OSError as error:
            raise RunError(f"The output folder {self.path} cannot be written: {error.strerror or error}.") from error

    def fail(self, message: str, *, rank: int, host: str, coverage: dict[str, int] | None = None) -> None:
        """Marks the run as failed, on whichever rank knows why.

        Args:
            message: the reason.
            rank: the rank that failed.
            host: its host.
            coverage: the counts, if the reason is that the dataset is not covered.

        Raises:
            OSError: the folder cannot be written any more.
        """
        results = self._read()
        if results.get("status") == "running":  # never touch what an earlier, complete run left
            for address in self._config.initial_peers:
                message = message.replace(address, "(peer, not recorded)")
            error = {"message": _PEER.sub("(peer, not recorded)", message), "rank": rank, "host": host}
            failed = {**results, "status": "failed", "error": error, "finished": _now()}
            self._write(failed if coverage is None else {**failed, "coverage": coverage})

    def complete(self, predictions: Predictions, metrics: Metrics, facts: dict[str, Any]) -> None:
        """Writes all files of a complete run; the picture comes last, because no result depends on it.

        Args:
            predictions: one for each example, in dataset order.
            metrics: their metrics.
            facts: the further sections of `results.json`.
        """
        write_predictions(self.path / PREDICTIONS, predictions)
        self._write(
            {
                **self._read(),
                "status": "complete",
                "finished": _now(),
                "metrics": metrics.values,
                "undefined": metrics.undefined,
                "majority_share": metrics.majority_share,
                "per_class": metrics.per_class,
                "confusion_matrix": {"labels": metrics.label_names, "matrix": metrics.confusion.tolist()},
                **facts,
            }
        )
        try:
            draw_confusion_matrix(self.path / CONFUSION_MATRIX, metrics)
        except Exception as error:  # fonts, memory: whatever it is, the numbers stand
            print_error(f"{CONFUSION_MATRIX} could not be drawn ({error!r}); all numbers are in {RESULTS}.")

    def _read(self) -> dict[str, Any]:
        try:
            content = json.loads((self.path / RESULTS).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return content if isinstance(content, dict) else {}

    def _write(self, results: dict[str, Any]) -> None:
        text = json.dumps(results, indent=2, allow_nan=False) + "\n"
        write_atomically(self.path / RESULTS, text.encode())


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def environment() -> dict[str, Any]:
    """Returns the versions a result depends on."""
    packages: dict[str, str | None] = {}
    for name in _PACKAGES:
        try:
            packages[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            packages[name] = None
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": packages,
        "git_commit": _git_commit(),
    }


def _git_commit() -> str | None:
    try:
        answer = subprocess.run(
            ["git", "rev-parse", "HEAD"],
            capture_output=True,
            text=True,
            timeout=5,
            check=True,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip()


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
        lines.append(_class_line(f"{average} avg", precision, recall, f1, data["examples"], width))
    shown = {*_HEADLINES, "log_loss", *auc}
    lines += [f"{name}: undefined, {why}" for name, why in metrics.undefined.items() if name not in shown]
    throughput, ranks = facts["throughput"], len(facts["ranks"])
    lines += [
        "",
        f"coverage: {coverage['seen']} of {coverage['expected']} examples, each exactly once"
        + (f"; {data['truncated']} texts cut to {data['max_length']} tokens" if data["truncated"] else "")
        + (f"; {data['multiline']} texts have several lines" if data["multiline"] else ""),
        f"speed: {throughput['examples_per_second']:.1f} examples/s, {throughput['tokens_per_second']:.0f} tokens/s "
        f"on {ranks} rank{'s' if ranks > 1 else ''}",
        "files:",
        *(f"  {folder / name}" for name in (RESULTS, PREDICTIONS, CONFUSION_MATRIX)),
    ]
    return "\n".join(lines)


def _number(value: float | None) -> str:
    return "     -" if value is None else f"{value:6.4f}"


def _class_line(
    name: str, precision: float | None, recall: float | None, f1: float | None, support: int, width: int
) -> str:
    return f"{name:<{width}}  {_number(precision):>9}  {_number(recall)}  {_number(f1)}  {support:>7}"


def print_error(message: str) -> None:
    """Prints an error for a person."""
    print(f"dist_eval: {message}", file=sys.stderr, flush=True)
