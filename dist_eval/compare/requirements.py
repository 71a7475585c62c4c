"""What evaluations must have in common to be compared, and the rows that they have."""

from __future__ import annotations

import functools
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dist_eval.errors import RunError
from dist_eval.tables import format_count

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np

    from dist_eval.compare.evaluations import EvaluationRun
    from dist_eval.results.scores import Groups

_CLASSES_NAMED = 5


def on_common_rows(runs: Sequence[EvaluationRun]) -> list[EvaluationRun]:
    """Restricts runs to the rows that all of them evaluated, if some evaluated only a part of the same dataset."""
    import numpy as np

    selections = [run.results.data.selection for run in runs]
    first, *others = runs
    if not any(selections) or not all(first.results.data.has_texts_of(other.results.data) for other in others):
        return list(runs)
    common = functools.reduce(np.intersect1d, (run.rows for run in runs))
    if not all(np.isin(run.predictions.index, common).any() for run in runs):
        folders = " and ".join(str(run.folder) for run in runs)
        raise RunError(f"{folders} cannot be compared: there is no row of the dataset that all of them evaluated.")
    drawn = [selection for selection in selections if selection]
    is_random = all(selection.method != "first" for selection in drawn)
    return [run.restricted(common, len(common) / drawn[0].population if is_random else 0.0) for run in runs]


def require_comparable(first: EvaluationRun, second: EvaluationRun) -> None:
    """Requires that two runs evaluated the same examples."""
    import numpy as np

    pair = f"{first.folder} and {second.folder} cannot be compared"
    if first.results.problem_type != second.results.problem_type:
        raise RunError(
            f"{pair}: one is a run of {first.results.problem_type}, the other of {second.results.problem_type}."
        )
    if not first.results.data.has_texts_of(second.results.data):
        sources = " and ".join(
            f"{run.results.data.source} ({format_count(len(run.predictions), 'example')})" for run in (first, second)
        )
        raise RunError(f"{pair}: their data differ, {sources}. Evaluate both on the same texts and labels.")
    if first.results.label_names != second.results.label_names:
        names = " and ".join(str(run.results.label_names[:_CLASSES_NAMED]) for run in (first, second))
        raise RunError(f"{pair}: the classes differ, {names}.")
    differing = np.setxor1d(first.predictions.index, second.predictions.index)
    if len(differing):
        raise RunError(
            f"{pair}: {format_count(len(differing), 'example')}, such as number {differing[0]}, failed in one of "
            f"them only. Start its "
            "command again to have them tried again."
        )
    if not np.array_equal(first.predictions.label, second.predictions.label):
        raise RunError(f"{pair}: the data are the same, but not the labels in predictions.parquet. Run both again.")
    require_same_groups(
        [run.folder for run in (first, second)],
        [run.results.groups for run in (first, second)],
        [run.group for run in (first, second)],
    )


def require_same_groups(
    folders: Sequence[Path], groups: Sequence[Groups | None], numbers: Sequence[np.ndarray | None]
) -> None:
    """Requires that two runs put the samples that they have in common into the same groups, or have none.

    Args:
        folders: of both runs.
        groups: what the results say of their groups.
        numbers: the group of each sample, numbered in the order in which they first appear, int64 of shape [n].
    """
    import numpy as np

    pair = f"{folders[0]} and {folders[1]} cannot be compared"
    columns = [own and own.column for own in groups]
    if columns[0] != columns[1]:
        drawn = " and ".join(
            f"{folder} {'none' if column is None else repr(column)}"
            for folder, column in zip(folders, columns, strict=True)
        )
        again = folders[0] if columns[0] is None else folders[1]
        raise RunError(
            f"{pair}: their --group-column differs, {drawn}. Start the command of {again} again with "
            f"--group-column {shlex.quote(columns[0] or columns[1] or '')}, which sends nothing."
        )
    if numbers[0] is not None and numbers[1] is not None and not np.array_equal(numbers[0], numbers[1]):
        raise RunError(
            f"{pair}: column {columns[0]!r} puts examples into other groups in one than in the other. Start both "
            "commands again with the same dataset, which sends nothing."
        )


def renumbered(group: np.ndarray) -> np.ndarray:
    """Returns groups numbered in the order in which they first appear, int64 of shape [n]."""
    import numpy as np

    _, first, number_of = np.unique(group, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[number_of.reshape(-1)]
