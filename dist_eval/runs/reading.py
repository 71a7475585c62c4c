"""Reads a finished run's folder, for reports and comparisons."""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from pydantic import ValidationError

from dist_eval.errors import DataError, RunError, one_line, translating_os_errors
from dist_eval.options.groups import DataOptions
from dist_eval.process.parsing import read_json
from dist_eval.results.run import AnyCompleteRun, CompleteRun, CompleteTasksRun
from dist_eval.results.tasks import LANGUAGE_MODELING
from dist_eval.runs.digests import NOT_AS_WRITTEN, damaged_table, is_intact
from dist_eval.runs.files import PREDICTIONS, RESULTS
from dist_eval.schema import SCHEMA_VERSION

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator, Sequence

    import numpy as np

    from dist_eval.metrics.predictions import Predictions

Table = TypeVar("Table")


def read_run(folder: Path) -> AnyCompleteRun:
    """Reads `results.json` of a complete run of any kind, and checks the digests of its tables."""
    try:
        results = read_json(folder / RESULTS)
    except FileNotFoundError:
        raise RunError(f"{folder} is not the output folder of a run: it has no {RESULTS}.") from None
    except (OSError, ValueError) as error:
        raise RunError(f"{folder / RESULTS} cannot be read: {one_line(error)}.") from error
    if not isinstance(results, dict) or results.get("schema_version") != SCHEMA_VERSION:
        raise RunError(f"{folder / RESULTS} is not in the format of this version: run it again.")
    if results.get("status") != "complete":
        why = f", {message}" if (message := (results.get("error") or {}).get("message")) else ""
        raise RunError(f"{folder} is not complete (status: {results.get('status')}{why}). Run its command again first.")
    if not is_intact(results):
        raise _damage(folder / RESULTS)
    record = CompleteTasksRun if results.get("problem_type") == LANGUAGE_MODELING else CompleteRun
    try:
        run = record.model_validate(results)
    except ValidationError as error:
        first = error.errors()[0]
        raise RunError(
            f"{folder / RESULTS} is not in the format of this version "
            f"({'.'.join(map(str, first['loc']))}: {first['msg']}): run it again."
        ) from error
    with translating_os_errors(RunError, f"The files in {folder} cannot be read"):
        damaged = damaged_table(run, folder)
    if damaged:
        raise _damage(folder / damaged)
    return run


def read_table(folder: Path, read: Callable[[Path], Table], advice: str = "") -> Table:
    """Reads the table of a run's samples; raises `RunError` on failure."""
    with _readable(folder / PREDICTIONS, advice):
        return read(folder / PREDICTIONS)


@contextmanager
def _readable(table: Path, advice: str = "") -> Iterator[None]:
    import pyarrow as pa

    try:
        yield
    except (OSError, ValueError, KeyError, pa.ArrowException) as error:
        raise RunError(f"{table} cannot be read: {one_line(error)}.{advice}") from error


def _damage(path: Path) -> RunError:
    what = NOT_AS_WRITTEN if os.path.lexists(path) else "is missing"
    return RunError(f"{path} {what}. Start the run's command again to restore it from the journal.")


@dataclass(frozen=True)
class FinishedRun:
    """A complete evaluation on a dataset."""

    folder: Path  # the run's folder
    results: CompleteRun  # content of `results.json`

    def predictions(self) -> Iterator[Predictions]:
        """Yields the predictions, in chunks of bounded size and in dataset order."""
        from dist_eval.runs.saved_samples import read_chunks

        with _readable(self.folder / PREDICTIONS):
            yield from read_chunks(self.folder / PREDICTIONS)

    def sample(self, most: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns labels and predictions, both float64 of shape [n, outputs] with n at most `most`.

        They are those of evenly spaced examples if there are more.
        """
        import numpy as np

        rows, row, pairs = self.results.coverage.seen, 0, []
        wanted = np.unique(np.linspace(0, rows - 1, min(most, rows)).astype(np.int64))
        for chunk in self.predictions():
            here = chunk.at(wanted[(wanted >= row) & (wanted < row + len(chunk))] - row)
            pairs.append((here.label, here.prediction))
            row += len(chunk)
        labels, predictions = (np.concatenate(columns) for columns in zip(*pairs, strict=True))
        return labels, predictions

    def texts(self, wanted: Container[int], dataset: str | Sequence[str] | None = None) -> dict[int, str]:
        """Returns texts of the run's dataset by position; the two texts of a pair are joined by a line break.

        `dataset` is where the dataset is now; None if it has not moved. Raises DataError if it has changed since the
        run.
        """
        from dist_eval.data.files import dataset_name
        from dist_eval.data.in_memory import was_in_memory
        from dist_eval.data.labelled_rows import LabelledRows, read_texts
        from dist_eval.petals.base_model.problem_types import PROBLEMS
        from dist_eval.revisions import pin

        options = DataOptions.recorded_in(self.results.config)
        place = dataset or options.dataset or ()
        if isinstance(place, str) and was_in_memory(place):
            raise DataError(f"The texts came from {place}: name a file with the same rows with --dataset.")
        if self.results.revisions and self.results.revisions.dataset:
            pin("dataset", str(options.dataset), self.results.revisions.dataset)
        data = LabelledRows(
            place,
            options.text_column,
            options.label_column,
            self.results.label_names,
            options.labels,
            PROBLEMS[self.results.problem_type],
            numbers=self.results.model.prompt is not None,
            subset=options.subset,
            split=options.split,
        )
        rows = evaluated_rows(self.results, self.predictions()) if self.results.data.selection else None
        found, digest = read_texts(data, wanted, rows)
        if digest != self.results.data.text_digest:
            raise DataError(
                f"{dataset_name(place)} is not what {self.folder} was evaluated on: its texts or labels differ. Name "
                "the right data with --dataset, or leave out the texts."
            )
        return {index: "\n".join(texts) for index, texts in found.items()}


def evaluated_rows(results: CompleteRun, predictions: Iterable[Predictions]) -> np.ndarray:
    """Returns the rows of the dataset that were evaluated or failed, ascending, int64 of shape [rows]."""
    import numpy as np

    failed = np.asarray([failure.index for failure in results.failures], dtype=np.int64)
    return np.sort(np.concatenate([*(chunk.index for chunk in predictions), failed]))
