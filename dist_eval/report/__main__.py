"""`python -m dist_eval.report RUN`: a run as a page, a summary, metadata, or in a tracker."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from dist_eval.errors import ConfigError, EvaluationError, os_reason, print_error
from dist_eval.printable import printable_lines
from dist_eval.process.programs import ArgumentParser, run_program
from dist_eval.report.document import ReportOptions
from dist_eval.report.naming import options_of
from dist_eval.results.run import metrics_with_limits
from dist_eval.tracking import PROJECT, TRACKERS, open_tracker, require_trackers

_EPILOG = """\
examples:
  dist-eval report runs/sst2 --texts
  dist-eval report runs/sst2 --markdown >> "$GITHUB_STEP_SUMMARY"
  dist-eval report runs/sst2 --model-index --model-name my/model
  dist-eval report runs/sst2 --tracker tensorboard
"""


def build_parser() -> argparse.ArgumentParser:
    """Builds the command line's parser."""
    parser = ArgumentParser(
        prog="dist-eval report",
        description="Shows a finished run. Without --markdown, --model-index or --tracker it writes report.html. "
        "Several runs are shown by dist-eval summary, and tested for differences by dist-eval compare.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="output folder of a complete run")
    page = parser.add_argument_group("the page")
    page.add_argument("--output", type=Path, metavar="FILE.html", help="the file (default: report.html in RUN)")
    page.add_argument("--texts", action="store_true", help="show the mistakes with their texts from the dataset")
    page.add_argument(
        "--dataset", nargs="+", metavar="DATASET", help="current location of the dataset (default: as in the run)"
    )
    page.add_argument(
        "--max-mistakes", type=int, default=1000, metavar="N", help="maximum number shown (default: 1000)"
    )
    page.add_argument(
        "--max-characters", type=int, default=1000, metavar="N", help="longer texts are truncated (default: 1000)"
    )
    other = parser.add_argument_group("instead of the page")
    ways = other.add_mutually_exclusive_group()
    ways.add_argument("--markdown", action="store_true", help="print a summary for a pull request")
    ways.add_argument("--model-index", action="store_true", help="print metadata for a Hugging Face model card (YAML)")
    ways.add_argument("--tracker", nargs="+", choices=TRACKERS, help="log the metrics to a tracker that is installed")
    other.add_argument("--model-name", metavar="NAME", help="name of the model in --model-index (default: RUN's name)")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit status: 0, 1 on failure, 2 for wrong options."""
    parser = build_parser()
    options = parser.parse_args(arguments)
    if min(options.max_mistakes, options.max_characters) < 0:
        parser.error("--max-mistakes and --max-characters must be at least 0")
    if options.dataset and not options.texts:
        parser.error("--dataset is the source of the texts: give --texts, too")
    try:
        _show(options)
    except EvaluationError as error:
        print_error(str(error), "dist-eval report")
        return 2 if isinstance(error, ConfigError) else 1
    except OSError as error:
        print_error(f"{error.filename} cannot be written: {os_reason(error)}.", "dist-eval report")
        return 1
    return 0


def _show(options: argparse.Namespace) -> None:
    from dist_eval.runs.reading import read_run

    folder = options.run
    if options.markdown:
        from dist_eval.report.markdown import render_markdown
        from dist_eval.report.page import describe_run

        print(printable_lines(render_markdown(describe_run(folder))), end="")
    elif options.model_index:
        from dist_eval.report.model_card import model_index

        print(model_index(read_run(folder), options.model_name or folder.resolve().name), end="")
    elif options.tracker:
        require_trackers(options.tracker)
        results = read_run(folder)
        for name in dict.fromkeys(options.tracker):
            with open_tracker(name, folder, options_of(results), PROJECT) as tracker:
                tracker.log(metrics_with_limits(results), step=0)
    else:
        from dist_eval.report.page import write_report

        shown = ReportOptions(options.texts, options.dataset, options.max_mistakes, options.max_characters)
        print(write_report(folder, shown, options.output))


if __name__ == "__main__":
    run_program(main)
