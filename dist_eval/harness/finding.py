"""Finds the harness' tasks by name and reads their files."""

from __future__ import annotations

import contextlib
import difflib
import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import datasets
from lm_eval.tasks import TaskManager, _factory, _yaml_loader
from lm_eval.tasks._index import Entry, Kind

from dist_eval.errors import ConfigError, DataError, error_summary
from dist_eval.harness.notices import Notices
from dist_eval.options.harness import HarnessConfig
from dist_eval.process.patching import patched

SHIPPED = Path(__file__).parent / "shipped_tasks"
"""Task files of this package."""

_NAMED = 3


def find_tasks(options: HarnessConfig, notices: Notices) -> tuple[TaskManager, list[str]]:
    """Indexes the tasks, and returns those that `--tasks` names, without reading their data."""
    with reading(options, notices):
        manager = _open_manager(options, notices)
        return manager, _named_tasks(manager, options, notices)


def _open_manager(options: HarnessConfig, notices: Notices) -> TaskManager:
    """Indexes the tasks; the harness' own, which are thousands of files, only if needed."""
    places = _places(options)
    manager = TaskManager(include_defaults=False, **places)
    for name in options.tasks:  # the harness' own have no such names
        is_path = "/" in name or name.endswith(".yaml")
        if is_path and not Path(name).exists() and not manager.match_tasks([name]):
            raise _no_task(name, [], "There is no file of this name.")
    asked = [own for name in options.tasks for own in (_tasks_of(manager, name) if _is_folder(name) else [name])]
    if _knows(manager, asked or own_tasks(manager, options.include_path)):
        return manager
    skipped = own_skipped(notices, options)
    for name in options.tasks:
        if any(Path(path).stem == name for path, _ in skipped):  # the harness' task must not take its place
            raise _no_task(name, skipped)
    return TaskManager(**places)


def _tasks_of(manager: TaskManager, name: str) -> list[str]:
    """Returns the names of the tasks that a name, pattern or folder stands for."""
    return own_tasks(manager, [name]) if _is_folder(name) else manager.match_tasks([name])


def own_tasks(manager: TaskManager, folders: Sequence[str]) -> list[str]:
    """Returns the names of the groups, then of the tasks, in folders that the manager has indexed."""
    groups: list[str] = []
    tasks: list[str] = []
    for name, entry in manager.task_index.items():
        if entry.yaml_path is not None and any(map(Path(entry.yaml_path).is_relative_to, folders)):
            (groups if entry.kind is Kind.GROUP else tasks).append(name)
    return sorted(groups) + sorted(tasks)


def _places(options: HarnessConfig) -> dict[str, Any]:
    """Returns the folders of task files, and the metadata for them."""
    missing = [path for path in options.include_path if not Path(path).is_dir()]
    if missing:
        raise ConfigError(f"--include-path {missing[0]}: there is no such folder.")
    return {"include_path": [str(SHIPPED), *_folders(options)], "metadata": {**options.model_args, **options.metadata}}


@contextlib.contextmanager
def reading(options: HarnessConfig, notices: Notices) -> Iterator[None]:
    """Lets the harness read task files and data safely, with errors that name the file."""
    with (
        notices.listening(),
        quiet(not options.verbose),
        patched(datasets, "load_dataset", partial(_load_data_only, datasets.load_dataset)),
        patched(_factory, "load_yaml", partial(_load_file, options)),
    ):
        yield


def _load_file(options: HarnessConfig, path: Path, **how: Any) -> dict[str, Any]:
    config = _yaml_loader.load_yaml(path, resolve_func=False)
    if config.get("unsafe_code"):  # its functions may be unsafe to import
        require_confirmed(options, f"{path}: unsafe_code: this task")
    try:
        return dict(_yaml_loader.load_yaml(path, **how))
    except Exception as error:  # of its own code
        raise DataError(f"{path}: {error_summary(error)}") from error


def _named_tasks(manager: TaskManager, options: HarnessConfig, notices: Notices) -> list[str]:
    """Returns the tasks, groups, tags and task files that `--tasks` names."""
    found: list[str] = []
    for name in options.tasks:
        matching = _tasks_of(manager, name)
        if not matching and not Path(name).is_file():
            close = difflib.get_close_matches(name, manager.all_tasks, n=_NAMED)
            hint = f"Did you mean {' or '.join(close)}?" if close else ""
            if Path(name).is_dir():
                hint = f"For the folder of this name, write ./{name}"
            raise _no_task(name, own_skipped(notices, options), hint)
        found += matching or [name]
    return list(dict.fromkeys(found))


def _no_task(name: str, skipped: list[tuple[str, str]], hint: str = "") -> ConfigError:
    reasons = "; ".join(f"{path} cannot be read: {why}" for path, why in skipped[:_NAMED])
    advice = " ".join(filter(None, (hint, reasons))) or "Is --include-path missing?"
    return ConfigError(f"--tasks: the harness has no task {name!r}. {advice}")


def _knows(manager: TaskManager, names: list[Any]) -> bool:
    """Whether all names are known tasks, or groups with known members."""
    entries = [manager.task_index.get(name) if isinstance(name, str) else None for name in names]
    return all(
        entry is not None
        and (entry.kind in (Kind.TASK, Kind.PY_TASK) or (entry.kind is Kind.GROUP and _knows(manager, _members(entry))))
        for entry in entries
    )


def _members(group: Entry) -> list[Any]:
    """Returns the names of a group's members; None for those that the group defines itself."""
    members = (group.cfg or {}).get("task") or []
    named = [members] if isinstance(members, str) else members
    return [member.get("task") if isinstance(member, dict) else member for member in named]


def _folders(options: HarnessConfig) -> list[str]:
    """Returns the user's folders of task files: those of `--include-path` and `--tasks`."""
    return list(dict.fromkeys([*options.include_path, *filter(_is_folder, options.tasks)]))


def _is_folder(name: str) -> bool:
    """Whether a value of `--tasks` names a folder; a plain word is a task even if there is such a folder."""
    return "/" in name and Path(name).is_dir()


def own_skipped(notices: Notices, options: HarnessConfig) -> list[tuple[str, str]]:
    """Returns the skipped files in the user's folders, each with the reason."""
    folders = _folders(options)
    return [(path, why) for path, why in notices.skipped.items() if any(map(Path(path).is_relative_to, folders))]


def require_confirmed(options: HarnessConfig, what: str) -> None:
    """Requires permission to execute code that the model writes; `what` executes it and begins the message."""
    if not options.confirm_run_unsafe_code:
        raise ConfigError(
            f"{what} executes code that the model writes, on this host and with your rights. Run it where it can do no "
            "harm, such as in a container, with --confirm-run-unsafe-code."
        )


@contextlib.contextmanager
def quiet(is_quiet: bool = True) -> Iterator[None]:
    """Suppresses progress bars, prints and warnings of the harness."""
    if not is_quiet:
        yield
        return
    with (
        open(os.devnull, "w", encoding="utf-8") as sink,
        contextlib.redirect_stdout(sink),
        contextlib.redirect_stderr(sink),
    ):
        yield


def _load_data_only(load: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Never runs code of a hub dataset, even if a task file asks for it."""
    return load(*arguments, **{**options, "trust_remote_code": False})
