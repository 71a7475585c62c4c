"""Which examples a report shows: the most confident mistakes, or those with the largest loss. Reads piece by piece."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dist_eval.errors import RunError
from dist_eval.problems import MULTI_LABEL, REGRESSION, SINGLE_LABEL

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np

_LABELS_SHOWN, _CELLS_IN_A_PIECE = 10, 1 << 20


@dataclass(frozen=True)
class Mistake:
    """An example that was predicted wrongly; in a regression any example.

    Attributes:
        index: its position in the dataset.
        label: what is right, for people.
        prediction: what was predicted, for people.
        score: by which mistakes are ordered, the largest first.
    """

    index: int
    label: str
    prediction: str
    score: float


@dataclass(frozen=True)
class Mistakes:
    """The worst mistakes of a run.

    Attributes:
        total: how many there are.
        score: what their score is: "probability" of the prediction, or "loss".
        worst: the first of them.
    """

    total: int
    score: str
    worst: list[Mistake]


def find_mistakes(path: Path, problem: str, names: Sequence[str], most: int) -> Mistakes:
    """Finds the mistakes of a run.

    Args:
        path: its predictions (see `dist_eval.report.write_predictions`).
        problem: name of the problem.
        names: of the classes or labels.
        most: how many of them are wanted.

    Returns:
        With one class each those whose prediction was held for most probable, else those with the largest loss; of
        equal ones those that come first.

    Raises:
        RunError: the file cannot be read.
    """
    import numpy as np

    by_probability = problem == SINGLE_LABEL.name
    total, kept = 0, None
    for columns in _pieces(path, ["probabilities"] if by_probability else ["loss"]):
        mistaken = _is_wrong(columns, problem)
        total += int(mistaken.sum())
        columns = {name: column[mistaken] for name, column in columns.items()}
        if by_probability:
            rows = np.arange(len(columns["index"]))
            columns["loss"] = columns.pop("probabilities")[rows, columns["prediction"]]
        if kept is not None:
            columns = {name: np.concatenate([kept[name], column]) for name, column in columns.items()}
        order = np.lexsort((columns["index"], -columns["loss"]))[:most]
        kept = {name: column[order] for name, column in columns.items()}
    worst = []
    if kept is not None:
        of_rows = zip(kept["index"], kept["label"], kept["prediction"], kept["loss"], strict=True)
        for index, label, prediction, score in of_rows:
            right, wrong = (_words(value, problem, names) for value in (label, prediction))
            worst.append(Mistake(int(index), right, wrong, float(score)))
    return Mistakes(total, "probability" if by_probability else "loss", worst)


def sample_pairs(path: Path, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Reads labels and predictions of a regression, of many examples evenly spaced ones.

    Returns:
        Both float64 of shape [n, outputs], n at most `most`.

    Raises:
        RunError: the file cannot be read.
    """
    import numpy as np

    pairs, row = [], 0
    with _reading(path) as file:
        rows = file.metadata.num_rows
    wanted = np.unique(np.linspace(0, rows - 1, min(most, rows)).astype(np.int64))
    for columns in _pieces(path, []):
        here = wanted[(wanted >= row) & (wanted < row + len(columns["index"]))] - row
        pairs.append([columns[name][here].reshape(len(here), -1) for name in ("label", "prediction")])
        row += len(columns["index"])
    labels, predictions = (np.concatenate(columns) for columns in zip(*pairs, strict=True))
    return labels, predictions


def _reading(path: Path) -> Any:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        return parquet.ParquetFile(path)
    except (OSError, pa.ArrowException) as error:
        raise RunError(f"{path} cannot be read: {error}.") from error


def _pieces(path: Path, further: Sequence[str]) -> Iterator[dict[str, np.ndarray]]:
    """Yields columns, those with lists as two-dimensional arrays."""
    import pyarrow as pa

    with _reading(path) as file:
        try:
            widths = [getattr(field.type, "list_size", 1) for field in file.schema_arrow]
            rows = max(1, _CELLS_IN_A_PIECE // max(widths))
            for batch in file.iter_batches(rows, columns=["index", "label", "prediction", *further]):
                columns = {}
                for name, column in zip(batch.schema.names, batch.columns, strict=True):
                    is_list = pa.types.is_fixed_size_list(column.type)
                    flat = (column.flatten() if is_list else column).to_numpy(zero_copy_only=False)
                    columns[name] = flat.reshape(-1, column.type.list_size) if is_list else flat
                yield columns
        except (OSError, ValueError, pa.ArrowException) as error:
            raise RunError(f"{path} cannot be read: {error}.") from error


def _is_wrong(columns: dict[str, np.ndarray], problem: str) -> np.ndarray:
    import numpy as np

    if problem == REGRESSION.name:
        return np.ones(len(columns["index"]), dtype=bool)
    differs = columns["label"] != columns["prediction"]
    return differs.any(axis=1) if problem == MULTI_LABEL.name else differs


def _words(value: Any, problem: str, names: Sequence[str]) -> str:
    import numpy as np

    if problem == SINGLE_LABEL.name:
        return names[int(value)]
    if problem == MULTI_LABEL.name:
        found = [names[number] for number in np.flatnonzero(value).tolist()]
        more = [f"and {len(found) - _LABELS_SHOWN} more"] if len(found) > _LABELS_SHOWN else []
        return ", ".join([*found[:_LABELS_SHOWN], *more]) or "none"
    return ", ".join(f"{number:.6g}" for number in np.atleast_1d(value)[:_LABELS_SHOWN])
