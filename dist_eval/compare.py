"""`python -m dist_eval.compare runs/a runs/b ...`: what changed between runs on the same data, example by example.

The first run is what the others are compared with. Runs on different data are refused, with the reason: a difference
between them would say nothing about the models.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dist_eval.errors import ConfigError, EvaluationError, RunError

if TYPE_CHECKING:
    import numpy as np

    from dist_eval.statistics import McNemar, PairedDifference

METRICS = ("accuracy", "balanced_accuracy", "f1_macro", "mcc", "loss")
"""Figures that are shown unless others are asked for, where each example has one class."""

_CHANGES = {(True, False): "lost", (False, True): "gained", (False, False): "still wrong"}


def build_parser() -> argparse.ArgumentParser:
    """Makes the command line's parser."""
    parser = argparse.ArgumentParser(
        prog="python -m dist_eval.compare",
        description="Compares runs on the same data, example by example: the first one with each of the others.",
        allow_abbrev=False,
    )
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="output folder of a complete run; at least 2")
    parser.add_argument(
        "--metric", nargs="+", metavar="NAME", help=f"metrics to compare (default: {', '.join(METRICS)})"
    )
    parser.add_argument(
        "--confidence", type=float, default=0.95, metavar="LEVEL", help="of the differences' intervals (default: 0.95)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--changed", type=Path, metavar="FILE.csv", help="write the examples whose prediction changed")
    return parser


@dataclass(frozen=True)
class Run:
    """A complete run, read back from its folder; one of the things that `dist_eval.statistics` can resample.

    Attributes:
        folder: where it is.
        results: what `results.json` holds.
        index: positions in the dataset, int64 of shape [n], ascending.
        label: true class, int64 of shape [n].
        prediction: predicted class, int64 of shape [n].
        loss: cross-entropy in nats, float64 of shape [n].
        probabilities: float64 of shape [n, num_labels].
    """

    folder: Path
    results: dict[str, Any]
    index: np.ndarray
    label: np.ndarray
    prediction: np.ndarray
    loss: np.ndarray
    probabilities: np.ndarray

    @classmethod
    def load(cls, folder: Path) -> Run:
        """Reads a run.

        Raises:
            RunError: the folder holds no complete run, or its files cannot be read.
        """
        import pyarrow as pa
        from pyarrow import parquet

        from dist_eval.data.problems import SINGLE_LABEL
        from dist_eval.report import PREDICTIONS
        from dist_eval.report.reading import read_results

        results = read_results(folder)
        problem = results.get("problem_type", SINGLE_LABEL.name)
        if problem != SINGLE_LABEL.name:
            raise RunError(f"{folder} is a run of {problem}; so far only runs with one class for a text are compared.")
        try:
            table = parquet.read_table(folder / PREDICTIONS)
            width = table.schema.field("probabilities").type.list_size
            flat = table.column("probabilities").combine_chunks().flatten().to_numpy()
            columns = {name: table.column(name).to_numpy() for name in ("index", "label", "prediction", "loss")}
            return cls(folder, results, **columns, probabilities=flat.reshape(-1, width))
        except (OSError, KeyError, AttributeError, pa.ArrowException) as error:
            raise RunError(f"{folder / PREDICTIONS} cannot be read: {error}.") from error

    @property
    def num_labels(self) -> int:
        """Number of classes."""
        return self.probabilities.shape[1]

    @property
    def label_names(self) -> list[str]:
        """Names of the classes."""
        return self.results["confusion_matrix"]["labels"]

    @property
    def is_right(self) -> np.ndarray:
        """Whether each prediction is right, bool of shape [n]."""
        return self.label == self.prediction

    def probabilities_of(self, classes: Iterable[int]) -> Iterator[np.ndarray]:
        """Yields columns of the probabilities, float64 of shape [n] each."""
        for number in classes:
            yield self.probabilities[:, number]


def require_comparable(first: Run, second: Run) -> None:
    """Checks that two runs are about the same examples.

    Raises:
        RunError: they are not; the message says what differs.
    """
    import numpy as np

    pair = f"{first.folder} and {second.folder} cannot be compared"
    if first.results["data"].get("text_digest") != second.results["data"].get("text_digest"):
        sources = " and ".join(
            f"{run.results['data']['source']} ({len(run.index)} examples)" for run in (first, second)
        )
        raise RunError(f"{pair}: their data differ, {sources}. Evaluate both on the same texts and labels.")
    if first.label_names != second.label_names:
        raise RunError(f"{pair}: the classes differ, {first.label_names[:5]} and {second.label_names[:5]}.")
    differing = np.setxor1d(first.index, second.index)
    if len(differing):
        raise RunError(
            f"{pair}: {len(differing)} examples, such as number {differing[0]}, failed in one of them only. Start its "
            "command again to have them tried again."
        )
    if not np.array_equal(first.label, second.label):
        raise RunError(f"{pair}: the data are the same, but not the labels in predictions.parquet. Run both again.")


@dataclass(frozen=True)
class Comparison:
    """How a run differs from the first one.

    Attributes:
        run: the other run.
        test: McNemar's test of who is right more often.
        test_corrected: its p-value, corrected for the number of runs.
        differences: by name of the metric: the run's figure less that of the first one.
        corrected: by name of the metric, the p-value corrected for the number of runs and metrics; None where there is
            none.
        changed: how many predictions differ.
    """

    run: Run
    test: McNemar
    test_corrected: float
    differences: dict[str, PairedDifference]
    corrected: dict[str, float | None]
    changed: int


def compare(runs: Sequence[Run], *, metrics: Sequence[str] = METRICS, confidence: float = 0.95) -> list[Comparison]:
    """Compares the first run with each of the others.

    Args:
        runs: at least two.
        metrics: names of the metrics to compare.
        confidence: level of the intervals.

    Returns:
        One comparison for each run but the first. P-values are corrected by Holm's procedure: McNemar's for the number
        of runs, those of the metrics for the number of runs times metrics.

    Raises:
        RunError: the runs are not about the same examples.
        ConfigError: there is no such metric, or nothing to compare.
    """
    from dist_eval.statistics import holm, mcnemar, paired_differences

    first, others = runs[0], runs[1:]
    if not others:
        raise ConfigError("Nothing to compare with: name at least two runs.")
    for other in others:
        require_comparable(first, other)
    tests = [mcnemar(first.is_right, other.is_right) for other in others]
    tables = [paired_differences(first, other, metrics=metrics, confidence=confidence) for other in others]
    for name in metrics:
        if name not in tables[0]:
            known_ones = ", ".join(first.results["metrics"])
            raise ConfigError(f"There is no metric {name!r} that could be compared; the runs have {known_ones}.")
    keys = [(number, name) for number in range(len(others)) for name in metrics]
    p_values = {key: tables[key[0]][key[1]].p_value for key in keys}
    known = [key for key in keys if p_values[key] is not None]
    corrected = dict(zip(known, holm([p_values[key] or 0.0 for key in known]), strict=True))
    return [
        Comparison(
            run=other,
            test=test,
            test_corrected=test_corrected,
            differences={name: table[name] for name in metrics},
            corrected={name: corrected.get((number, name)) for name in metrics},
            changed=int((first.prediction != other.prediction).sum()),
        )
        for number, (other, test, test_corrected, table) in enumerate(
            zip(others, tests, holm([test.p_value for test in tests]), tables, strict=True)
        )
    ]


def format_comparisons(first: Run, comparisons: Sequence[Comparison]) -> str:
    """Returns the tables for a person."""
    lines = [f"{len(first.index)} examples of {first.results['data']['source']}; compared with {first.folder}"]
    for one in comparisons:
        test, folder = one.test, one.run.folder
        lines += [
            "",
            f"{folder}: {one.changed} predictions changed, {test.only_second} of them from wrong to right, "
            f"{test.only_first} from right to wrong",
            f"McNemar's test ({test.method}): p = {_p(test.p_value)}" + _also(one.test_corrected, test.p_value),
            f"{'':<18}  {str(first.folder)[-26:]:<26}  {str(folder)[-26:]:<26}  {'difference':<27}  p        p (Holm)",
        ]
        for name, difference in one.differences.items():
            lines.append(
                f"{name:<18}  {_figure(first, name):<26}  {_figure(one.run, name):<26}  {_signed(difference):<27}  "
                f"{_p(difference.p_value):<7}  {_p(one.corrected[name])}".rstrip()
            )
            if difference.interval.reason is not None and difference.value != 0:
                lines.append(f"{'':<18}  ({difference.interval.reason})")
    return "\n".join(lines)


def _figure(run: Run, name: str) -> str:
    value, interval = run.results["metrics"].get(name), run.results.get("intervals", {}).get(name)
    if value is None:
        return "-"
    if interval is None or interval["low"] is None:
        return f"{value:.4f}"
    return f"{value:.4f} [{interval['low']:.4f}, {interval['high']:.4f}]"


def _signed(difference: PairedDifference) -> str:
    if difference.value is None:
        return "-"
    interval = difference.interval
    ends = "" if interval.low is None else f" [{interval.low:+.4f}, {interval.high:+.4f}]"
    return f"{difference.value:+.4f}{ends}"


def _p(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.4f}" if value >= 1e-4 else f"{value:.0e}"


def _also(corrected: float, value: float) -> str:
    return "" if corrected == value else f", corrected for the number of runs {_p(corrected)}"


def to_json(first: Run, comparisons: Sequence[Comparison]) -> dict[str, Any]:
    """Returns what the tables show, ready for JSON."""
    return {
        "examples": len(first.index),
        "source": first.results["data"]["source"],
        "compared_with": str(first.folder),
        "metrics": first.results["metrics"],
        "intervals": first.results.get("intervals"),
        "runs": [
            {
                "run": str(one.run.folder),
                "metrics": one.run.results["metrics"],
                "intervals": one.run.results.get("intervals"),
                "changed": one.changed,
                "mcnemar": {**asdict(one.test), "p_value_holm": one.test_corrected},
                "differences": {
                    name: {**asdict(difference), "p_value_holm": one.corrected[name]}
                    for name, difference in one.differences.items()
                },
            }
            for one in comparisons
        ],
    }


def write_changed(path: Path, first: Run, comparisons: Sequence[Comparison]) -> None:
    """Writes the examples whose prediction changed, as a CSV file.

    Its columns: run, index (the position in the dataset), label, before, after (names of classes), change ("gained",
    "lost" or "still wrong").

    Raises:
        RunError: the file cannot be written.
    """
    import csv

    names = first.label_names
    try:
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["run", "index", "label", "before", "after", "change"])
            for one in comparisons:
                for row in (first.prediction != one.run.prediction).nonzero()[0]:
                    before, after = (names[run.prediction[row]] for run in (first, one.run))
                    change = _CHANGES[bool(first.is_right[row]), bool(one.run.is_right[row])]
                    writer.writerow([one.run.folder, first.index[row], names[first.label[row]], before, after, change])
    except OSError as error:
        raise RunError(f"--changed {path}: cannot be written ({error.strerror}).") from error


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit status: 0, 1 if the runs cannot be compared, 2 for wrong options."""
    options = build_parser().parse_args(arguments)
    try:
        if not 0 < options.confidence < 1:
            raise ConfigError(f"--confidence must be between 0 and 1, such as 0.95, not {options.confidence}.")
        runs = [Run.load(folder) for folder in options.runs]
        comparisons = compare(runs, metrics=options.metric or METRICS, confidence=options.confidence)
        if options.changed:
            write_changed(options.changed, runs[0], comparisons)
    except EvaluationError as error:
        print(f"dist_eval.compare: {error}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1
    if options.json:
        print(json.dumps(to_json(runs[0], comparisons), indent=2, allow_nan=False))
    else:
        print(format_comparisons(runs[0], comparisons))
    return 0


if __name__ == "__main__":
    sys.exit(main())
