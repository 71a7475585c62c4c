"""The harness' tasks: loads them once and runs them."""

from __future__ import annotations

import copy
import difflib
import hashlib
import inspect
import itertools
import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import lm_eval
import numpy as np
import torch
from lm_eval import evaluator
from lm_eval.api.model import LM
from lm_eval.api.task import ConfigurableTask
from lm_eval.defaults import DEFAULT_OTHER_SEED, DEFAULT_RANDOM_SEED
from lm_eval.loggers import EvaluationTracker
from lm_eval.tasks import TaskManager

from dist_eval.errors import ConfigError, DataError, EvaluationError, RunError, error_summary
from dist_eval.harness.examples import ExampleGuard, document_text
from dist_eval.harness.finding import find_tasks, own_skipped, quiet, reading, require_confirmed
from dist_eval.harness.notices import Notices, after_metrics, of_examples
from dist_eval.options.harness import HarnessConfig
from dist_eval.process.files import private_files
from dist_eval.process.patching import environment_with, patched
from dist_eval.results.tasks import TasksFiles
from dist_eval.runs.fingerprint import TASK_CODE, TASK_DEFINITION

_NO_AGGREGATION = "a metric of metric_list has no aggregation, or an unknown one: name one, such as mean"
_PLACES = ("dataset_path", "dataset_name", "dataset_kwargs", "config_source", "pretrained")  # keys of a definition


@dataclass(frozen=True)
class LoadedTasks:
    """The tasks of a run."""

    manager: TaskManager  # finds exactly these
    tasks: dict[str, Any]  # the tasks by name
    options: HarnessConfig  # the options of the run
    notices: Notices  # the harness' warnings
    guards: dict[str, ExampleGuard]  # by task; they keep questions out of their examples

    @classmethod
    def load(
        cls, options: HarnessConfig, found: tuple[TaskManager, list[str]] | None = None, notices: Notices | None = None
    ) -> LoadedTasks:
        """Reads the tasks and their data; `found` is the result of `find_tasks`, None to look for the tasks now."""
        loaded: dict[str, Any] = {"tasks": {}, "groups": {}, "group_map": {}}
        notices = notices or Notices()
        indexed, names = found or find_tasks(options, notices)
        manager = copy.copy(indexed)
        # those of the harness before it loads tasks, some of which shuffle their data
        random.seed(DEFAULT_RANDOM_SEED)
        np.random.seed(DEFAULT_OTHER_SEED)
        torch.manual_seed(DEFAULT_OTHER_SEED)
        with reading(options, notices):
            for name in names:
                try:
                    read = manager.load([name])
                except EvaluationError:
                    raise
                except Exception as error:  # from yaml, datasets, the hub's client, or a task's own code
                    is_of_metric = isinstance(error, KeyError) and error.args == (None,)
                    why = _NO_AGGREGATION if is_of_metric else error_summary(error)
                    raise _unloadable(name, why, notices.error) from error
                if notices.missing:  # which the harness would notice only after the last answer
                    raise _unloadable(name, notices.missing, "")
                for part in ("groups", "group_map"):
                    loaded[part].update(read.get(part, {}))
                _add_tasks(loaded["tasks"], read)
        tasks = loaded["tasks"]
        _check_options(options, tasks)
        for path, why in own_skipped(notices, options):
            notices.say(f"The task file {path} cannot be read: {why}.")
        for text in of_examples(options, tasks):
            notices.say(text)
        manager.load = lambda _: loaded  # the harness would read all data again
        guards = {name: ExampleGuard(task) for name, task in tasks.items() if isinstance(task, ConfigurableTask)}
        for name, task in tasks.items():
            _name_errors(name, task, options.samples.get(name))
            if isinstance(task, ConfigurableTask):
                _require_columns(name, task)
                _require_aggregations(name, task)
        return cls(manager, tasks, options, notices, guards)

    def say_replaced(self) -> None:
        """Adds notices about replaced examples, once requests are built."""
        for name, guard in self.guards.items():
            if guard.prompts:
                documents = len({instance.doc_id for instance in self.tasks[name].instances})
                self.notices.say(
                    f"Task {name}: the examples of {guard.prompts} of {documents} prompts contained the question with "
                    "its answer and were replaced. A separate fewshot_split avoids this."
                )

    def identity(self) -> dict[str, str]:
        """Returns hashes of the tasks and documents by names for error messages, once requests are built."""
        configs = {name: _definition(task) for name, task in sorted(self.tasks.items())}
        documents = hashlib.sha256()
        for name, task in sorted(self.tasks.items()):
            known = -1
            for instance in task.instances:
                if instance.doc_id != known:
                    documents.update(
                        f"{name} {instance.doc_id} {document_text(instance.doc)}\n".encode(errors="surrogatepass")
                    )
                known = instance.doc_id
        identity = {
            "--tasks": " ".join(self.tasks),
            TASK_DEFINITION: hashlib.sha256(document_text(configs).encode()).hexdigest(),
            "data of the tasks": documents.hexdigest(),
            "version of lm-eval": version("lm-eval"),
        }
        if code := {name: files for name, task in sorted(self.tasks.items()) if (files := _code(task))}:
            identity[TASK_CODE] = hashlib.sha256(json.dumps(code).encode()).hexdigest()
        return identity

    def aggregations(self) -> dict[str, dict[str, str | None]]:
        """Returns the harness' function that aggregates documents' values, by task and metric; None for others."""
        return {
            name: {
                metric: function.__name__ if function.__module__ == "lm_eval.api.metrics" else None
                for metric, function in task.aggregation().items()
            }
            for name, task in self.tasks.items()
        }

    def run(self, model: LM, tracker: EvaluationTracker | None = None) -> dict[str, Any]:
        """Runs the harness with a model, and a tracker that writes its files; returns its results."""
        options = self.options
        limit = options.limit if options.limit is None or options.limit < 1 else int(options.limit)
        try:
            with (
                self.notices.listening(),
                quiet(not options.verbose),
                environment_with("DISABLE_MULTIPROC", "1"),  # its bootstrap would fork a process with a swarm's threads
                patched(evaluator, "get_git_commit_hash", lambda: None),
            ):
                results = evaluator.simple_evaluate(
                    model=model,
                    model_args=options.model_args,
                    tasks=list(self.tasks),
                    task_manager=self.manager,
                    num_fewshot=options.num_fewshot,
                    limit=limit,
                    bootstrap_iters=options.bootstrap_iters,
                    samples=options.samples or None,
                    apply_chat_template=options.apply_chat_template,
                    fewshot_as_multiturn=bool(options.fewshot_as_multiturn),
                    system_instruction=options.system_instruction or None,
                    gen_kwargs=options.gen_kwargs or None,
                    confirm_run_unsafe_code=options.confirm_run_unsafe_code,
                    evaluation_tracker=tracker,
                )
        except EvaluationError:
            raise
        except Exception as error:  # from a task's own code, templates and metrics
            raise DataError(
                f"The harness failed on the tasks {', '.join(self.tasks)}: {error_summary(error)}"
            ) from error
        for name, samples in results["samples"].items():
            for text in after_metrics(name, self.tasks[name], samples, results["results"][name]):
                self.notices.say(text)
        return dict(results)


def _definition(task: Any) -> dict[str, Any]:
    """Returns the definition of a task without the places of its files, data and model, whose contents count."""
    config = {key: value for key, value in task.dump_config().items() if key not in _PLACES}
    metadata = config.get("metadata") or {}
    return {**config, "metadata": {key: value for key, value in metadata.items() if key not in _PLACES}}


def _code(task: Any) -> list[str]:
    """Returns the names and hashes of the Python files beside a task's own functions, which may call each other."""
    own = (one for one in _callables([type(task), vars(task.config)]) if _is_of_task(one))
    files = {path for one in own for path in Path(inspect.getfile(one)).parent.glob("*.py")}
    return sorted(f"{path.name} {hashlib.sha256(path.read_bytes()).hexdigest()}" for path in files)


def _callables(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        yield from _callables(list(value.values()))
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _callables(one)
    elif callable(value):
        yield value


def _is_of_task(function: Any) -> bool:
    """Returns whether the harness has loaded a function from a file that a task file names."""
    return getattr(function, "__module__", "").startswith(("/", "lm_eval.tasks."))


def _check_options(options: HarnessConfig, tasks: Mapping[str, Any]) -> None:
    """Checks options that concern single tasks, once these are known."""
    for name, task in tasks.items():
        if getattr(task, "UNSAFE_CODE", False):
            require_confirmed(options, f"The task {name}")
        if options.enable_thinking and task.OUTPUT_TYPE != "generate_until":
            raise ConfigError(
                f"--enable-thinking: the task {name} needs log-likelihoods of answers, so the model has no place to "
                "think. Leave out the option."
            )
    for name, numbers in options.samples.items():
        if name not in tasks:
            raise ConfigError(f"--samples: {name} is not among the tasks of this run ({', '.join(tasks)}).")
        if numbers[-1] >= (documents := len(tasks[name].eval_docs)):
            raise ConfigError(
                f"--samples: there is no document {numbers[-1]} in the task {name}, whose {documents} documents are "
                "numbered from 0."
            )


def _add_tasks(tasks: dict[str, Any], found: Mapping[str, Any]) -> None:
    members = [task for group in found.get("groups", {}).values() for task in group.get_all_tasks()]
    for task in [*found["tasks"].values(), *members]:
        other = tasks.setdefault(task.task_name, task)
        if other is not task and document_text(other.dump_config()) != document_text(task.dump_config()):
            raise ConfigError(
                f"--tasks: there are two different tasks {task.task_name!r}, for example if a group changes one. "
                "Evaluate them in two runs, or rename one."
            )


def _name_errors(name: str, task: Any, samples: Sequence[int] | None) -> None:
    """Makes errors of a task's templates and code name it and, before requests are sent, the document's number."""
    numbers = itertools.count() if samples is None else itertools.cycle(samples)

    def named(place: str, call: Callable[..., Any], *own: Any, **options: Any) -> Any:
        try:
            return call(*own, **options)
        except EvaluationError:
            raise
        except Exception as error:
            raise DataError(f"Task {name}{place}: {error_summary(error)}") from error

    fewshot_context, construct_requests = task.fewshot_context, task.construct_requests

    def construct_named(*own: Any, **options: Any) -> Any:
        place = options["metadata"][1]
        number = place if samples is None else samples[place]
        made = named(f", document {number}", construct_requests, *own, **options)
        for request in made if isinstance(made, list) else [made]:
            request.document = number
        return made

    # the harness makes the context of each document in turn, and then its requests
    task.fewshot_context = lambda *own, **options: named(
        f", document {next(numbers)}", fewshot_context, *own, **options
    )
    task.construct_requests = construct_named
    for method in ("doc_to_prefix", "apply_filters", "process_results"):
        setattr(task, method, partial(named, f", {method}", getattr(task, method)))


def _require_columns(name: str, task: ConfigurableTask) -> None:
    """Refuses a template of one word that is no column: the harness would take it for the text itself."""
    source = (task.config.metadata or {}).get("config_source", "inline")
    if Path(source).is_relative_to(Path(lm_eval.__file__).parent):
        return
    for where, config in (("", task.config), ("fewshot_config: ", task.fewshot_cfg)):
        for key in ("doc_to_text", "doc_to_target"):
            template = getattr(config, key, None)
            if isinstance(template, str) and template.isidentifier() and template not in task.features:
                close = difflib.get_close_matches(template, task.features, n=1)
                hint = f"; did you mean {close[0]}?" if close else "."
                raise DataError(
                    f"Task {name} ({source}): {where}{key}: there is no column {template!r}{hint} The data has "
                    f"{', '.join(task.features)}. (A text of one word is written {{{{{template!r}}}}}.)"
                )


def _require_aggregations(name: str, task: ConfigurableTask) -> None:
    """Refuses metrics that the harness could not aggregate after the last answer."""
    without = [metric for metric, function in task.aggregation().items() if function is None]
    if without:
        raise DataError(f"Task {name}: {', '.join(without)}: {_NO_AGGREGATION}.")


def _unloadable(name: str, why: str, logged: str) -> DataError:
    return DataError(f"The task {name} cannot be loaded: {why}{f' ({logged})' if logged else ''}")


def save(tracker: EvaluationTracker, results: dict[str, Any], folder: Path) -> TasksFiles:
    """Writes the harness' own files: `results_DATE.json`, and `samples_TASK_DATE.jsonl` for each task."""
    samples = results.pop("samples")
    with quiet(), private_files():
        tracker.save_results_aggregated(results=results, samples=samples)
        for name, of_task in samples.items():
            tracker.save_results_samples(name, of_task)
    aggregated = f"results_{tracker.date_id}.json"
    files = TasksFiles(
        results=aggregated, samples={name: f"samples_{name}_{tracker.date_id}.jsonl" for name in samples}
    )
    # the tracker only logs its errors
    wanted: dict[str, int | None] = {
        aggregated: None,
        **{files.samples[name]: len(of_task) for name, of_task in samples.items()},
    }
    for name, lines in wanted.items():
        if not _is_written(folder / name, lines):
            raise RunError(
                f"The harness could not write {folder / name}. All answers are in the journal: fix the cause and start "
                "the same command again."
            )
    return files


def _is_written(path: Path, lines: int | None) -> bool:
    """Returns whether a file has the given number of lines, or without it whether it is JSON."""
    try:
        with path.open("rb") as file:
            return bool(json.load(file)) if lines is None else sum(1 for _ in file) == lines
    except (OSError, ValueError):
        return False
