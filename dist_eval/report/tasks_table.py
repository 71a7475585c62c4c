"""The table that a run prints at the end."""

from __future__ import annotations

from pathlib import Path

from dist_eval.printable import printable_lines
from dist_eval.report.table import format_metrics
from dist_eval.report.tasks_page import coverage_words, metric_name, unit_of
from dist_eval.results.harness import HarnessResults
from dist_eval.runs.files import REPORT, RESULTS
from dist_eval.tables import format_count


def format_tasks(results: HarnessResults, folder: Path) -> str:
    """Formats the results of a run for the terminal.

    Args:
        results: the sections of `results.json`.
        folder: the run's folder.
    """
    lines: list[str] = []
    for name, task in results.tasks.items():
        confidence = task.metrics[0].interval.confidence if task.metrics else 0.95
        head = f" value  {100 * confidence:g}% interval"
        values = {metric_name(metric): metric.value for metric in task.metrics}
        intervals = {metric_name(metric): metric.interval for metric in task.metrics}
        shots = f", {format_count(task.num_fewshot, 'example')} in front of each" if task.num_fewshot else ""
        lines += ["", f"{name}: {format_count(task.documents, 'document')}{shots}"]
        lines += format_metrics(values, {}, intervals, head)
    for name, group in results.groups.items():
        lines += ["", f"{name}: {', '.join(group.tasks)}"]
        lines += format_metrics({metric_name(metric): metric.value for metric in group.metrics}, {}, {})
    throughput, ranks, unit = results.throughput, len(results.ranks), unit_of(results)
    lines += [
        "",
        f"coverage: {coverage_words(results)}",
        f"speed: {throughput.examples_per_second:.1f} {unit}/s, {throughput.tokens_per_second:.0f} tokens/s "
        f"on {format_count(ranks, 'rank')}",
        *(f"notice: {text}" for text in results.notices),
        "files:",
        *(f"  {folder / name}" for name in (RESULTS, results.files.results, *results.files.samples.values()) if name),
        *([f"  {folder / REPORT}"] if (folder / REPORT).exists() else []),
    ]
    return printable_lines("\n".join(lines))
