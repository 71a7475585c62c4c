"""Logs metrics and progress to TensorBoard, Weights & Biases or MLflow, through `accelerate.tracking`."""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any, Literal, TypeAlias, get_args

from dist_eval.errors import ConfigError, one_line, print_error
from dist_eval.process.files import private_files

# Weights & Biases would send the command line with peer addresses (`_DISABLE_META`, `X_` in newer versions). Both would
# report errors or usage to their vendors, and repeat the run's output.
_ENVIRONMENT = {
    "WANDB__DISABLE_META": "true",
    "WANDB_X_DISABLE_META": "true",
    "WANDB_CONSOLE": "off",
    "WANDB_ERROR_REPORTING": "false",
    "WANDB_QUIET": "true",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
}

# MLflow's limits on names, which look like paths, and on values of options
_REFUSED_IN_NAMES, _LONGEST_NAME, _LONGEST_OPTION = re.compile(r"[^/\w.\- :]"), 250, 6000
_AT_ONCE = 1000  # maximum number of metrics per call of MLflow

TrackerName: TypeAlias = Literal["tensorboard", "wandb", "mlflow"]
TRACKERS: tuple[TrackerName, ...] = get_args(TrackerName)
PROJECT = "dist_eval"  # project of evaluations in trackers

# Time for trackers to send pending values at the end of a run; MLflow may still be creating its database
_LAST_SECONDS, _LAST_SECONDS_OF_A_FAILED_RUN = 60.0, 5.0  # other processes wait for the failure report
_PASSWORD = re.compile(r"(?<=://)[^/@\s]+@")  # in an address that an error may contain


class Tracker:
    """A started tracker of `TRACKERS`."""

    def __init__(self, tracker: Any, name: str) -> None:
        self._tracker, self._name = tracker, name

    def log(self, values: Mapping[str, float | None], step: int) -> None:
        """Logs values by name, except undefined ones."""
        named = _mlflow_name if self._name == "mlflow" else str
        defined = [(named(name), value) for name, value in values.items() if value is not None and math.isfinite(value)]
        with private_files():
            for start in range(0, len(defined), _AT_ONCE):
                self._tracker.log(dict(defined[start : start + _AT_ONCE]), step=step)

    def mark_failed(self) -> None:
        """Marks the run as failed, in trackers that support it."""
        with private_files():
            if self._name == "mlflow":
                import mlflow

                mlflow.end_run("FAILED")
            elif self._name == "wandb":
                self._tracker.tracker.finish(exit_code=1)


def _mlflow_name(name: str) -> str:
    parts = [part for part in _REFUSED_IN_NAMES.sub("_", name).split("/") if part.strip(".")]
    return "/".join(parts)[:_LONGEST_NAME]


class Trackers:
    """Any number of trackers in the background (see `trackers_in_background`)."""

    def __init__(self) -> None:
        self._queues: list[SimpleQueue[tuple[Mapping[str, float | None], int] | None]] = []
        self._threads: list[Thread] = []
        self._has_failed = False

    def __bool__(self) -> bool:
        return bool(self._threads)

    def log(self, values: Mapping[str, float | None], step: int) -> None:
        """Queues values by name for logging, except undefined ones."""
        for queue in self._queues:
            queue.put((values, step))

    def _start(self, name: str, folder: Path, options: Mapping[str, Any], project: str) -> None:
        queue: SimpleQueue[tuple[Mapping[str, float | None], int] | None] = SimpleQueue()

        def work() -> None:
            try:
                with open_tracker(name, folder, options, project) as tracker:
                    for values, step in iter(queue.get, None):
                        tracker.log(values, step)
                    if self._has_failed:
                        tracker.mark_failed()
            except Exception as error:  # any error of the tracker's library
                reason = _PASSWORD.sub("", one_line(error))
                print_error(f"--tracker {name}: {reason.rstrip('.')}. The run continues without it.")

        self._queues.append(queue)
        self._threads.append(Thread(target=work, name=f"tracker {name}", daemon=True))
        self._threads[-1].start()

    def _close(self) -> None:
        for queue in self._queues:
            queue.put(None)
        seconds = _LAST_SECONDS_OF_A_FAILED_RUN if self._has_failed else _LAST_SECONDS
        give_up = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, give_up - time.monotonic()))
            if thread.is_alive():
                name = thread.name.rpartition(" ")[2]
                print_error(
                    f"--tracker {name} did not log all values within {seconds:g} s; the remaining ones are dropped."
                )


def require_trackers(names: Sequence[str]) -> None:
    """Checks that the libraries of trackers are installed; raises ConfigError for the first that is not."""
    if not names:
        return
    from accelerate.tracking import get_available_trackers

    available = {str(name) for name in get_available_trackers()}
    for name in names:
        if name not in available:
            raise ConfigError(f"--tracker {name} needs the package {name}, which is not installed.")


@contextmanager
def open_tracker(name: str, folder: Path, options: Mapping[str, Any], project: str) -> Iterator[Tracker]:
    """Opens a tracker, one of `TRACKERS`, within the context, and logs the run's options.

    TensorBoard writes to the folder `logs` in `folder`. `project` is the project's name in the tracker.
    """
    from accelerate.tracking import LOGGER_TYPE_TO_CLASS

    for variable, value in _ENVIRONMENT.items():
        os.environ.setdefault(variable, value)
    with private_files():
        tracker = LOGGER_TYPE_TO_CLASS[name](project, **_arguments(name, folder))
        if hasattr(tracker, "start"):  # before accelerate 1.8, trackers start by themselves
            tracker.start()
    try:
        with private_files():
            tracker.store_init_configuration(
                {
                    option: value if isinstance(value, (bool, int, float)) else str(value)[:_LONGEST_OPTION]
                    for option, value in options.items()
                }
            )
        yield Tracker(tracker, name)
    finally:
        with private_files():
            tracker.finish()


def _arguments(name: str, folder: Path) -> dict[str, str]:
    """Returns a tracker's name and folder of the run, unless the environment sets them."""
    run, place = folder.resolve().name, str(folder)
    own = {
        "tensorboard": {"logging_dir": ("", str(folder / "logs"))},
        "wandb": {"name": ("WANDB_NAME", run), "dir": ("WANDB_DIR", place)},  # otherwise the working directory
        "mlflow": {"run_name": ("MLFLOW_RUN_NAME", run)},
    }
    return {argument: value for argument, (variable, value) in own[name].items() if variable not in os.environ}


@contextmanager
def trackers_in_background(
    names: Sequence[str], folder: Path, options: Mapping[str, Any], project: str
) -> Iterator[Trackers]:
    """Opens trackers within the context, each in its own thread, so that the run neither waits nor fails.

    A tracker that fails is reported in one line and then ignored. Called on the leader, within the process group if
    there is one. The arguments are those of `open_tracker`, for several names.
    """
    trackers = Trackers()
    if names:
        from accelerate import PartialState

        with suppress(Exception):  # a tracker reports the error
            PartialState()  # now, because later it would open its own process group
    for name in names:
        trackers._start(name, folder, options, project)
    try:
        yield trackers
    except BaseException:
        trackers._has_failed = True
        raise
    finally:
        trackers._close()
