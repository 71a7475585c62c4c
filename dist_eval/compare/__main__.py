"""`python -m dist_eval.compare runs/a runs/b ...`: compares runs on the same data, example by example."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dist_eval.errors import ConfigError, EvaluationError, print_error
from dist_eval.metrics.catalogue import METRICS, metric_names
from dist_eval.process.programs import ArgumentParser, run_program

if TYPE_CHECKING:
    from dist_eval.compare.comparison import ComparedRun
    from dist_eval.metrics.custom_metrics import CustomMetric
    from dist_eval.metrics.texts import TextMetric


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


def _read_metrics(
    given: Sequence[str], runs: Sequence[ComparedRun]
) -> tuple[list[str], list[CustomMetric] | list[TextMetric]]:
    """Returns names of metrics, and of them those that are loaded, because the runs do not have them."""
    from dist_eval.compare.evaluations import EvaluationRun
    from dist_eval.compare.tasks import TasksRun
    from dist_eval.metrics.metric_loading import load_metrics, load_text_metrics, name_of_spec
    from dist_eval.petals.base_model.problem_types import PROBLEMS

    first = runs[0]
    if isinstance(first, TasksRun) and first.results.dataset is not None:
        specs = [name for name in given if not all(isinstance(run, TasksRun) and run.has(name) for run in runs)]
        wanted = [name_of_spec(spec) for spec in specs]
        of_texts = [metric for metric in load_text_metrics(specs) if metric.name in wanted]
        return [name_of_spec(name) if name in specs else name for name in given], of_texts
    if not isinstance(first, EvaluationRun):
        return list(given), []
    specs = [
        name for name in given if name not in first.metrics and (":" in name or "=" in name or Path(name).exists())
    ]
    taken = [name for name in first.metrics if name not in first.results.custom_metrics]
    problem, outputs = PROBLEMS[first.results.problem_type], first.predictions.num_labels
    custom_metrics = load_metrics(specs, problem, outputs, taken) if specs else []
    names = {metric.spec: metric.name for metric in custom_metrics}
    return [names.get(name, name) for name in given], custom_metrics


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit status: 0, 1 or 2 (see `build_parser`)."""
    options = build_parser().parse_args(arguments)
    try:
        if not 0 < options.confidence < 1:
            raise ConfigError(f"--confidence must be between 0 and 1, such as 0.95, not {options.confidence}.")
        if options.resamples is not None and options.resamples < 99:
            raise ConfigError(f"--resamples must be at least 99, not {options.resamples}.")
        from dist_eval.compare.comparison import compare, load_run
        from dist_eval.compare.tables import describe_comparisons, to_json, write_changed
        from dist_eval.report.text import render_text

        runs = [load_run(folder) for folder in options.runs]
        with contextlib.redirect_stdout(sys.stderr):  # custom metrics may print
            metrics, custom_metrics = _read_metrics(options.metric, runs)
            comparisons = compare(
                runs,
                metrics=metrics,
                custom_metrics=custom_metrics,
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
