"""`dist-eval harness --list` and `--check`: lists tasks and checks their files."""

from __future__ import annotations

import dataclasses
import sys
from typing import TYPE_CHECKING, Any

from dist_eval.errors import DataError, EvaluationError
from dist_eval.evaluation.job import Context
from dist_eval.harness.metrics import read_metrics
from dist_eval.options.harness import require_harness
from dist_eval.process.programs import notify
from dist_eval.tables import output_width, text_table

if TYPE_CHECKING:
    from dist_eval.harness.tasks import LoadedTasks

_LISTED = ("name", "kind", "output type", "file")
_CHECKED = ("task", "documents", "requests", "output type", "metrics")


def list_tasks(context: Context) -> None:
    """Prints the tasks, groups and tags that match a pattern, on the leader."""
    if not context.topology.is_leader:
        return
    require_harness()
    from dist_eval.harness.finding import matching_tasks, own_skipped
    from dist_eval.harness.notices import Notices

    options, notices = context.config, Notices()
    rows = matching_tasks(options, notices)
    for path, why in own_skipped(notices, options):
        notify(f"The task file {path} cannot be read: {why}.")
    width = output_width() if sys.stdout.isatty() else None  # a line for each task, for other programs
    print("\n".join(text_table([_LISTED, *rows], width=width)), flush=True)


def check_tasks(context: Context) -> None:
    """Checks tasks on the leader and prints a summary; a `DataError` names each faulty one."""
    if not context.topology.is_leader:
        return
    require_harness()
    from dist_eval.harness.finding import find_tasks, own_skipped, own_tasks
    from dist_eval.harness.language_model import StandInModel
    from dist_eval.harness.notices import Notices
    from dist_eval.harness.tasks import LoadedTasks

    options, notices = context.config, Notices()
    manager, named = find_tasks(options, notices)
    problems = [f"{path}: cannot be read: {why}." for path, why in own_skipped(notices, options)]
    names = named or own_tasks(manager, options.include_path)
    if not names and not problems:
        raise DataError(f"--check: there is no task file in {', '.join(options.include_path)}.")
    rows: dict[str, tuple[str, ...]] = {}
    for name in names:
        if name in rows:  # a member of a group that has been checked
            continue
        alone = dataclasses.replace(options, tasks=[name], bootstrap_iters=0)
        try:
            loaded = LoadedTasks.load(alone, (manager, [name]))
            results = loaded.run(StandInModel())
        except EvaluationError as error:
            problems.append(str(error))
            continue
        loaded.say_replaced()
        for text in loaded.notices.lines():
            notify(text)
        for task in loaded.tasks:
            rows[task] = _row(task, loaded, results)
            print(f"{task}, first request: {_first_request(task, loaded)}\n")
    problems += [f"--samples: {task!r} is not among the checked tasks." for task in options.samples if task not in rows]
    if rows:
        print("\n".join(text_table([_CHECKED, *rows.values()], width=output_width())), flush=True)
    if problems:
        raise DataError("\n".join(dict.fromkeys(problems)))


def _row(name: str, loaded: LoadedTasks, results: dict[str, Any]) -> tuple[str, ...]:
    requests = loaded.tasks[name].instances
    documents = len({request.doc_id for request in requests})
    metrics = dict.fromkeys(metric for metric, _, _ in read_metrics(results["results"][name]))
    output_type = str(loaded.tasks[name].OUTPUT_TYPE)
    return name, str(documents), str(len(requests)), output_type, ", ".join(metrics)


def _first_request(name: str, loaded: LoadedTasks) -> str:
    """Returns the texts of a task's first request: context and continuation, or one text."""
    request = loaded.tasks[name].instances[0]
    return " + ".join(repr(text) for text in request.args if isinstance(text, str))
