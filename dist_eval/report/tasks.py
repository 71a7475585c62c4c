"""Describes a run on tasks of the lm-evaluation-harness or on prompts: metrics and missed documents."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dist_eval.report.document import (
    Mistakes,
    Number,
    ReportOptions,
    Rows,
    Section,
    Table,
    format_metric,
    metric_number,
)
from dist_eval.report.naming import name_of
from dist_eval.report.sections import audit_lines, format_selection, row_caveats, work_details
from dist_eval.report.shown import ShownRun
from dist_eval.results.inputs import Decoding, have_same_selection
from dist_eval.results.run import CompleteTasksRun
from dist_eval.results.tasks import TaskResults
from dist_eval.runs.task_samples import Sample, TaskRun
from dist_eval.tables import Footnotes, format_count

_CARDS = 4


class ShownTasks(ShownRun):
    """A run on tasks or prompts."""

    results: CompleteTasksRun
    kind = "language modeling"

    def __init__(self, results: CompleteTasksRun, folder: Path = Path()) -> None:
        super().__init__(results, folder)
        self._run = TaskRun(folder, results)
        self.model = name_of(results.model.base, results.model.base_is_path)
        self.data = "texts after the rows of a dataset, by exact match"
        if results.harness_version:
            self.data = f"tasks of the lm-evaluation-harness {results.harness_version}"
        self.unit = "log-likelihoods"
        if results.prompts is not None:
            self.unit = "requests" if results.requests.texts else "texts"
        self.main_metrics = results.main_metrics
        names = [metric.metric for task in results.tasks.values() for metric in task.metrics]
        self.slice_metrics = [name for name in names if name != "exact_match_raw"]  # exact_match suffices
        firsts = [(name, task.metrics[0].key) for name, task in list(results.tasks.items())[:_CARDS] if task.metrics]
        self.cards = [(f"{task}: {metric}", f"{task}/{metric}") for task, metric in firsts]
        self.weights = results.model.digest

    def coverage(self) -> str:
        """Returns how many requests were answered, and the work for them."""
        coverage, requests, prompts = self.results.coverage, self.results.requests, self.results.prompts
        parts = [f"{coverage.seen} of {format_count(coverage.expected, self.unit[:-1])}, each exactly once"]
        if requests.texts:
            parts[0] += f", by {format_count(requests.forwards, 'forward')}"
        if prompts:
            texts, new_tokens = format_count(prompts.texts, "text"), format_count(prompts.new_tokens, "token")
            parts.append(f"{texts} generated, {new_tokens} in total")
        if coverage.failed:
            parts.append(f"{coverage.failed} failed and are excluded from all metrics (see failures)")
        if requests.truncated:
            longest = format_count(requests.max_length - 1, "token")
            parts.append(f"{format_count(requests.truncated, 'context')} cut to {longest}")
        if prompts and prompts.truncated:
            parts.append(f"{format_count(prompts.truncated, 'prompt')} cut")
        return "; ".join(parts)

    def sections(self) -> list[Section]:
        results, notes = self.results, Footnotes()
        rows: Rows = [
            [
                f"{name}/{metric.key}",
                metric_number(f"{name}/{metric.key}", results, notes),
                Number(str(task.documents)),
                Number(str(task.num_fewshot)),
            ]
            for name, task in results.tasks.items()
            for metric in task.metrics
        ]
        head = f"value [{100 * results.confidence:g}% interval]"
        columns = ["metric", head, "rows" if results.dataset else "documents", "few-shot examples"]
        tables = [Table("", columns, rows, notes.lines(), summary_rows=len(rows))]
        of_groups: Rows = [
            [
                f"{name}/{metric.key}",
                Number("-" if metric.value is None else format_metric(metric.metric, metric.value)),
                ", ".join(group.tasks),
            ]
            for name, group in results.groups.items()
            for metric in group.metrics
        ]
        if of_groups:
            caption = "Groups of tasks, as the harness aggregates them"
            tables.append(Table(caption, ["metric", "value", "tasks"], of_groups, summary_rows=len(of_groups)))
        caveats = row_caveats(results.dataset.selection, results.dataset.groups) if results.dataset else []
        notices = [f"notice: {text}" for text in results.notices]
        return [Section("Metrics", tables, notes=[*caveats, *notices, *audit_lines(results.audit)])]

    def find_mistakes(self, options: ReportOptions) -> Mistakes:
        run = self._run
        rows = [
            [
                f"{task} #{sample.number}",
                *sample.answer(metric, with_texts=options.texts),
                _end(sample.context, options),
            ]
            for task in run.results.tasks
            for metric, sample in _missed(run, task)
        ]
        note = "None, by a metric that is 0 or 1 for a document."
        if rows:
            count = format_count(len(rows), "document")
            note = f"{count}, by the task's first metric that is 0 or 1 for a document."
            if len(rows) > options.most:
                file = "predictions.parquet" if run.results.dataset else "samples_*.jsonl"
                note += f" The first {options.most} are in this file, all in {file}."
            if options.texts:
                note += f" Contexts are cut to their last {options.longest} characters."
            else:
                note += " Their texts are not in this file: dist-eval report RUN --texts adds them."
        return Mistakes("Missed documents", note, rows[: options.most], "target")

    def details(self) -> dict[str, Any]:
        results, options = self.results, self.options
        requests, prompts = results.requests, results.prompts
        return {
            "model": name_of(results.model.base, results.model.base_is_path),
            "backend": "local: in each rank's own process" if options["backend"] == "local" else "petals: on a swarm",
            "dataset": results.dataset and name_of(results.dataset.source, results.dataset.is_path),
            "prompt": results.dataset and results.dataset.template,
            "references": results.dataset and f"the column {results.dataset.reference_column}",
            "rows": results.dataset and format_selection(results.dataset.selection),
            "--answer-pattern": options.get("answer_pattern"),
            "custom metrics": results.dataset and ", ".join(options.get("metric") or ()),
            "--group-column": options.get("group_column"),
            "--slice-by": ", ".join(options.get("slice_by") or ()),
            "--limit": not results.dataset and options.get("limit"),
            "--apply-chat-template": options.get("apply_chat_template"),
            "--confidence": options["confidence"],
            "forwards": requests.texts
            and f"{requests.forwards} for {format_count(requests.texts, 'context')} with continuations; "
            f"{requests.saved} equal another one up to the last token",
            "prompts": prompts
            and f"{prompts.texts}, the longest of {prompts.longest} tokens; {prompts.truncated or 'none'} cut",
            "decoding": prompts and "; ".join(_decoding(metric) for metric in prompts.decodings[:_CARDS]),
            "longest": requests.texts
            and f"{requests.longest} tokens; {requests.truncated or 'none'} cut to {requests.max_length}",
            **work_details(results),
            "digest of the token ids": requests.digest if requests.texts else "",
            "digest of the prompts": prompts and prompts.digest,
        }

    def is_lower_better(self, metric: str) -> bool:
        results = self.results
        return any(
            metric == f"{name}/{own.key}" and own.higher_is_better is False
            for name in (*results.tasks, *results.groups)
            for task in _tasks_of(name, results)
            for own in task.metrics
        )

    def has_data_of(self, other: ShownRun) -> bool:
        """Returns whether prompts have the same rows, or tasks that both runs have the same documents."""
        if not isinstance(other, ShownTasks):
            return False
        runs = self.results, other.results
        own, others = self.results.dataset, other.results.dataset
        if own and others:
            is_same = own.references_digest == others.references_digest and own.has_texts_of(others)
            return is_same and have_same_selection(own, others)
        if own or others:
            return False
        pairs = [(task, runs[1].tasks[name]) for name, task in runs[0].tasks.items() if name in runs[1].tasks]
        return bool(pairs) and all(task.has_documents_of(another) for task, another in pairs)

    def entries(self) -> list[dict[str, Any]]:
        return [
            {
                "task_type": "text-generation",
                "dataset_type": name,
                "dataset_name": name,
                "metric_type": metric.metric,
                "metric_name": metric.key,
                "metric_value": metric.value,
            }
            for name, metric in [*self.results.task_metrics, *self.results.group_metrics]
        ]


def _tasks_of(name: str, run: CompleteTasksRun) -> Iterator[TaskResults]:
    """Yields a task, or the tasks of a group and of its groups."""
    if name in run.tasks:
        yield run.tasks[name]
    elif name in run.groups:
        for member in run.groups[name].tasks:
            yield from _tasks_of(member, run)


def _missed(run: TaskRun, task: str) -> Iterator[tuple[str, Sample]]:
    """Yields the documents whose first metric that is 0 or 1 is 0, with that metric."""
    for share in run.shares(task)[:1]:
        for _, sample in run.samples(task):
            if sample.filter == share.filter and sample.values.get(share.metric) == 0:
                yield share.metric, sample


def _end(context: str, options: ReportOptions) -> str:
    """Returns the end of a context; nothing if no texts are shown."""
    if not options.texts:
        return ""
    return context if len(context) <= options.longest else "[…] " + context[-options.longest :]


def _decoding(decoding: Decoding) -> str:
    """Describes how texts were generated."""
    if not decoding.temperature:
        words = "greedy"
    else:
        top = [f"top {decoding.top_k}"] * bool(decoding.top_k) + [f"top p {decoding.top_p:g}"] * (decoding.top_p < 1)
        words = ", ".join([f"drawn with temperature {decoding.temperature:g}", *top, f"seed {decoding.seed}"])
    stop = f", up to {' or '.join(map(repr, decoding.stop))}" if decoding.stop else ""
    settings = "".join(f", {name} {value}" for name, value in decoding.settings.items())
    return f"{words}, at most {format_count(decoding.max_new_tokens, 'token')}{stop}{settings}"
