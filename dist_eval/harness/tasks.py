"""The harness' tasks: found by name, loaded once, and run."""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import itertools
import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import datasets
from lm_eval import evaluator
from lm_eval.api.model import LM
from lm_eval.api.task import ConfigurableTask
from lm_eval.loggers import EvaluationTracker
from lm_eval.tasks import TaskManager, _yaml_loader
from lm_eval.tasks._index import Entry, Kind

from dist_eval.errors import ConfigError, DataError, EvaluationError, RunError, error_summary
from dist_eval.harness.examples import ExampleGuard, document_text
from dist_eval.harness.notices import Notices, after_metrics, before_requests
from dist_eval.options.harness import HarnessConfig
from dist_eval.process.files import private_files
from dist_eval.process.parsing import require_small
from dist_eval.process.patching import patched
from dist_eval.results.harness import HarnessFiles

SHIPPED = Path(__file__).parent / "shipped_tasks"
"""Task files of this package."""

_NAMED = 3


class _BoundedLoader(_yaml_loader._Base):  # type: ignore[misc]  # the harness'
    def get_single_node(self) -> Any:
        node = super().get_single_node()
        require_small(node)
        return node


@dataclass(frozen=True)
class LoadedTasks:
    """The tasks of a run."""

    manager: TaskManager  # finds exactly these
    tasks: dict[str, Any]  # the tasks by name
    options: HarnessConfig  # the options of the run
    notices: Notices  # what the harness warns of
    guards: dict[str, ExampleGuard]  # what keeps questions out of their examples, by task

    @classmethod
    def load(cls, options: HarnessConfig) -> LoadedTasks:
        """Reads the tasks and their data."""
        missing = [path for path in options.include_path if not Path(path).is_dir()]
        if missing:
            raise ConfigError(f"--include-path {missing[0]}: there is no such folder.")
        loaded: dict[str, Any] = {"tasks": {}, "groups": {}, "group_map": {}}
        notices, bounded = Notices(), patched(_yaml_loader, "_Base", _BoundedLoader)
        with notices.listening(), quiet(not options.verbose), _no_remote_code(), bounded:
            manager = _manager(options, notices)
            skipped = _own_skipped(notices, options)
            for name in dict.fromkeys(options.tasks):
                if name not in manager.all_tasks and not Path(name).is_file():
                    close = difflib.get_close_matches(name, manager.all_tasks, n=_NAMED)
                    raise _no_task(name, skipped, f"Did you mean {' or '.join(close)}?" if close else "")
                try:
                    found = manager.load([name])
                except Exception as error:  # of yaml, of datasets, of the hub's client, of a task's own code
                    logged = f" ({notices.error})" if notices.error else ""
                    raise DataError(f"The task {name} cannot be loaded: {error_summary(error)}{logged}") from error
                for part in ("groups", "group_map"):
                    loaded[part].update(found.get(part, {}))
                _add_tasks(loaded["tasks"], found)
        for path, why in skipped:
            notices.say(f"The task file {path} cannot be read: {why}.")
        for name, task in loaded["tasks"].items():
            for text in before_requests(name, task, options.num_fewshot):
                notices.say(text)
        manager.load = lambda _: loaded  # the harness would read all data again
        guards = {
            name: ExampleGuard(task) for name, task in loaded["tasks"].items() if isinstance(task, ConfigurableTask)
        }
        for name, task in loaded["tasks"].items():
            _name_documents(name, task)
        return cls(manager, loaded["tasks"], options, notices, guards)

    def say_replaced(self) -> None:
        """Adds notices about examples that were replaced, once requests are built."""
        for name, guard in self.guards.items():
            if guard.prompts:
                documents = len({instance.doc_id for instance in self.tasks[name].instances})
                self.notices.say(
                    f"Task {name}: the examples of {guard.prompts} of {documents} prompts held the question itself, "
                    "with its answer; others took their place. A fewshot_split of its own avoids that."
                )

    def identity(self) -> dict[str, str]:
        """Returns hashes of the tasks and their documents, by names for error messages, once requests are built."""
        configs = {name: task.dump_config() for name, task in sorted(self.tasks.items())}
        documents = hashlib.sha256()
        for name, task in sorted(self.tasks.items()):
            known = -1
            for instance in task.instances:
                if instance.doc_id != known:
                    documents.update(
                        f"{name} {instance.doc_id} {document_text(instance.doc)}\n".encode(errors="surrogatepass")
                    )
                known = instance.doc_id
        return {
            "--tasks": " ".join(self.tasks),
            "definition of the tasks": hashlib.sha256(document_text(configs).encode()).hexdigest(),
            "data of the tasks": documents.hexdigest(),
            "version of lm-eval": version("lm-eval"),
        }

    def aggregations(self) -> dict[str, dict[str, str | None]]:
        """Returns which function of the harness makes each metric of documents' values, by task and metric."""
        return {
            name: {
                metric: function.__name__ if function.__module__ == "lm_eval.api.metrics" else None
                for metric, function in task.aggregation().items()
            }
            for name, task in self.tasks.items()
        }

    def run(self, model: LM, tracker: EvaluationTracker) -> dict[str, Any]:
        """Runs the harness."""
        options = self.options
        limit = options.limit if options.limit is None or options.limit < 1 else int(options.limit)
        try:
            with (
                self.notices.listening(),
                quiet(not options.verbose),
                _single_process(),
                patched(evaluator, "get_git_commit_hash", lambda: None),
            ):
                results = evaluator.simple_evaluate(
                    model=model,
                    model_args={"pretrained": str(options.model)},
                    tasks=list(self.tasks),
                    task_manager=self.manager,
                    num_fewshot=options.num_fewshot,
                    limit=limit,
                    bootstrap_iters=options.bootstrap_iters,
                    apply_chat_template=options.apply_chat_template,
                    evaluation_tracker=tracker,
                )
        except EvaluationError:
            raise
        except Exception as error:  # of a task's own code, templates and metrics
            raise DataError(
                f"The harness failed on the tasks {', '.join(self.tasks)}: {error_summary(error)}"
            ) from error
        for name, samples in results["samples"].items():
            for text in after_metrics(name, self.tasks[name], samples, results["results"][name]):
                self.notices.say(text)
        return dict(results)


def _manager(options: HarnessConfig, notices: Notices) -> TaskManager:
    """Indexes the tasks; those of the harness only if they are needed, because they are thousands of files."""
    places = {
        "include_path": [str(SHIPPED), *options.include_path],
        "metadata": {"pretrained": options.model},
    }
    manager = TaskManager(include_defaults=False, **places)
    if _knows(manager, options.tasks):
        return manager
    skipped = _own_skipped(notices, options)
    for name in options.tasks:
        if any(Path(path).stem == name for path, _ in skipped):  # never the harness' own in its place
            raise _no_task(name, skipped)
    return TaskManager(**places)


def _no_task(name: str, skipped: list[tuple[str, str]], hint: str = "") -> ConfigError:
    reasons = "; ".join(f"{path} cannot be read: {why}" for path, why in skipped[:_NAMED])
    return ConfigError(f"--tasks: the harness has no task {name!r}. {reasons or hint or 'Is --include-path missing?'}")


def _knows(manager: TaskManager, names: list[Any]) -> bool:
    """Whether there are tasks of these names, and groups with all that is in them."""
    entries = [manager.task_index.get(name) if isinstance(name, str) else None for name in names]
    return all(
        entry is not None
        and (entry.kind in (Kind.TASK, Kind.PY_TASK) or (entry.kind is Kind.GROUP and _knows(manager, _members(entry))))
        for entry in entries
    )


def _members(group: Entry) -> list[Any]:
    """Returns the names of what is in a group; such as it defines itself has none that counts."""
    members = (group.cfg or {}).get("task") or []
    named = [members] if isinstance(members, str) else members
    return [member.get("task") if isinstance(member, dict) else member for member in named]


def _own_skipped(notices: Notices, options: HarnessConfig) -> list[tuple[str, str]]:
    """Returns the skipped files that are in the folders of `--include-path`, each with the reason."""
    folders = options.include_path
    return [(path, why) for path, why in notices.skipped.items() if any(map(Path(path).is_relative_to, folders))]


def _add_tasks(tasks: dict[str, Any], found: Mapping[str, Any]) -> None:
    """Adds tasks to others."""
    members = [task for group in found.get("groups", {}).values() for task in group.get_all_tasks()]
    for task in [*found["tasks"].values(), *members]:
        other = tasks.setdefault(task.task_name, task)
        if other is not task and document_text(other.dump_config()) != document_text(task.dump_config()):
            raise ConfigError(
                f"--tasks: there are two different tasks {task.task_name!r}, such as one of a group that changes it. "
                "Evaluate them in two runs, or give one of them another name."
            )


def _name_documents(name: str, task: Any) -> None:
    """Makes errors of a task's templates and code name the document that they were given."""
    numbers = itertools.count()

    def named(call: Callable[..., Any], number: int) -> Any:
        try:
            return call()
        except EvaluationError:
            raise
        except Exception as error:
            raise DataError(f"Task {name}, document {number}: {error_summary(error)}") from error

    fewshot_context, construct_requests = task.fewshot_context, task.construct_requests
    # the harness makes the context of each document, one after the other, and then its requests
    task.fewshot_context = lambda *own, **options: named(partial(fewshot_context, *own, **options), next(numbers))
    task.construct_requests = lambda *own, **options: named(
        partial(construct_requests, *own, **options), options["metadata"][1]
    )


def tracker_of(folder: Path) -> EvaluationTracker:
    """Returns what writes the harness' own files to a folder."""
    return EvaluationTracker(output_path=str(folder / "results.json"))


def save(tracker: EvaluationTracker, results: dict[str, Any], folder: Path) -> HarnessFiles:
    """Writes the harness' own files: `results_DATE.json`, and `samples_TASK_DATE.jsonl` of each task."""
    samples = results.pop("samples")
    with quiet(), private_files():
        tracker.save_results_aggregated(results=results, samples=samples)
        for name, of_task in samples.items():
            tracker.save_results_samples(name, of_task)
    aggregated = f"results_{tracker.date_id}.json"
    files = HarnessFiles(
        results=aggregated,
        samples={name: f"samples_{name}_{tracker.date_id}.jsonl" for name in samples},
    )
    # the tracker only logs its errors
    wanted: dict[str, int | None] = {
        aggregated: None,
        **{files.samples[name]: len(of_task) for name, of_task in samples.items()},
    }
    for name, lines in wanted.items():
        if not _is_written(folder / name, lines):
            raise RunError(
                f"The harness could not write {folder / name}. All answers are in the journal: start the same command "
                "again once that is fixed."
            )
    return files


def _is_written(path: Path, lines: int | None) -> bool:
    """Returns whether a file has so many lines, or whether it is JSON."""
    try:
        with path.open("rb") as file:
            return bool(json.load(file)) if lines is None else sum(1 for _ in file) == lines
    except (OSError, ValueError):
        return False


@contextlib.contextmanager
def quiet(is_quiet: bool = True) -> Iterator[None]:
    """Keeps progress bars, prints and warnings of the harness off the terminal."""
    if not is_quiet:
        yield
        return
    with (
        open(os.devnull, "w", encoding="utf-8") as sink,
        contextlib.redirect_stdout(sink),
        contextlib.redirect_stderr(sink),
    ):
        yield


@contextlib.contextmanager
def on_terminal(stdout: Any, stderr: Any) -> Iterator[None]:
    """Shows what is printed within `quiet` all the same."""
    with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
        yield


@contextlib.contextmanager
def _no_remote_code() -> Iterator[None]:
    """Keeps code of a hub's datasets from being run, whatever a task's file says."""
    load = datasets.load_dataset

    def load_data_only(*arguments: Any, **options: Any) -> Any:
        return load(*arguments, **{**options, "trust_remote_code": False})

    datasets.load_dataset = load_data_only
    try:
        yield
    finally:
        datasets.load_dataset = load


@contextlib.contextmanager
def _single_process() -> Iterator[None]:
    """Keeps the harness' bootstrap from forking a process that is connected to a swarm; its values do not change."""
    before = os.environ.get("DISABLE_MULTIPROC")
    os.environ["DISABLE_MULTIPROC"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["DISABLE_MULTIPROC"]
        else:
            os.environ["DISABLE_MULTIPROC"] = before
