"""`python -m dist_eval.compare runs/a runs/b ...`: compares runs on the same data, example by example."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from dist_eval.arguments.commandline import Command, run_command
from dist_eval.arguments.fields import Options, argument, option
from dist_eval.arguments.types import Level, Limits
from dist_eval.metrics.catalogue import METRICS, metric_names
from dist_eval.process.programs import COMPLETE, run_program

_USUAL = "; ".join(f"{problem}: {', '.join(metric_names(problem, 'compared'))}" for problem in METRICS)


@dataclass(kw_only=True)
class CompareOptions(Options):
    """The options of `dist-eval compare`."""

    runs: list[Path] = argument("output folder of a complete run; at least 2", "RUN")
    metric: list[str] = option(
        [],
        "metrics to compare: names of metrics of the runs, or others, as for `dist-eval run --metric` (default: the "
        f"runs' custom metrics, and {_USUAL})",
        metavar="NAME",
    )
    confidence: Level = option(0.95, "confidence level of the intervals", metavar="LEVEL")
    resamples: Annotated[int, Limits(least=99)] | None = option(
        None, "resamples for each bootstrap interval (default: 199 to 9999, by the time that they take)"
    )
    all_pairs: bool = option(False, "compare every two runs, not the first one with each")
    json: bool = option(False, "print JSON instead of a table")
    changed: Path | None = option(None, "write the examples whose prediction changed", metavar="FILE.csv")


COMMAND = Command(
    program="dist-eval compare",
    config=CompareOptions,
    description="Compares runs on the same data, example by example (runs on tasks of the lm-evaluation-harness: "
    "document by document): the first one with each of the others.",
    examples="Exit status: 0 compared; 1 the runs cannot be compared; 2 an option is wrong.",
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit status: 0, 1 or 2 (see `COMMAND`)."""
    return run_command(COMMAND, show, arguments)


def show(options: CompareOptions) -> int:
    """Prints the comparisons."""
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
    if options.json:
        print(json.dumps(to_json(comparisons), indent=2, allow_nan=False))
    else:
        print(render_text(describe_comparisons(comparisons)))
    return COMPLETE


if __name__ == "__main__":
    run_program(main)
