"""Many runs on one page: metrics of those on the same data in a table, their options, and pairs of them side by side.

It has the same properties as the page of one run (see `page`), which it links to.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote

from dist_eval.compare.tables import distinct_ends
from dist_eval.metrics.catalogue import lower_is_better
from dist_eval.metrics.words import metric_words
from dist_eval.process.files import BY_UMASK, write_atomically
from dist_eval.report.charts import interval_bars
from dist_eval.report.differences import differing_options
from dist_eval.report.layout import MOST_PAIRS, Contents, confidence_words, render_page
from dist_eval.report.naming import dataset_name, name_of, without_directories
from dist_eval.report.pairs import Pair, Shown, choose_pairs, compare_on_data
from dist_eval.report.sections import MetricCell, metric_cell
from dist_eval.report.table import group_lines
from dist_eval.report.task_pairs import compare_on_tasks
from dist_eval.report.tasks_page import unit_of
from dist_eval.results.run import CompleteHarnessRun, CompleteRun
from dist_eval.results.tuning import TuningRun
from dist_eval.runs.files import REPORT
from dist_eval.runs.outcome import Outcome, read_outcome
from dist_eval.runs.overview import Measured, groups_on_same_data, measured, metrics_to_show
from dist_eval.tables import Footnotes, format_count

_DIGITS = 12


@dataclass(frozen=True)
class Column:
    """A column beside the metrics.

    Attributes:
        name: its heading.
        cells: for each run, what is shown, and what it is sorted by.
    """

    name: str
    cells: list[tuple[str, float | str]]


@dataclass(frozen=True)
class RunTable:
    """Runs whose metrics can be compared.

    Attributes:
        title: what they are runs on.
        lines: more about that.
        runs: the runs, the best one first.
        links: for each run the address of its page; None without one.
        heads: for each metric, its name, and whether lower is better.
        rows: the metrics of each run.
        unit: what the runs are compared by.
        ends: smallest and largest limit of the first metric's intervals, in words; None if there are no intervals.
        interval: what the intervals are.
        columns: further columns.
        options: the options that differ, with the value of each run.
        pairs: pairs of runs.
        baseline: name of the run that all pairs have in common, where there are too many for all; else empty.
        cautions: what to keep in mind.
    """

    title: str
    lines: list[str]
    runs: list[Shown]
    links: list[str | None]
    heads: list[tuple[str, bool]]
    rows: list[list[MetricCell]]
    unit: str
    ends: tuple[str, str] | None
    interval: str
    columns: list[Column]
    options: dict[str, list[str]]
    pairs: list[Pair]
    baseline: str
    cautions: list[str]


def write_runs(
    folders: Sequence[Path],
    path: Path,
    contents: Contents | None = None,
    *,
    metrics: Sequence[str] = (),
    most_pairs: int = MOST_PAIRS,
) -> Path:
    """Writes the page of several runs.

    Args:
        folders: their folders; those without a complete run are named with the reason.
        path: the file to write.
        contents: the data to include; by default no texts.
        metrics: names of the metrics to show and to compare; by default the usual ones.
        most_pairs: pairs of runs on the same data up to which all are compared; of more, those with the first run.

    Returns:
        The file.

    Raises:
        ConfigError: no run has one of the metrics.
        DataError: texts are wanted, but the dataset cannot be read, or is not that of the runs.
        OSError: the file cannot be written.
    """
    folders = list({folder.resolve(): folder for folder in folders}.values())
    names = distinct_ends([folder.resolve() for folder in folders])
    outcomes = [read_outcome(folder) for folder in folders]
    metrics_to_show([run for run in map(measured, outcomes) if run], metrics)  # raises if there is none of a name
    numbers = {outcome.folder: number for number, outcome in enumerate(outcomes)}
    page = _Page(path, numbers, names, contents or Contents(), metrics, most_pairs)
    groups = groups_on_same_data(outcomes)
    tables = [page.table([page.shown(outcome.folder, run) for outcome, run in group]) for group in groups]
    tunings = page.tunings(outcomes)
    problems = [
        (names[number], without_directories(outcome.problem, {outcome.folder: names[number]}))
        for number, outcome in enumerate(outcomes)
        if outcome.problem
    ]
    counts = {"evaluated": sum(map(len, groups)), "tuned": len(tunings), "without results": len(problems)}
    html = render_page(
        "runs.html.jinja",
        "runs.js",
        title=f"{len(outcomes)} run{'' if len(outcomes) == 1 else 's'}",
        footnotes=Footnotes,
        tables=tables,
        tunings=tunings,
        problems=problems,
        counts=", ".join(f"{count} {what}" for what, count in counts.items() if count),
        has_pageless=any(link is None for table in tables for link in table.links),
        texts=page.contents.texts,
    )
    write_atomically(path, html.encode(), BY_UMASK)
    return path


@dataclass(frozen=True)
class _Page:
    path: Path
    numbers: dict[Path, int]
    names: list[str]
    contents: Contents
    metrics: Sequence[str]
    most_pairs: int

    def shown(self, folder: Path, results: Measured) -> Shown:
        number = self.numbers[folder]
        return Shown(number, self.names[number], folder, results)

    def table(self, group: list[Shown]) -> RunTable:
        """Returns the table of runs whose metrics can be compared."""
        known = {name for one in group for name in one.results.metrics}
        names = metrics_to_show([one.results for one in group], [name for name in self.metrics if name in known])
        main = next(iter(names), "")
        runs = _best_first(group, main)
        ends, bars = interval_bars(
            [one.results.metrics.get(main) for one in runs], [one.results.intervals.get(main) for one in runs]
        )
        chosen = choose_pairs(group, self.most_pairs)
        is_limited = len(chosen) < len(group) * (len(group) - 1) // 2
        title, lines = _title(group)
        return RunTable(
            title=title,
            lines=lines,
            runs=runs,
            links=[self._link(one.folder) for one in runs],
            heads=[(name, lower_is_better(name)) for name in names],
            rows=[
                [replace(metric_cell(name, one.results), bar=bar) for name in names]
                for one, bar in zip(runs, bars, strict=True)
            ],
            unit="document" if isinstance(runs[0].results, CompleteHarnessRun) else "example",
            ends=ends and (metric_words(main, ends[0]), metric_words(main, ends[1])),
            interval=_interval(group),
            columns=_columns(runs),
            options=differing_options([one.results for one in runs]),
            pairs=self._compare(chosen),
            baseline=group[0].name if is_limited and chosen else "",
            cautions=_cautions(group),
        )

    def _link(self, folder: Path) -> str | None:
        page = folder / REPORT
        return quote(os.path.relpath(page, self.path.parent)) if page.exists() else None

    def _compare(self, pairs: Sequence[tuple[Shown, Shown]]) -> list[Pair]:
        if not pairs:
            return []
        if len(pairs) > 1:
            print(f"comparing {len(pairs)} pairs of runs", file=sys.stderr)
        most = max(1, self.contents.most // len(pairs)) if self.contents.most else 0
        if isinstance(pairs[0][0].results, CompleteHarnessRun):
            return compare_on_tasks(pairs, self.contents, most)
        runs = [one.results for pair in pairs for one in pair]
        metrics = [name for name in self.metrics if all(name in run.metrics for run in runs)]
        return compare_on_data(pairs, self.contents, most, metrics)

    def tunings(self, outcomes: Sequence[Outcome]) -> list[tuple[str, list[str]]]:
        """Returns the names of complete tunings, and the cells of their rows."""
        found = []
        for outcome, name in zip(outcomes, self.names, strict=True):
            results = outcome.results
            if outcome.status == "complete" and isinstance(results, TuningRun):
                best, last = results.best, results.epochs[-1]
                value = None if best is None or best.value is None else metric_words(best.metric, best.value)
                evaluated = results.evaluation_data
                cells = [
                    f"{best.metric} {value or '–'}" if best else "–",
                    f"{best.epoch} of {last.epoch}" if best else f"{last.epoch}",
                    "–" if last.loss is None else metric_words("loss", last.loss),
                    f"{dataset_name(results.data)}, {results.data.examples}",
                    f"{dataset_name(evaluated)}, {evaluated.examples}" if evaluated else "–",
                    _minute(results.finished or results.started),
                ]
                found.append((name, cells))
        return found


def _best_first(group: Sequence[Shown], metric: str) -> list[Shown]:
    """Sorts runs by a metric; runs on tasks, of which none is the main one, stay as they are."""
    if isinstance(group[0].results, CompleteHarnessRun):
        return list(group)
    sign = 1 if lower_is_better(metric) else -1

    def place(one: Shown) -> float:
        value = one.results.metrics.get(metric)
        return float("inf") if value is None else sign * value

    return sorted(group, key=place)


def _title(group: Sequence[Shown]) -> tuple[str, list[str]]:
    runs = [one.results for one in group]
    if isinstance(runs[0], CompleteHarnessRun):
        if runs[0].dataset is not None:
            return name_of(runs[0].dataset.source, runs[0].dataset.is_path), ["generated texts"]
        versions = {run.harness_version or "" for run in runs if isinstance(run, CompleteHarnessRun)}
        return "Tasks of the lm-evaluation-harness", [f"version {' and '.join(sorted(versions))}"]
    names = dict.fromkeys(dataset_name(run.data) for run in runs if isinstance(run, CompleteRun))
    digests = dict.fromkeys(run.data.text_digest[:_DIGITS] for run in runs if isinstance(run, CompleteRun))
    what = f"{runs[0].problem_type.replace('_', ' ')}, {format_count(runs[0].coverage.expected, 'example')}"
    return " and ".join(names), [f"{what}; digest of texts and labels {' or '.join(digests)}"]


def _interval(group: Sequence[Shown]) -> str:
    levels = {interval.confidence for one in group for interval in one.results.intervals.values()}
    return confidence_words(levels.pop() if len(levels) == 1 else None)


def _columns(runs: Sequence[Shown]) -> list[Column]:
    first = runs[0].results
    unit = f"{unit_of(first)}/s" if isinstance(first, CompleteHarnessRun) else "examples/s"
    speeds = [one.results.throughput.examples_per_second for one in runs]
    ends = [one.results.finished for one in runs]
    return [
        Column(unit, [(f"{speed:.1f}", speed) for speed in speeds]),
        Column("finished", [(_minute(end), end) for end in ends]),
    ]


def _minute(time: str) -> str:
    return time[:16].replace("T", " ")


def _cautions(group: Sequence[Shown]) -> list[str]:
    """Returns what a reader of the table should keep in mind."""
    lines = []
    if len(group) > 1:
        lines.append(
            f"The best of {len(group)} looks better than it is, because it is selected: see the tests of pairs."
        )
    for one in group:
        failed = one.results.coverage.failed
        if failed:
            lines.append(
                f"{one.name}: {format_count(failed, 'example failed and is', 'examples failed and are')} in no metric."
            )
    lines += dict.fromkeys(
        line for one in group if isinstance(one.results, CompleteRun) for line in group_lines(one.results.groups)
    )
    tasks: dict[str, set[int]] = {}
    for one in group:
        if isinstance(one.results, CompleteHarnessRun):
            for name, task in one.results.tasks.items():
                tasks.setdefault(name, set()).add(task.documents)
    for name, counts in tasks.items():
        if len(counts) > 1:
            words = " and ".join(map(str, sorted(counts)))
            lines.append(f"{name}: the runs have {words} documents; tests are on those that both have.")
    return lines
