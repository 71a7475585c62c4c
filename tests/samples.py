"""A small evaluation and its results, shared between tests of what is written."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dist_eval import demo
from dist_eval.analysis.options import AnalysisOptions, analyse
from dist_eval.analysis.slices import Slicing
from dist_eval.data.dataset import TokenizedDataset, tokenize_dataset
from dist_eval.data.labelled_rows import LabelledRows
from dist_eval.evaluation.scoring import scores_of
from dist_eval.metrics.computing import Metrics, compute_metrics
from dist_eval.metrics.predictions import Predictions
from dist_eval.options.config import EvaluationConfig
from dist_eval.results.run import RUN, EvaluationResults
from dist_eval.runs.digests import with_digests
from dist_eval.runs.evaluation_folder import EvaluationFolder
from dist_eval.statistics import Statistic, Sums, Units

PEER_ID = "QmVQE44noRKH2ZZoC8HKSJEsyAvYqAMpmRVPkKsyXn7g3a"
PEER = f"/ip4/10.0.0.5/tcp/31337/p2p/{PEER_ID}"
OTHER_PEER = "/dns4/swarm.example.org/tcp/31337/p2p/QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N"
DEAD_PEER = "/ip4/127.0.0.1/tcp/9/p2p/QmZmNRxpVSgwCUQ1ncBqnmjUUzotKCQj6JPvWEd2YpBd57"
"""An address at which nothing listens."""

REQUIRED: dict[str, Any] = {"dataset": "test.csv", "checkpoint": "tuned"}
LOCAL: dict[str, Any] = {**REQUIRED, "backend": "local"}
"""Options of an evaluation: what it needs, and the same without a swarm."""

RESULTS = "results.json"


def config_for(folder: Path, **options: Any) -> EvaluationConfig:
    options = {**REQUIRED, "initial_peers": [PEER], **options}
    return EvaluationConfig(output=str(folder), **options)


class FolderWithoutPlots(EvaluationFolder):
    """A run's folder with empty files as plots: to draw them takes longer than all else of a small run."""

    def _draw(self, name: str, _: Any) -> None:
        (self.path / name).touch()


def folder_of(config: EvaluationConfig, *, plots: bool = False) -> EvaluationFolder:
    return (EvaluationFolder if plots else FolderWithoutPlots)(
        config.output_folder, config.recorded(), overwrite=config.overwrite, peers=config.initial_peers
    )


def opened(folder: Path, **options: Any) -> EvaluationFolder:
    """Opens a run's folder."""
    run = folder_of(config_for(folder, **options))
    run.open()
    return run


def files_in(folder: Path) -> set[str]:
    """Names of what is in a run's folder, but for the journal."""
    return {path.name for path in folder.iterdir()} - {"journal"}


def files_below(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def digits(path: Path, *, source: Path = demo.TEST_DATA, rows: int | None = None, times: int = 1) -> Path:
    """Writes the demo's data to a file: all or the first rows, repeated so that they take a while."""
    header, *lines = source.read_text().splitlines(keepends=True)
    path.write_text(header + "".join(lines[:rows]) * times)
    return path


def tokenized_digits(
    folder: Path,
    rows: int,
    classes: int,
    extra_columns: Mapping[str, Callable[[int], str]] | None = None,
    *,
    max_length: int = 100,
) -> TokenizedDataset:
    """Texts of several lengths, all different, through the demo's tokenizer; further columns are made of the row."""
    from transformers import AutoTokenizer

    columns = extra_columns or {}
    cells = [
        [f"{'12/3g'[row % 5] * (row % 7 + 1)}{row}", str(row % classes), *(made(row) for made in columns.values())]
        for row in range(rows)
    ]
    lines = [",".join(line) for line in (["text", "label", *columns], *cells)]
    (folder / "test.csv").write_text("\n".join(lines) + "\n")
    return tokenize_dataset(
        LabelledRows(
            str(folder / "test.csv"), ["text"], "label", [chr(ord("a") + number) for number in range(classes)]
        ),
        folder,
        tokenizer=AutoTokenizer.from_pretrained(demo.BASE_MODEL),
        max_length=max_length,
        extra_columns=list(columns),
    )


def predictions_of(labels: list[int], guesses: list[int], classes: int) -> Predictions:
    logits = np.random.default_rng(0).uniform(-1, 1, size=(len(labels), classes))
    logits[np.arange(len(labels)), guesses] += 2
    return Predictions.from_logits(np.arange(len(labels)), np.asarray(labels), logits)


def synthetic(examples: int, classes: int, seed: int = 0, skill: float = 1.5) -> Predictions:
    """Random predictions, the more of them right the greater the skill."""
    generator = np.random.default_rng(seed)
    label = generator.integers(classes, size=examples)
    logits = generator.normal(size=(examples, classes))
    logits[np.arange(examples), label] += skill
    return Predictions.from_logits(np.arange(examples), label, logits)


def names_of(classes: int) -> list[str]:
    return [f"class-{number}" for number in range(classes)]


def mean_of(values: np.ndarray, units: Units | None = None, *, name: str = "mean") -> Sums:
    rows = np.stack([values, np.ones(len(values))])
    return Sums(units or Units.single(len(values)), rows, lambda sums: {name: sums[0] / sums[1]})


def values_of(statistics: Iterable[Statistic]) -> dict[str, float]:
    """Computes what statistics are for the data themselves, NaN where undefined."""
    return {name: value for statistic in statistics for name, value in statistic.observed().items()}


def metrics_for(names: list[str]) -> Metrics:
    """Metrics of three examples a class, most of them right."""
    labels = np.arange(3 * len(names)) % len(names)
    guesses = np.where(np.arange(len(labels)) % 5 == 0, 0, labels)
    return compute_metrics(predictions_of(labels.tolist(), guesses.tolist(), len(names)), names)


PREDICTIONS = predictions_of([0, 1, 1, 0, 1], [0, 1, 0, 0, 1], 2)


METRICS = compute_metrics(PREDICTIONS, ["neg", "pos"])


FACTS: dict[str, Any] = {
    **analyse(
        PREDICTIONS, METRICS, AnalysisOptions(slicings=[Slicing.of_lengths(np.array([3, 3, 4, 5, 9]))])
    ).to_json(),
    "coverage": {"expected": 5, "seen": 5, "duplicates": 0, "missing": 0, "failed": 0},
    "failures": [],
    "data": {
        "source": "test.csv",
        "is_path": True,
        "examples": 5,
        "truncated": 0,
        "longest": 9,
        "multiline": 0,
        "blank": 0,
        "unknown": 0,
        "with_begin": 0,
        "max_length": 64,
        "digest": "d",
        "text_digest": "t",
        "column_digests": {"text": "c"},
        "tokenizer_digest": "k",
        "selection": None,
        "normalized_labels": 0,
        "shards": None,
    },
    "model": {
        "base": "some/base",
        "base_is_path": False,
        "checkpoint": "tuned",
        "tuning_mode": "ptune",
        "pre_seq_len": 4,
        "num_labels": 2,
        "weights_digest": "w",
        "prompt": None,
        "adapter": None,
    },
    "plan": {"batches": 2, "padded_tokens": 50, "real_tokens": 45, "digest": "p"},
    "ranks": [
        {
            "rank": 0,
            "host": "here",
            "began": "2024-01-01T00:00:00.000+00:00",
            "batches": 2,
            "samples": 5,
            "resumed": 0,
            "tokens": 45,
            "padded_tokens": 50,
            "seconds": 0.5,
            "in_flight": 2,
            "traffic": None,
            "combined": 5,
            "accuracy": 0.8,
            "loss": 0.5,
        }
    ],
    "spread": None,
    "throughput": {"seconds": 0.5, "examples_per_second": 10.0, "tokens_per_second": 90.0},
    "swarm": {
        "dht_prefix": "base-hf",
        "num_blocks": 4,
        "missing_blocks": [],
        "replicas_per_block": [1],
        "servers": [],
        "dropped_records": 0,
        "precisions": ["float32"],
    },
    "audit": None,
}


def sections(metrics: Metrics = METRICS, **changes: Any) -> EvaluationResults:
    """All sections of a complete run: metrics, and the small evaluation's with some changes."""
    return EvaluationResults.model_validate({**dict(scores_of(metrics)), **FACTS, **changes})


def complete_run(folder: Path, *, plots: bool = False, **options: Any) -> EvaluationFolder:
    run = folder_of(config_for(folder, **options), plots=plots)
    run.open()
    run.complete(PREDICTIONS, sections())
    return run


def rewrite_results(folder: Path, results: dict[str, Any]) -> None:
    """Replaces the results of a run by others, as if it had written these."""
    content = with_digests(RUN.validate_python(results), folder)
    (folder / RESULTS).write_text(json.dumps(content))


def write_with_digest(folder: Path, results: dict[str, Any]) -> None:
    """Replaces the results of a run by others that no record has to fit, with the digest of their content."""
    results["digests"]["content"] = ""
    text = json.dumps(results, sort_keys=True, separators=(",", ":"))
    results["digests"]["content"] = hashlib.sha256(text.encode()).hexdigest()
    (folder / RESULTS).write_text(json.dumps(results))


def watch(path: Path, change: Callable[[], None]) -> list[bytes]:
    """Reads a file again and again while it is changed; returns all that was seen."""
    seen: list[bytes] = []
    ended = threading.Event()

    def read() -> None:
        while not ended.is_set():
            content = path.read_bytes()
            if not seen or content != seen[-1]:
                seen.append(content)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        change()
    finally:
        ended.set()
        reader.join()
    return seen
