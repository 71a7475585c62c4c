"""`python -m dist_eval.compare runs/a runs/b ...`: compares runs on the same data, example by example."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from dist_eval.errors import ConfigError, EvaluationError, print_error
from dist_eval.metrics.catalogue import METRICS, metric_names
from dist_eval.process.programs import ArgumentParser, run_program


def build_parser() -> argparse.ArgumentParser:
    """Builds the command line's parser."""
    usual = "; ".join(f"{problem}: {', '.join(metric_names(problem, 'compared'))}" for problem in METRICS)
    parser = ArgumentParser(
        prog="dist-eval compare",
        description="Compares runs on the same data, example by example (runs on tasks of the lm-evaluation-harness: "
        "document by document): the first one with each of the others.",
        epilog="Exit status: 0 compared; 1 the runs cannot be compared; 2 an option is wrong.",
        allow_abbrev=False,
    )
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="output folder of a complete run; at least 2")
    parser.add_argument(
        "--metric", nargs="+", default=[], metavar="NAME", help="metrics to compare: names of metrics of the "
        f"runs, or others, as for dist_eval's --metric (default: the runs' custom metrics, and {usual})",
    )  # fmt: skip
    parser.add_argument(
        "--confidence",
        type=float,
        default=0.95,
        metavar="LEVEL",
        help="confidence level of the intervals (default: 0.95)",
    )
    parser.add_argument(
        "--resamples", type=int, metavar="N", help="resamples for each bootstrap interval (default: 9999; fewer where "
        "they take long, 199 for custom metrics)",
    )  # fmt: skip
    parser.add_argument("--all-pairs", action="store_true", help="compare every two runs, not the first one with each")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--changed", type=Path, metavar="FILE.csv", help="write the examples whose prediction changed")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit status: 0, 1 or 2 (see `build_parser`)."""
    options = build_parser().parse_args(arguments)
    try:
        if not 0 < options.confidence < 1:
            raise ConfigError(f"--confidence must be between 0 and 1, such as 0.95, not {options.confidence}.")
        if options.resamples is not None and options.resamples < 99:
            raise ConfigError(f"--resamples must be at least 99, not {options.resamples}.")
        from dist_eval.compare.comparison import compare
        from dist_eval.compare.loading import load_run
        from dist_eval.compare.tables import describe_comparisons, to_json, write_changed
        from dist_eval.report.text import render_text

        runs = [load_run(folder) for folder in options.runs]
        with contextlib.redirect_stdout(sys.stderr):  # custom metrics may print
            comparisons = compare(
                runs,
                metrics=options.metric,
                confidence=options.confidence,
                resamples=options.resamples,
                all_pairs=options.all_pairs,
            )
        if options.changed:
            write_changed(options.changed, comparisons)
    except EvaluationError as error:
        print_error(str(error), "dist-eval compare")
        return 2 if isinstance(error, ConfigError) else 1
    if options.json:
        print(json.dumps(to_json(comparisons), indent=2, allow_nan=False))
    else:
        print(render_text(describe_comparisons(comparisons)))
    return 0


if __name__ == "__main__":
    run_program(main)
