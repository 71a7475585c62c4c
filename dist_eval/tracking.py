"""Logs loss and metrics to TensorBoard, Weights & Biases or MLflow, through `accelerate.tracking`."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dist_eval.errors import ConfigError
from dist_eval.process.files import private_files

_WANDB_NEWER = (("X_DISABLE_META", "true"),)  # Name of the variable `_DISABLE_META` in newer versions

TRACKERS = ("tensorboard", "wandb", "mlflow")


class Trackers:
    """Any number of trackers.

    Args:
        trackers: started trackers of `accelerate.tracking`.
    """

    def __init__(self, trackers: Sequence[Any] = ()) -> None:
        self._trackers = trackers

    def log(self, values: Mapping[str, float | None], step: int) -> None:
        """Logs values by name; undefined ones are left out."""
        defined = {name: value for name, value in values.items() if value is not None and math.isfinite(value)}
        with private_files():
            for tracker in self._trackers:
                tracker.log(defined, step=step)


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
def open_trackers(names: Sequence[str], folder: Path, options: Mapping[str, Any], project: str) -> Iterator[Trackers]:
    """Opens trackers for the time of the context; called on the leader, within the process group if there is one.

    Args:
        names: names of trackers, from `TRACKERS`.
        folder: trackers that write files write to its folder `logs`.
        options: the run's options, which are logged, too.
        project: the project's name in the tracker.

    Yields:
        The trackers.
    """
    if not names:
        yield Trackers()
        return
    from accelerate.tracking import LOGGER_TYPE_TO_CLASS

    # Weights & Biases would write into the working directory, and send the command line, which holds peer addresses
    for variable, value in (("DIR", str(folder)), ("CONSOLE", "off"), ("_DISABLE_META", "true"), *_WANDB_NEWER):
        os.environ.setdefault(f"WANDB_{variable}", value)
    opened: list[Any] = []
    try:
        for name in names:
            tracker_class = LOGGER_TYPE_TO_CLASS[name]
            where = {"logging_dir": str(folder / "logs")} if tracker_class.requires_logging_directory else {}
            with private_files():
                tracker = tracker_class(project, **where)
                if hasattr(tracker, "start"):  # before accelerate 1.8, trackers start by themselves
                    tracker.start()
                opened.append(tracker)
                tracker.store_init_configuration(
                    {name: one if isinstance(one, (bool, int, float)) else str(one) for name, one in options.items()}
                )
        yield Trackers(opened)
    finally:
        with private_files():
            for tracker in opened:
                tracker.finish()
