"""`python -m dist_eval.compare runs/a runs/b ...`: what changed between runs on the same data, example by example.

The first run is what the others are compared with. Runs on different data are refused, with the reason: a difference
between them would say nothing about the models. Where runs have groups of examples (`--group-column`), whole groups are
drawn, and McNemar's test, for which each example stands for itself, is not made.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dist_eval.compared_run import Run, require_comparable
from dist_eval.errors import ConfigError, EvaluationError, RunError

if TYPE_CHECKING:
    from dist_eval.report.footnotes import Footnotes
    from dist_eval.statistics import McNemar, PairedDifference

METRICS = ("accuracy", "balanced_accuracy", "f1_macro", "mcc", "loss")
"""Figures that are shown unless others are asked for, where each example has one class."""

_DECIDING = "accuracy"
_LEAST_P = 1e-300  # beyond what the distributions' tails are computed to
_HEAD_WIDTH = 20
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
class GroupedTest:
    """Test of whether two models are right equally often, where examples belong together: a bootstrap of groups.

    Attributes:
        only_first: examples that only the first model gets right.
        only_second: examples that only the second model gets right.
        p_value: two-sided, of the difference of the accuracies; None where the groups tell of none.
        reason: why there is no p-value.
        column: the column that names the groups.
        count: of the groups.
    """

    only_first: int
    only_second: int
    p_value: float | None
    reason: str | None
    column: str
    count: int


@dataclass(frozen=True)
class Comparison:
    """How a run differs from the first one.

    Attributes:
        run: the other run.
        test: of who is right more often: McNemar's, or one of whole groups where the runs have groups.
        test_corrected: its p-value, corrected for the number of runs; None where there is none.
        differences: by name of the metric: the run's figure less that of the first one.
        corrected: by name of the metric, the p-value corrected for the number of runs and metrics; None where there is
            none.
        changed: how many predictions differ.
    """

    run: Run
    test: McNemar | GroupedTest
    test_corrected: float | None
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
        One comparison for each run but the first. P-values are corrected by Holm's procedure: those of who is right
        more often for the number of runs, those of the metrics for the number of runs times metrics.

    Raises:
        RunError: the runs are not about the same examples.
        ConfigError: there is no such metric, or nothing to compare.
    """
    from dist_eval.statistics import paired_differences

    first, others = runs[0], runs[1:]
    if not others:
        raise ConfigError("Nothing to compare with: name at least two runs.")
    for other in others:
        require_comparable(first, other)
    wanted = {*metrics, _DECIDING}
    tables = [
        paired_differences(first, other, metrics=wanted, confidence=confidence, groups=first.group) for other in others
    ]
    for name in metrics:
        if name not in tables[0]:
            raise ConfigError(f"{name!r} cannot be compared; these can: {', '.join(_comparable_metrics(first))}.")
    tests = [_test(first, other, table[_DECIDING]) for other, table in zip(others, tables, strict=True)]
    keys = [(number, name) for number in range(len(others)) for name in metrics]
    corrected = dict(zip(keys, _holm([tables[number][name].p_value for number, name in keys]), strict=True))
    return [
        Comparison(
            run=other,
            test=test,
            test_corrected=test_corrected,
            differences={name: table[name] for name in metrics},
            corrected={name: corrected[number, name] for name in metrics},
            changed=int((first.prediction != other.prediction).sum()),
        )
        for number, (other, test, test_corrected, table) in enumerate(
            zip(others, tests, _holm([test.p_value for test in tests]), tables, strict=True)
        )
    ]


def _test(first: Run, second: Run, difference: PairedDifference) -> McNemar | GroupedTest:
    """Tests who is right more often; the difference is that of the accuracies."""
    from dist_eval.statistics import mcnemar
    from dist_eval.statistics.resampling import FEW_UNITS

    test = mcnemar(first.is_right, second.is_right)
    if first.group is None:
        return test
    groups = first.results["groups"]
    p_value, reason = difference.p_value, difference.interval.reason
    if groups["count"] < FEW_UNITS:
        p_value, reason = None, f"fewer than {FEW_UNITS} groups: too few for the bootstrap"
    return GroupedTest(
        only_first=test.only_first,
        only_second=test.only_second,
        p_value=p_value,
        reason=None if p_value is not None else reason,
        column=groups["column"],
        count=groups["count"],
    )


def _comparable_metrics(run: Run) -> list[str]:
    from dist_eval.statistics import Units
    from dist_eval.statistics.classification import statistics_of

    each = Units.single(len(run.index))
    resampled = {name for statistic in statistics_of(run, each, each, each) for name in statistic.names}
    return [name for name in run.results["metrics"] if name in resampled]


def _holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Corrects those that are known."""
    from dist_eval.statistics import holm

    corrected = iter(holm([value for value in p_values if value is not None]))
    return [None if value is None else next(corrected) for value in p_values]


def format_comparisons(first: Run, comparisons: Sequence[Comparison]) -> str:
    """Returns the tables for a person."""
    from dist_eval.report.footnotes import Footnotes

    lines = [f"{len(first.index)} examples of {first.results['data']['source']}; compared with {first.folder}"]
    for one in comparisons:
        test, folder, notes = one.test, one.run.folder, Footnotes()
        differences = one.differences.values()
        level = next((difference.interval.confidence for difference in differences), None)
        lines += [
            "",
            f"{folder}: {one.changed} predictions changed, {test.only_second} of them from wrong to right, "
            f"{test.only_first} from right to wrong",
            f"{_name_of(test)}: p = {_p(test.p_value)}" + _also(one.test_corrected, test.p_value),
            f"{'':<18}  {_head(first):<27}  {_head(one.run):<27}  {_with_level('difference', level):<30}  p        "
            "p (Holm)",
        ]
        for name, difference in one.differences.items():
            lines.append(
                f"{name:<18}  {_figure(first, name, notes):<27}  {_figure(one.run, name, notes):<27}  "
                f"{_signed(difference, notes):<30}  {_p(difference.p_value):<7}  {_p(one.corrected[name])}".rstrip()
            )
        lines += notes.lines()
    return "\n".join(lines)


def _head(run: Run) -> str:
    return _with_level(str(run.folder)[-_HEAD_WIDTH:], run.results["config"]["confidence"])


def _with_level(words: str, level: float | None) -> str:
    return words if level is None else f"{words} [{100 * level:g}%]"


def _name_of(test: McNemar | GroupedTest) -> str:
    from dist_eval.statistics import McNemar

    if isinstance(test, McNemar):
        return f"McNemar's test ({test.method})"
    why = f" ({test.reason})" if test.reason else ""
    return f"paired bootstrap of the accuracy over {test.count} groups of {test.column!r}{why}"


def _figure(run: Run, name: str, notes: Footnotes) -> str:
    value, interval = run.results["metrics"].get(name), run.results.get("intervals", {}).get(name)
    if value is None:
        return "-"
    if interval is None or interval["low"] is None:
        return f"{value:.4f}{notes.mark(interval and interval['reason'])}"
    return f"{value:.4f} [{interval['low']:.4f}, {interval['high']:.4f}]"


def _signed(difference: PairedDifference, notes: Footnotes) -> str:
    interval = difference.interval
    if difference.value is None:
        return f"-{notes.mark(interval.reason)}"
    ends = notes.mark(interval.reason) if interval.low is None else f" [{interval.low:+.4f}, {interval.high:+.4f}]"
    return f"{difference.value:+.4f}{ends}"


def _p(value: float | None) -> str:
    if value is None:
        return "-"
    if value < _LEAST_P:
        return f"<{_LEAST_P:.0e}"
    return f"{value:.4f}" if value >= 1e-4 else f"{value:.0e}"


def _also(corrected: float | None, value: float | None) -> str:
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
                "mcnemar": _test_facts(one) if first.group is None else None,
                "paired_bootstrap_of_groups": None if first.group is None else _test_facts(one),
                "differences": {
                    name: {**asdict(difference), "p_value_holm": one.corrected[name]}
                    for name, difference in one.differences.items()
                },
            }
            for one in comparisons
        ],
    }


def _test_facts(one: Comparison) -> dict[str, Any]:
    return {**asdict(one.test), "p_value_holm": one.test_corrected}


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
