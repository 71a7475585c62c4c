"""`dist-eval run` and `dist-eval harness` from a program or a notebook: `run` and `run_tasks`.

The command runs in its own process, even for a single rank, and its results are read from its folder. So there is one
way to run, and a call leaves nothing behind in the program: no signal handlers, process groups, threads or memory. All
processes are in a workspace (see `dist_eval.process.lifetime`) and end with it, even after a SIGKILL.
"""

from __future__ import annotations

import dataclasses
import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import yaml
from pydantic import PrivateAttr

from dist_eval import errors
from dist_eval.arguments.commandline import Command, convert_options
from dist_eval.arguments.fields import flag, options_of
from dist_eval.data.in_memory import is_in_memory, write_parquet
from dist_eval.distributed.display import BAR
from dist_eval.errors import ConfigError, CoverageError, EvaluationError, RunError, RunStopped
from dist_eval.options.config import EVALUATION, RunConfig
from dist_eval.options.harness import HARNESS
from dist_eval.process.lifetime import workspace
from dist_eval.process.programs import COMPLETE, STOPPED, STOPPED_BY_A_PERSON
from dist_eval.record import Record
from dist_eval.results.run import CompleteRun, CompleteTasksRun, EndedRun
from dist_eval.runs.outcome import read_outcome
from dist_eval.runs.reading import read_run

if TYPE_CHECKING:
    from dist_eval.report.document import Document

PYTHON = sys.executable
_OPTIONS, _REPORT = "options.yaml", "error.json"  # files in the scratch folder; the second is torchrun's error file
_ERROR = "dist_eval: "  # prefix of a command's errors
_LAST_WORDS_SECONDS = 5.0  # maximum wait for the output of a run that has ended


class _Shown(Record):
    """The content of a run's `results.json`, shown as tables."""

    _folder: Path = PrivateAttr()

    @property
    def folder(self) -> Path:
        return self._folder

    def __repr__(self) -> str:
        from dist_eval.report.text import render_text

        return render_text(self._describe())

    __str__ = __repr__

    def _repr_html_(self) -> str:
        from dist_eval.report.html import render_summary

        return render_summary(self._describe())

    def _describe(self: Any) -> Document:
        from dist_eval.report.page import describe_run

        return describe_run(self.folder, results=self)


class EvaluationRun(_Shown, CompleteRun):
    """A complete evaluation on a dataset."""


class TasksRun(_Shown, CompleteTasksRun):
    """A complete run on tasks of the harness, or with generated texts."""


def run(
    config: RunConfig | Mapping[str, Any] | None = None, *, ranks: int = 1, **options: Any
) -> EvaluationRun | TasksRun:
    """Evaluates a model on a dataset in new processes, as `dist-eval run` does.

    A complete run in the folder is not computed again, and an interrupted one resumes. Progress is shown on standard
    error. Ctrl-C stops all ranks before it is raised here.

    Args:
        config: the options: an `EvaluationConfig`, or a mapping by their names as in a YAML file (`--config`).
        ranks: number of processes on this host.
        **options: further options, which take precedence. `dataset` also takes rows: a data frame of pandas or polars,
            a `datasets.Dataset`, any table with Arrow's interface, or a list of mappings. They are written to a
            temporary file, and identified by their hash like files.

    Returns:
        The content of `results.json` as records (`metrics`, `intervals`, `coverage` and so on), and the run's `folder`.
        Notebooks and `print` show it as tables.

    Raises:
        EvaluationError: with the command's message and a fitting class: `ConfigError` for wrong options, `DataError`,
            `CheckpointError`, `SwarmError`, and so on; `RunStopped` if the run was stopped.
    """
    return _run(EVALUATION, "run", config, options, ranks)


def run_tasks(config: RunConfig | Mapping[str, Any] | None = None, *, ranks: int = 1, **options: Any) -> TasksRun:
    """Evaluates a language model on tasks of the lm-evaluation-harness, as `dist-eval harness` does.

    Args:
        config: the options: a `HarnessConfig`, or a mapping by their names as in a YAML file (`--config`).
        ranks: number of processes on this host.
        **options: further options, which take precedence.

    Returns:
        The content of `results.json` as records: `tasks`, `groups`, `metrics`, `coverage` and so on (see `run`).

    Raises:
        EvaluationError: with the command's message (see `run`).
    """
    found = _run(HARNESS, "harness", config, options, ranks)
    assert isinstance(found, TasksRun)
    return found


def _run(
    command: Command[Any], name: str, config: Any, options: Mapping[str, Any], ranks: int
) -> EvaluationRun | TasksRun:
    where = "dist_eval.run" if command is EVALUATION else "dist_eval.run_tasks"
    if os.environ.get("WORLD_SIZE", "1") != "1":
        raise ConfigError(f"{where} starts its own ranks: call it without torchrun, or call dist_eval.evaluate.")
    if not isinstance(ranks, int) or ranks < 1:
        raise ConfigError(f"{where}: ranks must be an integer of at least 1, not {ranks!r}.")
    given = {**_options_in(config, command, where), **options}
    dataset = given.get("dataset")
    if not (dataset is None or is_in_memory(dataset) or _names_files(dataset)):
        raise ConfigError(
            f"{where}: dataset takes names of files, a data frame, a `datasets.Dataset`, a table of Arrow, or a list "
            f"of mappings with at least one row, not {type(dataset).__name__}."
        )
    with workspace() as scratch_dir:
        file = scratch_dir / f"{type(dataset).__name__}.parquet"
        if is_in_memory(dataset):
            given["dataset"] = file
        values = convert_options({key: _plain(value) for key, value in given.items()}, command.config, where)
        try:
            checked = command.config(**values)
        except ConfigError as error:
            raise ConfigError(_with_python_names(str(error), command)) from error
        folder = checked.output_folder
        if is_in_memory(dataset):
            write_parquet(dataset, file)
        (scratch_dir / _OPTIONS).write_text(yaml.safe_dump(values, allow_unicode=True), encoding="utf-8")
        status, said = _execute([name, f"--nproc-per-node={ranks}"], scratch_dir)
        if status != COMPLETE:
            raise _error_of(status, said, scratch_dir, folder, command)
    found = read_run(folder)
    kind = TasksRun if isinstance(found, CompleteTasksRun) else EvaluationRun
    shown = kind.model_construct(**dict(found))
    shown._folder = folder
    return shown


def _names_files(dataset: Any) -> bool:
    names = dataset if isinstance(dataset, (list, tuple)) else [dataset]
    return bool(names) and all(isinstance(name, (str, os.PathLike)) for name in names)


def _options_in(config: Any, command: Command[Any], where: str) -> dict[str, Any]:
    if config is None:
        return {}
    if isinstance(config, command.config):
        return {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    if isinstance(config, Mapping):
        return dict(config)
    kinds = f"a mapping of them or {command.config.__name__}, not {type(config).__name__}"
    raise ConfigError(f"{where} takes options by name, {kinds}.")


def _plain(value: Any) -> Any:
    """Returns a value in YAML's types, which have neither paths nor tuples."""
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def _execute(arguments: Sequence[str], scratch_dir: Path) -> tuple[int, str]:
    """Runs a command of `dist-eval` to its end; returns its exit status and the last printed error."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),  # finds custom metrics of this program
        "TMPDIR": str(scratch_dir),  # marks all child processes, which end with it
        "TORCHELASTIC_ERROR_FILE": str(scratch_dir / _REPORT),
        **({BAR: "1"} if _shows_bars() else {}),
    }
    process = subprocess.Popen(
        [PYTHON, "-m", "dist_eval.cli.main", *arguments, f"--config={scratch_dir / _OPTIONS}"],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,  # the output repeats the returned results
        stderr=subprocess.PIPE,
        start_new_session=True,  # this process passes Ctrl-C on, once
    )
    assert process.stderr is not None
    said, error = _StandardError(process.stderr), ""
    try:
        if process.wait() != COMPLETE:
            error = said.take_error()
        return process.returncode, error
    except KeyboardInterrupt:
        process.send_signal(signal.SIGINT)
        process.wait()  # for batches in flight; another Ctrl-C ends everything
        raise
    finally:
        process.kill()
        said.finish()


class _StandardError(threading.Thread):
    """Copies a run's standard error, and keeps its last error for `take_error`."""

    def __init__(self, stream: IO[bytes]) -> None:
        super().__init__(daemon=True)
        self._stream = io.TextIOWrapper(
            stream, encoding="utf-8", errors="replace", newline=""
        )  # keeps the "\r" of a progress bar
        self._error = ""
        self.start()

    def run(self) -> None:
        with self._stream:
            for piece in self._stream:
                _print(self._error)
                self._error = piece if piece.startswith(_ERROR) else ""
                _print("" if self._error else piece)

    def take_error(self) -> str:
        self.join(_LAST_WORDS_SECONDS)
        error, self._error = self._error, ""
        return error.removeprefix(_ERROR).rstrip()

    def finish(self) -> None:
        self.join(_LAST_WORDS_SECONDS)
        _print(self._error)


def _print(text: str) -> None:
    if text:
        sys.stderr.write(text)
        sys.stderr.flush()


def _shows_bars() -> bool:
    """Returns whether a progress bar is possible: on a terminal or in a notebook."""
    ipython = sys.modules.get("IPython")
    return sys.stderr.isatty() or hasattr(ipython.get_ipython() if ipython else None, "kernel")


def _with_python_names(message: str, command: Command[Any]) -> str:
    """Names options as a program gives them: `label_column` for --label-column."""
    names = {flag(name): f"`{name}`" for name in options_of(command.config)}
    return re.sub(r"--[a-z][a-z-]*[a-z]", lambda found: names.get(found[0], found[0]), message)


def _error_of(status: int, said: str, scratch_dir: Path, folder: Path, command: Command[Any]) -> EvaluationError:
    message, name = said or f"The run ended with status {status}; its output is above.", ""
    with suppress(OSError, ValueError, KeyError, TypeError):  # killed ranks have not written it
        report = json.loads((scratch_dir / _REPORT).read_bytes())["message"]
        message, name = report["message"], report["extraInfo"]["type"]
    message = _with_python_names(message, command)
    kind = getattr(errors, name) if name in errors.__all__ else RunError
    if status in (STOPPED, STOPPED_BY_A_PERSON):
        kind = RunStopped
    if kind not in (CoverageError, RunStopped):
        return kind(message)
    results = read_outcome(folder).results
    return kind(message, results.coverage if isinstance(results, EndedRun) else None)
