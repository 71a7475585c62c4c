"""A complete run, read back to be compared with others, and what two of them must have in common.

Knows nothing of what is compared.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dist_eval.errors import RunError

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class Run:
    """A complete run, read back from its folder; one of the things that `dist_eval.statistics` can resample.

    Attributes:
        folder: where it is.
        results: what `results.json` holds.
        index: positions in the dataset, int64 of shape [n], ascending.
        label: true class, int64 of shape [n].
        prediction: predicted class, int64 of shape [n].
        loss: cross-entropy in nats, float64 of shape [n].
        probabilities: float64 of shape [n, num_labels].
        group: the group of each example, int64 of shape [n]; None if each stands for itself.
    """

    folder: Path
    results: dict[str, Any]
    index: np.ndarray
    label: np.ndarray
    prediction: np.ndarray
    loss: np.ndarray
    probabilities: np.ndarray
    group: np.ndarray | None = None

    @classmethod
    def load(cls, folder: Path) -> Run:
        """Reads a run.

        Raises:
            RunError: the folder holds no complete run, its files cannot be read, or they lack its groups.
        """
        import pyarrow as pa
        from pyarrow import parquet

        from dist_eval.data.problems import SINGLE_LABEL
        from dist_eval.report import PREDICTIONS
        from dist_eval.report.reading import read_results
        from dist_eval.report.saved_predictions import GROUP

        results = read_results(folder)
        problem = results.get("problem_type", SINGLE_LABEL.name)
        if problem != SINGLE_LABEL.name:
            raise RunError(f"{folder} is a run of {problem}; so far only runs with one class for a text are compared.")
        try:
            table = parquet.read_table(folder / PREDICTIONS)
            width = table.schema.field("probabilities").type.list_size
            flat = table.column("probabilities").combine_chunks().flatten().to_numpy()
            columns = {name: table.column(name).to_numpy() for name in ("index", "label", "prediction", "loss")}
            group = table.column(GROUP).to_numpy() if results.get("groups") and GROUP in table.column_names else None
        except (OSError, KeyError, AttributeError, pa.ArrowException) as error:
            raise RunError(f"{folder / PREDICTIONS} cannot be read: {error}.") from error
        run = cls(folder, results, **columns, probabilities=flat.reshape(-1, width), group=group)
        run._require_groups()
        return run

    def _require_groups(self) -> None:
        """Raises RunError where the files do not agree on the groups: an older run, or one that was cut off."""
        import numpy as np

        groups = self.results.get("groups")
        if groups and (self.group is None or len(np.unique(self.group)) != groups["count"]):
            raise RunError(
                f"{self.folder} has intervals over groups of {groups['column']!r}, but its predictions.parquet does "
                "not hold these groups. Start the run's command again: it sends nothing and writes them."
            )

    @property
    def group_column(self) -> str | None:
        """The column whose groups are drawn whole; None if each example stands for itself."""
        groups = self.results.get("groups")
        return groups["column"] if groups else None

    @property
    def num_labels(self) -> int:
        """Number of classes."""
        return self.probabilities.shape[1]

    @property
    def label_names(self) -> list[str]:
        """Names of the classes."""
        return self.results["confusion_matrix"]["labels"]

    @property
    def is_right(self) -> np.ndarray:
        """Whether each prediction is right, bool of shape [n]."""
        return self.label == self.prediction

    def probabilities_of(self, classes: Iterable[int]) -> Iterator[np.ndarray]:
        """Yields columns of the probabilities, float64 of shape [n] each."""
        for number in classes:
            yield self.probabilities[:, number]


def require_comparable(first: Run, second: Run) -> None:
    """Checks that two runs are about the same examples.

    Raises:
        RunError: they are not; the message says what differs.
    """
    import numpy as np

    pair = f"{first.folder} and {second.folder} cannot be compared"
    if first.results["data"].get("text_digest") != second.results["data"].get("text_digest"):
        sources = " and ".join(
            f"{run.results['data']['source']} ({len(run.index)} examples)" for run in (first, second)
        )
        raise RunError(f"{pair}: their data differ, {sources}. Evaluate both on the same texts and labels.")
    if first.label_names != second.label_names:
        raise RunError(f"{pair}: the classes differ, {first.label_names[:5]} and {second.label_names[:5]}.")
    differing = np.setxor1d(first.index, second.index)
    if len(differing):
        raise RunError(
            f"{pair}: {len(differing)} examples, such as number {differing[0]}, failed in one of them only. Start its "
            "command again to have them tried again."
        )
    if not np.array_equal(first.label, second.label):
        raise RunError(f"{pair}: the data are the same, but not the labels in predictions.parquet. Run both again.")
    if first.group_column != second.group_column:
        drawn = " and ".join(
            f"{run.folder} {'none' if run.group_column is None else repr(run.group_column)}" for run in (first, second)
        )
        again = first if first.group_column is None else second
        raise RunError(
            f"{pair}: their --group-column differs, {drawn}. Start the command of {again.folder} again with "
            f"--group-column {shlex.quote(first.group_column or second.group_column or '')}, which sends nothing."
        )
    if first.group is not None and second.group is not None and not np.array_equal(first.group, second.group):
        raise RunError(
            f"{pair}: column {first.group_column!r} puts examples into other groups in one than in the other. Start "
            "both commands again with the same dataset, which sends nothing."
        )
