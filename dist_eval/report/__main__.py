"""`python -m dist_eval.report RUN`: shows a run as a page, a summary or metadata, or logs it to a tracker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dist_eval.arguments.commandline import Command, run_command
from dist_eval.arguments.fields import Options, argument, option
from dist_eval.arguments.types import Natural
from dist_eval.errors import ConfigError, RunError, os_reason
from dist_eval.printable import printable_lines
from dist_eval.process.programs import COMPLETE, run_program
from dist_eval.report.document import ReportOptions
from dist_eval.report.naming import options_of
from dist_eval.results.run import metrics_with_limits
from dist_eval.tracking import PROJECT, TrackerName, open_tracker, require_trackers

_PAGE, _INSTEAD = "the page", "instead of the page"


@dataclass(kw_only=True)
class ShowOptions(Options):
    """The options of `dist-eval report`."""

    run: Path = argument("output folder of a complete run", "RUN")
    output: Path | None = option(None, "the file (default: report.html in RUN)", group=_PAGE, metavar="FILE.html")
    texts: bool = option(False, "show the mistakes with their texts from the dataset", group=_PAGE)
    dataset: list[str] | None = option(
        None, "current location of the dataset (default: as in the run)", group=_PAGE, metavar="FILE"
    )
    max_mistakes: Natural = option(1000, "maximum number of mistakes", group=_PAGE)
    max_characters: Natural = option(1000, "longer texts are truncated", group=_PAGE)
    markdown: bool = option(False, "print a summary for a pull request", group=_INSTEAD)
    model_index: bool = option(False, "print metadata for a Hugging Face model card (YAML)", group=_INSTEAD)
    model_name: str | None = option(None, "name of the model there (default: RUN's)", group=_INSTEAD, metavar="NAME")
    tracker: list[TrackerName] = option([], "log the metrics to an installed tracker", group=_INSTEAD)

    def _validate(self) -> None:
        self._refuse_together("markdown", "model_index", "tracker")
        if self.dataset and not self.texts:
            raise ConfigError("--dataset is the source of the texts: also give --texts.")


COMMAND = Command(
    program="dist-eval report",
    config=ShowOptions,
    description="Shows a finished run. Without --markdown, --model-index or --tracker it writes report.html. "
    "Several runs are shown by dist-eval summary, and tested for differences by dist-eval compare.",
    examples="""\
examples:
  dist-eval report runs/sst2 --texts
  dist-eval report runs/sst2 --markdown >> "$GITHUB_STEP_SUMMARY"
  dist-eval report runs/sst2 --model-index --model-name my/model
  dist-eval report runs/sst2 --tracker tensorboard
""",
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit status: 0, 1 on failure, 2 for wrong options."""
    return run_command(COMMAND, show, arguments)


def show(options: ShowOptions) -> int:
    """Shows the run as the options ask."""
    try:
        _show(options)
    except OSError as error:
        raise RunError(f"{error.filename} cannot be written: {os_reason(error)}.") from error
    return COMPLETE


def _show(options: ShowOptions) -> None:
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
