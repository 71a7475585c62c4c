"""The program of each rank of `benchmarks.scale`: a run that measures its phases, with stubs for forward passes.

torchrun --nproc_per_node=2 -m benchmarks.scale_rank FOLDER [options of dist_eval]
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NoReturn, cast
from unittest import mock

import torch

from benchmarks.ranks import Meter
from dist_eval.__main__ import run
from dist_eval.evaluation import context, runner, scoring, task, worker
from dist_eval.model.backbone import Backbone, HostedModel
from dist_eval.model.checkpoint import TunedCheckpoint
from dist_eval.model.classifier import Classifier
from dist_eval.options.commandline import parse_args
from dist_eval.process.lifetime import die_with_parent, temporary_files_in, workspace
from dist_eval.process.logging_setup import silence_libraries
from dist_eval.runs import evaluation_folder, journal
from dist_eval.swarm.routes import ANY_ROUTE, RouteRecord, SendOptions

PHASES = {
    "tokenizing": (runner, "write_dataset"),
    "planning": (task, "plan_with_shared_beginnings"),
    "sharding": (worker, "assign_batches"),
    "forwards": (worker, "predict_batches"),
    "journal": (journal.Journal, "append"),
    "reading back": (worker.BatchWorker, "collect"),
    "gather": (scoring, "gather_columns"),
    "reduce": (scoring, "sum_arrays"),
    "proof": (scoring, "prove_coverage"),
    "metrics": (scoring, "compute_metrics"),
    "intervals": (runner, "analyse"),
    "parquet": (evaluation_folder, "write_predictions"),
}
"""A run's steps, and the attribute to patch for each of them."""


class StubClassifier(Classifier):
    """A stub of a classifier: two logits that are a hash of the text's tokens."""

    def __init__(self, tuned: TunedCheckpoint) -> None:
        super().__init__(cast(Backbone, HostedModel()), tuned)

    def logits(
        self,
        input_ids: torch.Tensor,
        lengths: torch.Tensor,
        options: SendOptions = ANY_ROUTE,
        record: RouteRecord | None = None,
    ) -> torch.Tensor:
        """See `Classifier.logits`."""
        score = torch.sin(input_ids.sum(dim=1).float())
        return torch.stack([-score, score], dim=1)


def load_stub(base: Any, target: TunedCheckpoint, *_: Any, **__: Any) -> tuple[Classifier, None]:
    """Replaces `context.load_model`."""
    return StubClassifier(target), None


@contextmanager
def measured_steps(meter: Meter) -> Iterator[None]:
    """Measures a run's steps within the context, with the stub as its classifier."""
    with ExitStack() as stack:
        for name, (module, function) in PHASES.items():
            step = getattr(module, function)
            measure = _MEASURES.get(function, _measured)
            stack.enter_context(mock.patch.object(module, function, measure(meter, name, step)))
        stack.enter_context(mock.patch.object(context, "load_model", load_stub))
        yield


def _measured(meter: Meter, name: str, step: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(step)
    def measured(*args: Any, **kwargs: Any) -> Any:
        with meter.phase(name):
            return step(*args, **kwargs)

    return measured


def _measured_items(meter: Meter, name: str, step: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
    @functools.wraps(step)
    def measured(*args: Any, **kwargs: Any) -> Iterator[Any]:
        with meter.phase(name):
            yield from step(*args, **kwargs)

    return measured


def _measured_calls(meter: Meter, name: str, step: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(step)
    def measured(*args: Any, **kwargs: Any) -> Any:
        with meter.calls(name):
            return step(*args, **kwargs)

    return measured


_MEASURES = {"predict_batches": _measured_items, "append": _measured_calls}


def main() -> NoReturn:
    """Runs one rank and ends the process."""
    die_with_parent()
    silence_libraries()
    meter = Meter()
    with measured_steps(meter), workspace() as scratch_dir, temporary_files_in(scratch_dir):
        code = run(parse_args(sys.argv[2:]), scratch_dir)
        meter.write(Path(sys.argv[1]), int(os.environ["RANK"]))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # everything is closed; see `temporary_files_in`


if __name__ == "__main__":
    main()
