"""What all benchmarks share: a program with its options and clean-up, and a report as table, JSON and picture."""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, NoReturn

from dist_eval.errors import EvaluationError
from dist_eval.process.lifetime import adopt_orphans, temporary_files_in, workspace
from dist_eval.process.logging_setup import silence_libraries

SCHEMA_VERSION = 1
INTERRUPTED = 130
_PACKAGES = ("torch", "petals", "hivemind", "transformers", "numpy")


class BenchmarkError(Exception):
    """A benchmark cannot continue; the message is shown to the user."""


class Program:
    """A benchmark as a command line, `python -m benchmarks.NAME`.

    Args:
        name: the benchmark's name, also that of its default folder under `runs/benchmarks`.
        question: the question that the benchmark answers, in one sentence.
        measure: answers it, given the options and a folder for temporary files.
        rounds: how often everything is measured, unless the command line says otherwise.
        quick: values of options with `--quick`, besides one round.
        rows: sentences to classify by default, if the benchmark classifies text: adds `--rows` and `--data`.
    """

    def __init__(
        self,
        name: str,
        question: str,
        measure: Callable[[argparse.Namespace, Path], None],
        *,
        rounds: int = 3,
        quick: dict[str, Any] | None = None,
        rows: int | None = None,
    ) -> None:
        self._measure, self._quick = measure, quick or {}
        self.parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}", description=question)
        self.parser.add_argument("--quick", action="store_true", help="small and short: a smoke test, no measurement")
        self.add("--rounds", rounds, "number of rounds")
        self.add("--output", Path("runs/benchmarks") / name, "folder for JSON and PNG")
        if rows is not None:
            self.add("--rows", rows, "sentences to classify")
            self.add_data()

    def add_data(self) -> None:
        """Adds the option for the folder of the text."""
        self.parser.add_argument("--data", type=Path, metavar="FOLDER", help="folder with SST-2 (see README.md)")

    def add(self, option: str, default: Any, what: str, **settings: Any) -> None:
        """Adds an option of the type of its default; a tuple takes several values."""
        several = isinstance(default, tuple)
        values = default if several else (default,)
        shown = "; ".join(map(str, values))
        settings = {"type": type(values[0]), **({"nargs": "+"} if several else {}), **settings}
        self.parser.add_argument(option, default=default, help=f"{what} (default: {shown})", **settings)

    def main(self) -> NoReturn:
        """Runs the command line, and ends the process and its children, even on Ctrl-C."""
        options = self.parser.parse_args()
        if options.quick:
            vars(options).update(self._quick, rounds=1)
        silence_libraries()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, _interrupt)
        code = INTERRUPTED
        try:
            adopt_orphans()
            with workspace() as scratch_dir, temporary_files_in(scratch_dir):
                _share_bytecode(scratch_dir)
                self._measure(options, scratch_dir)
                code = 0
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)
        except (BenchmarkError, EvaluationError) as error:
            print(error, file=sys.stderr)
            code = 1
        except Exception:
            traceback.print_exc()
            code = 1
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # everything is closed; see `temporary_files_in`


def _share_bytecode(scratch_dir: Path) -> None:
    """Shares compiled bytecode between the processes of a benchmark, if writing it is disabled."""
    if sys.dont_write_bytecode:
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        os.environ["PYTHONPYCACHEPREFIX"] = str(scratch_dir / "bytecode")


def _interrupt(number: int, frame: object) -> None:
    for other in (signal.SIGTERM, signal.SIGINT):
        signal.signal(other, signal.SIG_IGN)
    raise KeyboardInterrupt


@dataclass
class Series:
    """The measurements of one alternative.

    Attributes:
        group: the conditions, such as "hidden 256, loopback"; only alternatives of one group are compared.
        name: the alternative.
        values: one figure per round.
        details: further data of each round, for the JSON file.
    """

    group: str
    name: str
    values: list[float] = field(default_factory=list)
    details: list[Any] = field(default_factory=list)

    @property
    def median(self) -> float:
        """The median of the figures."""
        return statistics.median(self.values)


@dataclass(frozen=True)
class Comparison:
    """A figure of each round, mostly a ratio between two alternatives, and its bar."""

    claim: str
    ratio: float  # the median of the rounds
    lowest: float
    highest: float
    bar: float | None
    at_most: bool

    @property
    def met(self) -> bool | None:
        """Whether the figure meets its bar; None without one."""
        if self.bar is None:
            return None
        return self.ratio <= self.bar if self.at_most else self.ratio >= self.bar


class Report:
    """Collects a benchmark's figures and shows them.

    Args:
        name: the benchmark's name, and that of its files.
        question: the question that the benchmark answers.
        unit: unit of the figures, such as "examples/s".
        options: the command line, which is recorded in the JSON file.
        more_is_better: whether larger figures are better.
    """

    def __init__(
        self, name: str, question: str, *, unit: str, options: argparse.Namespace, more_is_better: bool = True
    ) -> None:
        self.name, self.question, self.unit, self.more_is_better = name, question, unit, more_is_better
        self.options = {key: str(value) if isinstance(value, Path) else value for key, value in vars(options).items()}
        self.folder: Path = options.output
        self.series: dict[tuple[str, str], Series] = {}
        self.comparisons: list[Comparison] = []
        self.notes: list[str] = []

    def add(self, group: str, name: str, value: float, details: Any = None) -> None:
        """Adds one round's figure of an alternative."""
        series = self.series.setdefault((group, name), Series(group, name))
        series.values.append(value)
        series.details.append(details)
        print(f"  {group} | {name}: {value:.4g} {self.unit}", flush=True)

    def note(self, sentence: str) -> None:
        """Adds a note for readers of the figures."""
        self.notes.append(sentence)

    def compare(
        self,
        claim: str,
        first: tuple[str, str],
        *others: tuple[str, str],
        bar: float | None = None,
        at_most: bool = False,
    ) -> None:
        """Divides an alternative's figures by another's, round by round.

        Args:
            claim: description of the ratio.
            first: group and name of an alternative.
            *others: group and name of one or more others; the best of each round counts. Unmeasured ones are ignored;
                without any there is no comparison.
            bar: the required lower bound of the ratio; ignored with `--quick`.
            at_most: the bar is an upper bound instead.
        """
        rivals = [self.series[other].values for other in others if other in self.series]
        if first in self.series and rivals:
            best: Callable[..., float] = max if self.more_is_better else min
            rounds = zip(self.series[first].values, *rivals, strict=True)
            self.bound(claim, [value / best(others) for value, *others in rounds], bar, at_most=at_most)

    def bound(self, claim: str, values: Sequence[float], bar: float | None = None, *, at_most: bool = True) -> None:
        """Adds a figure of each round, and its required upper bound, or lower bound unless `at_most`."""
        bar = None if self.options["quick"] else bar
        self.comparisons.append(Comparison(claim, statistics.median(values), min(values), max(values), bar, at_most))

    def table(self) -> str:
        """Returns the figures and the ratios as text."""
        lines = ["", self.question, ""]
        width = max(len(series.name) for series in self.series.values())
        group = None
        for series in self.series.values():
            if series.group != group:
                group = series.group
                lines.append(f"{group} [{self.unit}: median (lowest to highest of {len(series.values)})]")
            spread = f"({min(series.values):.4g} to {max(series.values):.4g})" if len(series.values) > 1 else ""
            lines.append(f"  {series.name:<{width}}  {series.median:>10.4g}  {spread}".rstrip())
        if self.comparisons:
            width = max(len(comparison.claim) for comparison in self.comparisons)
            lines += ["", "ratios [median of the rounds' ratios (lowest to highest)]"]
        for comparison in self.comparisons:
            figures = f"{comparison.ratio:>7.3g}  ({comparison.lowest:.3g} to {comparison.highest:.3g})"
            verdict = ""
            if comparison.bar is not None:
                side = "at most" if comparison.at_most else "at least"
                verdict = f"  {side} {comparison.bar:g}: {'yes' if comparison.met else 'NO'}"
            lines.append(f"  {comparison.claim:<{width}}  {figures}{verdict}")
        return "\n".join([*lines, *(["", *self.notes] if self.notes else [])])

    def finish(self) -> None:
        """Prints the table and writes `NAME.json` and `NAME.png` into the folder."""
        self.folder.mkdir(parents=True, exist_ok=True)
        content = {
            "schema_version": SCHEMA_VERSION,
            "benchmark": self.name,
            "question": self.question,
            "unit": self.unit,
            "options": self.options,
            "series": [{**asdict(series), "median": series.median} for series in self.series.values()],
            "comparisons": [{**asdict(comparison), "met": comparison.met} for comparison in self.comparisons],
            "notes": self.notes,
            "environment": environment(),
        }
        path = self.folder / f"{self.name}.json"
        path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        self._draw(self.folder / f"{self.name}.png")
        print(self.table(), "", f"written: {path} and {path.with_suffix('.png').name}", sep="\n", flush=True)

    def _draw(self, path: Path) -> None:
        """Draws one panel for each group, with a bar for each alternative."""
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot

        groups: dict[str, list[Series]] = {}
        for series in self.series.values():
            groups.setdefault(series.group, []).append(series)
        height = 0.32 * max(len(members) for members in groups.values()) + 1.1
        figure, panels = pyplot.subplots(
            len(groups), 1, figsize=(9, len(groups) * height), squeeze=False, layout="constrained"
        )
        for panel, (group, members) in zip(panels[:, 0], groups.items(), strict=True):
            medians = [series.median for series in members]
            below = [series.median - min(series.values) for series in members]
            above = [max(series.values) - series.median for series in members]
            colors = ["tab:blue" if "dist_eval" in series.name else "0.7" for series in members]
            bars = panel.barh([series.name for series in members], medians, xerr=[below, above], color=colors)
            panel.bar_label(bars, fmt="%.4g", padding=4)
            panel.invert_yaxis()
            panel.margins(x=0.15)
            panel.set_title(group, loc="left", fontsize="medium")
            panel.set_xlabel(self.unit)
        figure.savefig(path, dpi=120)
        pyplot.close(figure)


def environment() -> dict[str, Any]:
    """Returns the environment, which affects the figures."""
    return {
        "python": platform.python_version(),
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)),
        "packages": {name: version(name) for name in _PACKAGES},
        "date": time.strftime("%Y-%m-%d"),
    }


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()
