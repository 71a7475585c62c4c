"""`report.html`: a complete run as one self-contained HTML file.

It contains texts of the dataset only on request, because reports are shared more freely than datasets. Values from data
are escaped by the template engine, or are in a JSON block that the page's script writes to text nodes; in addition, a
Content-Security-Policy allows only the page's own script and style, by their hashes. Output is deterministic.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dist_eval.analysis.mistakes import Mistakes, worst_mistakes
from dist_eval.data.problem_types import REGRESSION, SINGLE_LABEL
from dist_eval.errors import one_line, print_error
from dist_eval.process.files import BY_UMASK, PRIVATE, write_atomically
from dist_eval.report import sections
from dist_eval.report.charts import scatter, strips
from dist_eval.report.layout import Contents, confidence_words, cut, render_run
from dist_eval.report.naming import base_name, checkpoint_name, dataset_name, name_of, options_of
from dist_eval.report.table import caveats, selection_words
from dist_eval.report.tasks_page import render_tasks
from dist_eval.results.inputs import DatasetSummary, PromptSummary
from dist_eval.results.run import CompleteHarnessRun
from dist_eval.results.work import Audit, RankResults
from dist_eval.runs.files import REPORT, RESULTS
from dist_eval.runs.reading import FinishedRun, read_run, read_timelines
from dist_eval.runs.task_samples import TaskRun
from dist_eval.tables import Footnotes, format_count

_LONG_TABLE = 40
_SCATTER_POINTS, _SCATTERS = 500, 4


def write_report(folder: Path, contents: Contents | None = None, path: Path | None = None) -> Path:
    """Writes the report of a complete run.

    Args:
        folder: the run's folder.
        contents: the data to include; by default no texts.
        path: the file to write, by default `report.html` in the folder.

    Returns:
        The file.

    Raises:
        RunError: the folder has no complete run, or its files cannot be read.
        DataError: the dataset cannot be read, or is not that of the run.
        OSError: the file cannot be written.
    """
    contents, mode = contents or Contents(), BY_UMASK if path else PRIVATE
    path = path or folder / REPORT
    results = read_run(folder)
    if isinstance(results, CompleteHarnessRun):
        page = render_tasks(TaskRun(folder, results), contents)
    else:
        page = render(FinishedRun(folder, results, read_timelines(folder, results)), contents)
    write_atomically(path, page.encode(), mode)
    return path


def report_on(folder: Path, wanted: str) -> None:
    """Replaces the report of a run with new results; a failure is reported but does not fail the run.

    Args:
        folder: the run's folder.
        wanted: value of `--report`.
    """
    try:
        (folder / REPORT).unlink(missing_ok=True)  # it shows previous results
        if wanted != "none":
            write_report(folder, Contents(texts=wanted == "texts"))
    except Exception as error:  # a full disk, a dataset that was moved meanwhile
        print_error(f"{REPORT} could not be written ({one_line(error)}); all numbers are in {RESULTS}.")


def render(run: FinishedRun, contents: Contents) -> str:
    """Renders the page of a run; raises the same errors as `write_report`."""
    results, headline = run.results, sections.headline(run.results)
    confusions = sections.top_confusions(results)
    of_each_pair = contents.most // (2 * max(1, len(confusions)))
    found = worst_mistakes(run.predictions(), contents.most, [one.classes for one in confusions], of_each_pair)
    return render_run(
        "report.html.jinja",
        title=run.folder.resolve().name,
        results=results,
        footnotes=Footnotes,
        headline=headline,
        cards=headline["cards"],
        confidence_words=confidence_words(headline["confidence"]),
        unit="examples",
        caveats=caveats(results),
        confusion=sections.confusion(results),
        top_confusions=confusions,
        label_confusion=sections.label_confusion(results),
        by_class=sections.by_class(results),
        calibration=sections.calibration(results),
        slices=sections.slices(results),
        ranks=sections.ranks(results.ranks, with_hosts=contents.texts),
        strips=strips(run.timelines),
        **_scatters(run),
        mistakes_title="Largest errors" if run.results.problem_type == REGRESSION.name else "Mistakes",
        mistakes_note=_note(run, found, contents, of_each_pair if confusions else 0),
        what_is_right="true" if run.results.problem_type == SINGLE_LABEL.name else "label",
        rows=_rows(run, found, contents),
        long_table=_LONG_TABLE,
        pairs=[[one.label, one.prediction, one.count] for one in confusions],
        details=_details(run),
    )


def _rows(run: FinishedRun, found: Mistakes, contents: Contents) -> list[list[str]]:
    """Returns number, label, prediction, score and text of each mistake."""
    texts = run.texts({one.index for one in found.worst}, contents.dataset) if contents.texts else {}
    problem, names = run.results.problem_type, run.results.label_names
    score = "loss" if problem == REGRESSION.name else "probability"
    return [
        [
            f"#{one.index}",
            sections.words(one.label, problem, names),
            sections.words(one.prediction, problem, names),
            f"{score} {one.score:.4g}",
            cut(texts.get(one.index, ""), contents.longest),
        ]
        for one in found.worst
    ]


def _note(run: FinishedRun, found: Mistakes, contents: Contents, of_each_pair: int) -> str:
    if not found.total:
        return "There are none."
    what, order = "mistakes", "the most confident"
    if run.results.problem_type == REGRESSION.name:
        what, order = "examples", "those with the largest loss"
    words = f"{found.total} {what}, {order} first."
    if len(found.worst) < found.total:
        which = f"{len(found.worst)} of them, up to {of_each_pair} of each of the most frequent confusions among them,"
        which = which if of_each_pair else f"The first {len(found.worst)}"
        words += f" {which} are in this file, all in predictions.parquet."
    if contents.texts:
        return words + f" Texts are cut after {contents.longest} characters."
    return words + " Their texts are not in this file: dist-eval report RUN --texts adds them."


def _scatters(run: FinishedRun) -> dict[str, Any]:
    if run.results.problem_type != REGRESSION.name:
        return {"scatters": [], "scatter_points": 0, "scatters_not_shown": 0}
    labels, predictions = run.sample(_SCATTER_POINTS)
    names = run.results.label_names
    shown = [
        {"name": name, **scatter(labels[:, number], predictions[:, number])}
        for number, name in enumerate(names[:_SCATTERS])
    ]
    return {"scatters": shown, "scatter_points": len(labels), "scatters_not_shown": len(names) - len(shown)}


def _details(run: FinishedRun) -> list[tuple[str, str]]:
    results, options = run.results, options_of(run.results)
    data, environment = results.data, results.environment
    counts = {
        "of several lines": data.multiline,
        "without a token of their own": data.blank,
        "without a token that the tokenizer knows": data.unknown,
        "beginning with the tokenizer's BOS themselves": data.with_begin,
    }
    where_from = (dataset_name(data), options.get("subset"), options.get("split"))
    details = {
        "base model": base_name(results.model),
        "LoRA adapter": results.model.adapter and name_of(results.model.adapter),
        "tuned checkpoint": checkpoint_name(results.model),
        **_prompt(results.model.prompt),
        "dataset": " ".join(part for part in where_from if part),
        "rows": selection_words(data),
        "files": str(len(data.shards or ()) or ""),
        "backend": _backend(options),
        "--max-length": _longest(data, is_given=bool(options.get("max_length"))),
        "texts": ", ".join(f"{count} {what}" for what, count in counts.items() if count),
        "labels mended, such as 5.0 for 5": str(data.mended_labels or ""),
        "custom metrics": ", ".join(options.get("metric") or ()),
        "--confidence": options.get("confidence"),
        "--group-column": options.get("group_column"),
        "--slice-by": ", ".join(options.get("slice_by") or ()),
        "ranks": _ranks(results.ranks),
        "started": results.started,
        "finished": results.finished,
        "swarm": results.swarm and results.swarm.dht_prefix,
        "precision of the servers": ", ".join((results.swarm and results.swarm.precisions) or ()),
        "audit": _audit(results.audit),
        "versions": ", ".join(f"{name} {version}" for name, version in environment.packages.items()),
        "git commit": environment.git_commit,
        "digest of texts and labels": data.text_digest,
    }
    return [(name, str(value)) for name, value in details.items() if value]


def _prompt(prompt: PromptSummary | None) -> dict[str, str]:
    """Returns how a language model was asked for the classes."""
    if prompt is None:
        return {}
    return {
        "prompt": repr(prompt.template),
        "label words": ", ".join(map(repr, prompt.words)),
        "examples before each prompt": str(len(prompt.few_shot_rows) or ""),
        "--length-normalization": "" if prompt.length_normalization == "none" else prompt.length_normalization,
    }


def _backend(options: Mapping[str, Any]) -> str:
    """Returns the backend that ran the model's blocks, and the compression of activations."""
    words = "local: in each rank's own process" if options.get("backend") == "local" else "petals: on a swarm"
    compression = options.get("compression", "none")
    return words if compression == "none" else f"{words}, activations sent as {compression}"


def _longest(data: DatasetSummary, *, is_given: bool) -> str:
    words = f"{format_count(data.max_length, 'token')}" + ("" if is_given else " (the option was not given)")
    return f"{words}; {format_count(data.truncated, 'text') if data.truncated else 'no texts'} had to be cut to it"


def _ranks(ranks: Sequence[RankResults]) -> str:
    hosts = {one.host for one in ranks}
    return f"{len(ranks)} on {format_count(len(hosts), 'host')}"


def _audit(audit: Audit | None) -> str:
    if audit is None:
        return ""
    faulty = [server.peer for server in audit.servers if server.odd]
    words = f"{format_count(audit.batches, 'batch', 'batches')} sent twice, {format_count(audit.disputes, 'dispute')}"
    return words + (f"; outvoted by other servers: {', '.join(faulty)}" if faulty else "")
