"""Loss and metrics in TensorBoard, Weights & Biases or MLflow, through `accelerate.tracking`."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dist_eval.errors import ConfigError

_WANDB_NEWER = (("X_DISABLE_META", "true"),)
TRACKERS = ("tensorboard", "wandb", "mlflow")


class Trackers:
    """Some trackers, or none.

    Args:
        trackers: of `accelerate.tracking`, started.
    """

    def __init__(self, trackers: Sequence[Any] = ()) -> None:
        self._trackers = trackers

    def log(self, values: Mapping[str, float | None], step: int) -> None:
        """Logs figures by name; those that are undefined are left out."""
        known = {name: value for name, value in values.items() if value is not None and math.isfinite(value)}
        for tracker in self._trackers:
            tracker.log(known, step=step)


def require_trackers(names: Sequence[str]) -> None:
    """Checks that the libraries of trackers are installed.

    Raises:
        ConfigError: one is not; the message names it.
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
    """Opens trackers for the time of the context; on the leader, within the process group if there is one.

    Args:
        names: of trackers.
        folder: where those that write files have a folder `logs`.
        options: of the run; shown with its figures.
        project: under which they show it.
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
            tracker = tracker_class(project, **where)
            if hasattr(tracker, "start"):  # before accelerate 1.8 they start by themselves
                tracker.start()
            opened.append(tracker)
            tracker.store_init_configuration(
                {key: value if isinstance(value, (bool, int, float)) else str(value) for key, value in options.items()}
            )
        yield Trackers(opened)
    finally:
        for tracker in opened:
            tracker.finish()
