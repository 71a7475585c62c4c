"""Common parts of all benchmarks: options, collected figures, the table, the JSON file and the PNG figure."""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

SCHEMA_VERSION = 1
_PACKAGES = ("torch", "petals", "hivemind", "transformers", "numpy")


def parser(name: str, question: str, *, rounds: int) -> argparse.ArgumentParser:
    """Returns a parser with the options that every benchmark has.

    Args:
        name: the benchmark's name, also that of its default folder under `runs/benchmarks`.
        question: the question that the benchmark answers, in one sentence.
        rounds: default number of rounds, unless `--rounds` or `--quick` is given.
    """
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}", description=question)
    parser.add_argument("--quick", action="store_true", help="small and short: a smoke test, not a measurement")
    parser.add_argument("--rounds", type=int, default=rounds, help=f"number of rounds (default {rounds})")
    parser.add_argument("--output", type=Path, default=Path("runs/benchmarks") / name, help="folder for JSON and PNG")
    return parser


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
    """A ratio between two alternatives, and its required bound.

    Attributes:
        claim: description of the ratio.
        ratio: median over the rounds of the ratio within a round.
        lowest: smallest ratio in a round.
        highest: largest ratio in a round.
        bar: the lower bound (or, if `at_most`, the upper bound) that is required, or None.
        at_most: whether the bar is an upper bound.
    """

    claim: str
    ratio: float
    lowest: float
    highest: float
    bar: float | None = None
    at_most: bool = False

    @property
    def met(self) -> bool | None:
        """Whether the ratio meets its bar; None without one."""
        if self.bar is None:
            return None
        return self.ratio <= self.bar if self.at_most else self.ratio >= self.bar


class Report:
    """Collects a benchmark's figures and shows them.

    Args:
        name: the benchmark's name.
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
        """Adds a sentence that a reader of the figures needs."""
        self.notes.append(sentence)

    def compare(
        self,
        claim: str,
        first: tuple[str, str],
        second: tuple[str, str] | Sequence[tuple[str, str]],
        *,
        bar: float | None = None,
        at_most: bool = False,
    ) -> None:
        """Divides the first alternative's figures by the second's, round by round.

        Args:
            claim: description of the ratio.
            first: group and name of an alternative.
            second: group and name of another one, or of several, of which the best of each round counts.
            bar: the required lower bound of the ratio.
            at_most: the bar is an upper bound instead.
        """
        others = [second] if isinstance(second[0], str) else list(second)
        best: Callable[..., float] = max if self.more_is_better else min
        rows = zip(self.series[first].values, *(self.series[other].values for other in others), strict=True)  # type: ignore[index]
        ratios = [value / best(other_values) for value, *other_values in rows]
        self.comparisons.append(
            Comparison(claim, statistics.median(ratios), min(ratios), max(ratios), bar=bar, at_most=at_most)
        )

    def bound(self, claim: str, values: Sequence[float], bar: float | None = None, *, at_most: bool = True) -> None:
        """Adds a figure of each round, and its required upper bound, or lower bound unless `at_most`."""
        self.comparisons.append(
            Comparison(claim, statistics.median(values), min(values), max(values), bar=bar, at_most=at_most)
        )

    def table(self) -> str:
        """Returns the figures and the ratios as text."""
        lines = ["", f"{self.question}", ""]
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
        for one in self.comparisons:
            verdict = "" if one.bar is None else f"  {'at most' if one.at_most else 'at least'} {one.bar:g}: "
            verdict += "" if one.met is None else ("yes" if one.met else "NO")
            lines.append(
                f"  {one.claim:<{width}}  {one.ratio:>7.3g}  ({one.lowest:.3g} to {one.highest:.3g}){verdict}".rstrip()
            )
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
            "comparisons": [{**asdict(one), "met": one.met} for one in self.comparisons],
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
        most = max(len(members) for members in groups.values())
        figure, panels = pyplot.subplots(
            len(groups), 1, figsize=(9, len(groups) * (0.32 * most + 1.1)), squeeze=False, layout="constrained"
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
    """Returns the environment, on which the figures depend besides the code."""
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
