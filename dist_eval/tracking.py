"""Logs metrics and progress to TensorBoard, Weights & Biases or MLflow, through `accelerate.tracking`."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any

from dist_eval.errors import ConfigError, one_line, print_error
from dist_eval.process.files import private_files

_WANDB_NEWER = (("X_DISABLE_META", "true"),)  # Name of the variable `_DISABLE_META` in newer versions

TRACKERS = ("tensorboard", "wandb", "mlflow")
PROJECT = "dist_eval"
"""Name of the project of evaluations in trackers."""

_LAST_SECONDS = 20.0  # that a tracker has at the end of a run for what it has not yet sent
_PASSWORD = re.compile(r"(?<=://)[^/@\s]+@")  # in an address that an error may name


class Tracker:
    """One tracker.

    Args:
        tracker: a started tracker of `accelerate.tracking`.
    """

    def __init__(self, tracker: Any) -> None:
        self._tracker = tracker

    def log(self, values: Mapping[str, float | None], step: int) -> None:
        """Logs values by name; undefined ones are left out."""
        defined = {name: value for name, value in values.items() if value is not None and math.isfinite(value)}
        with private_files():
            self._tracker.log(defined, step=step)


class Trackers:
    """Any number of trackers that nobody waits for; see `trackers_in_background`."""

    def __init__(self) -> None:
        self._queues: list[SimpleQueue[tuple[Mapping[str, float | None], int] | None]] = []
        self._threads: list[Thread] = []

    def __bool__(self) -> bool:
        return bool(self._threads)

    def log(self, values: Mapping[str, float | None], step: int) -> None:
        """Hands values over to be logged by name; undefined ones are left out."""
        for queue in self._queues:
            queue.put((values, step))

    def _start(self, name: str, folder: Path, options: Mapping[str, Any], project: str) -> None:
        queue: SimpleQueue[tuple[Mapping[str, float | None], int] | None] = SimpleQueue()

        def work() -> None:
            try:
                with open_tracker(name, folder, options, project) as tracker:
                    for values, step in iter(queue.get, None):
                        tracker.log(values, step)
            except Exception as error:  # any of the tracker's library
                reason = _PASSWORD.sub("", one_line(error))
                print_error(f"--tracker {name}: {reason.rstrip('.')}. The run goes on without it.")

        self._queues.append(queue)
        self._threads.append(Thread(target=work, name=f"tracker {name}", daemon=True))
        self._threads[-1].start()

    def _close(self) -> None:
        for queue in self._queues:
            queue.put(None)
        for thread in self._threads:
            thread.join(_LAST_SECONDS)
            if thread.is_alive():
                name = thread.name.rpartition(" ")[2]
                print_error(f"--tracker {name} has not taken all values within {_LAST_SECONDS:g} s; the run is done.")


def require_trackers(names: Sequence[str]) -> None:
    """Checks that the libraries of trackers are installed.

    Raises:
        ConfigError: a library is not installed; the message names it.
    """
    if not names:
        return
    from accelerate.tracking import get_available_trackers

    available = {str(name) for name in get_available_trackers()}
    for name in names:
        if name not in available:
            raise ConfigError(f"--tracker {name} needs the package {name}, which is not installed.")


@contextmanager
def open_tracker(name: str, folder: Path, options: Mapping[str, Any], project: str) -> Iterator[Tracker]:
    """Opens a tracker for the time of the context.

    Args:
        name: one of `TRACKERS`.
        folder: trackers that write files write to its folder `logs`.
        options: the run's options, which are logged, too.
        project: the project's name in the tracker.

    Yields:
        The tracker.
    """
    from accelerate.tracking import LOGGER_TYPE_TO_CLASS

    # Weights & Biases would write into the working directory, and send the command line, which holds peer addresses
    for variable, value in (("DIR", str(folder)), ("CONSOLE", "off"), ("_DISABLE_META", "true"), *_WANDB_NEWER):
        os.environ.setdefault(f"WANDB_{variable}", value)
    tracker_class = LOGGER_TYPE_TO_CLASS[name]
    where = {"logging_dir": str(folder / "logs")} if tracker_class.requires_logging_directory else {}
    with private_files():
        tracker = tracker_class(project, **where)
        if hasattr(tracker, "start"):  # before accelerate 1.8, trackers start by themselves
            tracker.start()
    try:
        with private_files():
            tracker.store_init_configuration(
                {name: one if isinstance(one, (bool, int, float)) else str(one) for name, one in options.items()}
            )
        yield Tracker(tracker)
    finally:
        with private_files():
            tracker.finish()


@contextmanager
def trackers_in_background(
    names: Sequence[str], folder: Path, options: Mapping[str, Any], project: str
) -> Iterator[Trackers]:
    """Opens trackers for the time of the context, each in a thread of its own: the run neither waits nor fails.

    A tracker that fails is reported in one line, and then left out. Called on the leader, within the process group if
    there is one. The arguments are those of `open_tracker`, for several names.

    Yields:
        The trackers.
    """
    trackers = Trackers()
    if names:
        from accelerate import PartialState

        with suppress(Exception):  # a tracker would say what is wrong
            PartialState()  # now: later it would open a process group of its own
    for name in names:
        trackers._start(name, folder, options, project)
    try:
        yield trackers
    finally:
        trackers._close()
