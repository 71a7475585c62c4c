"""`report.html` of a run on tasks of the lm-evaluation-harness: metrics with intervals, and missed documents."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dist_eval.compare.tasks import MetricComparison
from dist_eval.metrics.words import metric_words
from dist_eval.report.charts import interval_bar, strips
from dist_eval.report.layout import Contents, confidence_words, render_run
from dist_eval.report.naming import name_of
from dist_eval.report.sections import MetricCell, limits_in_words, ranks
from dist_eval.results.harness import NO_FILTER, GroupMetric, HarnessResults, TaskMetric
from dist_eval.results.inputs import Decoding
from dist_eval.runs.reading import read_timelines
from dist_eval.runs.task_samples import TaskRun
from dist_eval.tables import Footnotes, format_count

_LENGTHS: dict[str, Callable[[str], int]] = {
    "acc": lambda choice: 1,
    "acc_norm": lambda choice: max(1, len(choice)),
    "acc_bytes": lambda choice: max(1, len(choice.encode())),
}
"""By what the harness divides the log-likelihood of a choice for a metric, before it takes the largest."""

_CARDS = 4


@dataclass(frozen=True)
class _Task:
    name: str
    documents: int
    num_fewshot: int


def render_tasks(run: TaskRun, contents: Contents) -> str:
    """Renders the page of a run.

    Raises:
        RunError: its files cannot be read.
    """
    results = run.results
    tasks = [
        (_Task(name, task.documents, task.num_fewshot), cell_of(metric))
        for name, task in results.tasks.items()
        for metric in task.metrics
    ]
    missed = [row for name in results.tasks for row in _missed(run, name, contents)]
    confidence = next((one.interval.confidence for task in results.tasks.values() for one in task.metrics), None)
    return render_run(
        "tasks.html.jinja",
        title=run.folder.resolve().name,
        results=results,
        footnotes=Footnotes,
        cards=_cards(run),
        confidence_words=confidence_words(confidence),
        unit=unit_of(results),
        coverage_words=coverage_words(results),
        tasks=tasks,
        groups=[
            (name, metric_name(one), "–" if one.value is None else metric_words(one.metric, one.value))
            for name, group in results.groups.items()
            for one in group.metrics
        ],
        ranks=ranks(results.ranks, with_hosts=contents.texts),
        strips=strips(read_timelines(run.folder, run.results)),
        mistakes_title="Missed documents",
        mistakes_note=_note(len(missed), contents, "predictions.parquet" if results.dataset else "samples_*.jsonl"),
        what_is_right="target",
        rows=missed[: contents.most],
        details=_details(run),
    )


def cell_of(metric: TaskMetric) -> MetricCell:
    """Returns a metric in words."""
    value, interval = metric.value, metric.interval
    is_share = interval.method == "wilson"
    return MetricCell(
        metric_name(metric),
        None if value is None else metric_words(metric.metric, value),
        limits_in_words(interval, lambda limit: metric_words(metric.metric, limit)),
        interval.reason if value is None else None,
        interval.reason,
        interval_bar(value, interval) if is_share else None,
    )


def metric_name(metric: TaskMetric | GroupMetric | MetricComparison) -> str:
    """Returns a metric's name with that of its filter, if any."""
    return metric.metric if metric.filter == NO_FILTER else f"{metric.metric} ({metric.filter})"


def unit_of(results: HarnessResults) -> str:
    """Returns what the harness asked for, in the plural."""
    if results.prompts is None:
        return "log-likelihoods"
    return "requests" if results.requests.texts else "texts"


def coverage_words(results: HarnessResults) -> str:
    """Returns how many requests were answered, and what that took."""
    coverage, requests, prompts = results.coverage, results.requests, results.prompts
    words = f"{coverage.seen} of {format_count(coverage.expected, unit_of(results)[:-1])}, each exactly once"
    if requests.texts:
        words += f", by {format_count(requests.forwards, 'forward')}"
    if prompts:
        words += f"; {format_count(prompts.texts, 'text')} of {format_count(prompts.new_tokens, 'token')} generated"
    if requests.truncated:
        words += (
            f"; {format_count(requests.truncated, 'context')} cut to {format_count(requests.max_length - 1, 'token')}"
        )
    if prompts and prompts.truncated:
        words += f"; {format_count(prompts.truncated, 'prompt')} cut"
    return words


def decoding_words(decoding: Decoding) -> str:
    """Returns how texts were generated, in words."""
    if not decoding.temperature:
        words = "greedy"
    else:
        top = [f"top {decoding.top_k}"] * bool(decoding.top_k) + [f"top p {decoding.top_p:g}"] * (decoding.top_p < 1)
        words = ", ".join([f"drawn with temperature {decoding.temperature:g}", *top, f"seed {decoding.seed}"])
    stop = f", up to {' or '.join(map(repr, decoding.stop))}" if decoding.stop else ""
    return f"{words}, at most {format_count(decoding.max_new_tokens, 'token')}{stop}"


def _cards(run: TaskRun) -> list[MetricCell]:
    """Returns the first metric of the first tasks, under the task's name."""
    found = []
    for name, task in list(run.results.tasks.items())[:_CARDS]:
        for metric in task.metrics[:1]:
            one = cell_of(metric)
            found.append(
                MetricCell(f"{name}: {one.name}", one.value, one.limits, one.why_undefined, one.why_no_interval)
            )
    return found


def _missed(run: TaskRun, task: str, contents: Contents) -> list[list[str]]:
    """Returns the rows of documents of which the first metric that is 0 or 1 is 0."""
    shares = [one for one in run.results.tasks[task].metrics if one.interval.method == "wilson"]
    if not shares:
        return []
    found = []
    for _, sample in run.samples(task):
        if sample["filter"] == shares[0].filter and sample.get(shares[0].metric) == 0:
            target, answer, score = answer_of(sample, shares[0].metric, contents)
            found.append([f"{task} #{sample['doc_id']}", target, answer, score, context_of(sample, contents)])
    return found


def context_of(sample: dict[str, Any], contents: Contents) -> str:
    """Returns the end of the first context of a sample; nothing if no texts are shown."""
    context = str(sample["arguments"].get("gen_args_0", {}).get("arg_0", "")) if contents.texts else ""
    return context if len(context) <= contents.longest else "[…] " + context[-contents.longest :]


def answer_of(sample: dict[str, Any], metric: str, contents: Contents) -> tuple[str, str, str]:
    """Returns target, answer and score of a sample: of several choices the one that a metric takes is the answer."""
    arguments, answers = list(sample["arguments"].values()), sample["filtered_resps"]
    context = arguments[0].get("arg_0")
    choices = [
        (str(own.get("arg_1", "")).strip(), float(answer[0]))
        for own, answer in zip(arguments, answers, strict=False)
        if own.get("arg_0") == context and isinstance(answer, list)
    ]
    target = str(sample["target"])
    if isinstance(arguments[0].get("arg_1"), dict):  # how a text was generated
        return (target, str(answers[0]), "") if contents.texts else ("–", "–", "")
    if len(choices) < 2:
        score = f"log-likelihood {choices[0][1]:.4g}" if choices else ""
        return target if contents.texts else "–", "–", score
    if metric not in _LENGTHS:
        return target if contents.texts else "–", "–", ""
    choices = [(name, value / _LENGTHS[metric](name)) for name, value in choices]
    best = max(range(len(choices)), key=lambda number: choices[number][1])
    names = [name if contents.texts else f"choice {number}" for number, (name, _) in enumerate(choices)]
    if not target.isdigit() or int(target) >= len(choices):
        return target if contents.texts else "–", names[best], f"log-likelihood {choices[best][1]:.4g}"
    return names[int(target)], names[best], f"likelier by {choices[best][1] - choices[int(target)][1]:.4g} nats"


def _note(total: int, contents: Contents, file: str) -> str:
    if not total:
        return "There are none, by a metric that is 0 or 1 for a document."
    words = f"{format_count(total, 'document')}, by the first metric of their task that is 0 or 1 for a document."
    if total > contents.most:
        words += f" The first {contents.most} are in this file, all in {file}."
    if contents.texts:
        return words + f" Of longer contexts the last {contents.longest} characters are shown."
    return words + " Their texts are not in this file: dist-eval report RUN --texts adds them."


def _details(run: TaskRun) -> list[tuple[str, str]]:
    results, options = run.results, run.results.config
    requests, prompts = results.requests, results.prompts
    details = {
        "model": name_of(results.model.base, results.model.base_is_path),
        "backend": "local: in each rank's own process" if options["backend"] == "local" else "petals: on a swarm",
        "dataset": results.dataset and name_of(results.dataset.source, results.dataset.is_path),
        "prompt": results.dataset and results.dataset.template,
        "references": results.dataset and f"the column {results.dataset.reference_column}",
        "--limit": options.get("limit"),
        "--apply-chat-template": options.get("apply_chat_template"),
        "--confidence": options["confidence"],
        "forwards": requests.texts
        and f"{requests.forwards} of {format_count(requests.texts, 'context')} with continuations; "
        f"{requests.saved} were equal "
        "to another one up to the last token",
        "prompts": prompts
        and f"{prompts.texts}, the longest of {prompts.longest} tokens; {prompts.truncated or 'none'} had to be cut",
        "decoding": prompts and "; ".join(decoding_words(one) for one in prompts.decodings[:_CARDS]),
        "longest": requests.texts
        and f"{requests.longest} tokens; {requests.truncated or 'none'} had to be cut to {requests.max_length}",
        "notices": " ".join(results.notices),
        "ranks": len(results.ranks),
        "started": results.started,
        "finished": results.finished,
        "swarm": results.swarm and results.swarm.dht_prefix,
        "versions": ", ".join(f"{name} {version}" for name, version in results.environment.packages.items()),
        "git commit": results.environment.git_commit,
        "digest of the token ids": requests.digest if requests.texts else "",
        "digest of the prompts": prompts and prompts.digest,
    }
    return [(name, str(value)) for name, value in details.items() if value]
