"""`python -m benchmarks.scale`: seconds and memory of a run's steps, from ten thousand rows to a million.

It runs the evaluator on two ranks under torchrun, on one host and without a swarm: from one CSV file, and from the same
rows in 200 files that gzip has compressed, to the report. Only the forward passes are stubs, because a million of them
would measure the swarm rather than the evaluator.
"""

from __future__ import annotations

import argparse
import functools
import gzip
import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any
from unittest import mock

from benchmarks.harness import BenchmarkError, Program, Report
from benchmarks.meter import MEBIBYTE, Meter
from benchmarks.models import TINY, make_model
from benchmarks.processes import call
from benchmarks.text import Corpus, load_corpus

QUESTION = "How long do the steps of a run take without its forwards, by the number of rows?"
MEMORY_QUESTION = "How much memory is resident at most in a rank, by the number of rows and files?"
RANKS = 2
ONE, MANY = "one file", "compressed files"
STEPS = (
    "tokenizing",
    "planning",
    "sharding",
    "forwards",
    "journal",
    "reading back",
    "gather",
    "reduce",
    "proof",
    "metrics",
    "intervals",
    "parquet",
)
_TRAINED_ON = 10_000
_FLAT, _BYTES_PER_ROW = 1.1, 100.0


def measure(options: argparse.Namespace, scratch_dir: Path) -> None:
    """Measures all sizes, from one file and from many."""
    seconds = Report("scale", QUESTION, unit="s", options=options, more_is_better=False)
    memory = Report("scale-memory", MEMORY_QUESTION, unit="MiB", options=options, more_is_better=False)
    sizes = options.sizes
    corpus = load_corpus(max(sizes), options.data)
    model = make_model(scratch_dir, TINY, corpus.sentences[:_TRAINED_ON])
    arguments = ["--model", str(model.base), "--checkpoint", str(model.tuned), "--text-column", "sentence"]
    for rows in sizes:
        group = f"{rows:,} rows"
        part = Corpus(corpus.sentences[:rows], corpus.labels[:rows], corpus.source)
        datasets = {ONE: part.write_csv(scratch_dir / "rows.csv"), MANY: write_files(part, options.files, scratch_dir)}
        for _ in range(options.rounds):
            outputs = {name: scratch_dir / name.replace(" ", "-") for name in datasets}
            for name, dataset in datasets.items():
                words = [*arguments, "--dataset", str(dataset), "--output", str(outputs[name])]
                ranks = run_once(words, rows, outputs[name], scratch_dir)
                steps = {step: max(found["steps"][step]["seconds"] for found in ranks if step in found["steps"])
                         for step in STEPS}  # fmt: skip
                for step in STEPS if name == ONE else STEPS[:1]:
                    seconds.add(group, step if name == ONE else f"{step}, {name}", steps[step])
                memory.add(group, f"{name}: while tokenizing", ranks[0]["steps"]["tokenizing"]["peak"] / MEBIBYTE)
                for number, found in enumerate(ranks):
                    peaks = {step: figures["peak"] / MEBIBYTE for step, figures in found["steps"].items()}
                    memory.add(group, f"{name}: rank {number}", found["peak"] / MEBIBYTE, peaks)
            tables = [(output / "predictions.parquet").read_bytes() for output in outputs.values()]
            if tables[0] != tables[1]:
                raise BenchmarkError(f"{group}: the predictions from {ONE} and from {MANY} differ.")
    compare(memory, min(sizes), max(sizes))
    for report in (seconds, memory):
        report.note(corpus.source)
        report.note(f"There are {options.files} compressed files. The predictions from them are the same bytes.")
    seconds.note(
        "A step's seconds are the slowest rank's. The forwards are stubs: their seconds are those of "
        "reading and padding, and of the journal, which also stands by itself. tokenizing is done by one rank of the "
        "host; proof, metrics (which at any size imports scikit-learn), intervals and parquet by rank 0."
    )
    memory.note(
        "All libraries count, and what is mapped from files. Rank 0 tokenizes, keeps what it gathers and computes the "
        "metrics. The JSON file has the most in each step."
    )
    seconds.finish()
    memory.finish()


def write_files(corpus: Corpus, count: int, folder: Path) -> Path:
    """Writes a corpus to compressed files of equal size, and returns their folder."""
    files = folder / "files"
    files.mkdir(exist_ok=True)
    rows = len(corpus.sentences)
    for number in range(count):
        here = slice(number * rows // count, (number + 1) * rows // count)
        part = Corpus(corpus.sentences[here], corpus.labels[here], corpus.source).write_csv(folder / "part.csv")
        (files / f"part-{number}.csv.gz").write_bytes(gzip.compress(part.read_bytes(), compresslevel=6, mtime=0))
    return files


def run_once(words: list[str], rows: int, output: Path, scratch_dir: Path) -> list[dict[str, Any]]:
    """Evaluates a dataset, and returns what each rank measured.

    Raises:
        BenchmarkError: the run failed, or not all rows were counted.
    """
    words = [*words, "--backend", "local", "--overwrite"]
    found = call("benchmarks.scale:evaluate_with_stub", scratch_dir, ranks=RANKS, words=words)
    coverage = json.loads((output / "results.json").read_text(encoding="utf-8"))["coverage"]
    if coverage["seen"] != rows:
        raise BenchmarkError(f"{coverage['seen']} of {rows} rows were counted.")
    return found


def compare(memory: Report, fewest: int, most: int) -> None:
    """Compares the memory for the most rows with that for the fewest, and that of many files with that of one."""
    small, large = f"{fewest:,} rows", f"{most:,} rows"
    for name in (f"{ONE}: rank 1", f"{MANY}: rank 1", f"{MANY}: while tokenizing"):
        memory.compare(f"{name}, {large} / {small}", (large, name), (small, name), bar=_FLAT, at_most=True)
    first, second = (large, f"{MANY}: while tokenizing"), (large, f"{ONE}: while tokenizing")
    memory.compare(f"while tokenizing, {MANY} / {ONE}, {large}", first, second, bar=_FLAT, at_most=True)
    leader = f"{ONE}: rank 0"
    rounds = zip(memory.series[large, leader].values, memory.series[small, leader].values, strict=True)
    per_row = [(much - little) * MEBIBYTE / (most - fewest) for much, little in rounds]
    memory.bound(f"{leader}, bytes for each further row", per_row, _BYTES_PER_ROW)


def evaluate_with_stub(scratch_dir: Path, *, words: list[str]) -> dict[str, Any]:
    """Runs dist_eval in this process, with a stub for its forwards, and returns what its steps took."""
    from dist_eval.__main__ import run
    from dist_eval.arguments.commandline import parse_args
    from dist_eval.evaluation import context
    from dist_eval.options.config import EVALUATION

    meter = Meter()
    with ExitStack() as stack:
        for name, (owner, function) in _functions_of_steps().items():
            measured = _measured(meter, name, getattr(owner, function))
            stack.enter_context(mock.patch.object(owner, function, measured))
        stack.enter_context(mock.patch.object(context, "load_model", _load_stub))
        if code := run(parse_args(words, EVALUATION), scratch_dir):
            raise SystemExit(code)
    return meter.results()


def _functions_of_steps() -> dict[str, tuple[Any, str]]:
    """Returns the attribute to patch for each step."""
    from dist_eval.evaluation import classification, scoring, worker
    from dist_eval.runs import evaluation_folder, journal

    functions = (
        (classification, "write_dataset"),
        (classification, "plan_with_shared_prefixes"),
        (worker, "assign_batches"),
        (worker, "predict_batches"),
        (journal.Journal, "append"),
        (worker.BatchWorker, "output"),
        (scoring, "gather_columns"),
        (scoring, "sum_arrays"),
        (scoring, "prove_coverage"),
        (scoring, "compute_metrics"),
        (scoring, "analyse"),
        (evaluation_folder, "write_samples"),
    )
    return dict(zip(STEPS, functions, strict=True))


def _load_stub(base: Any, target: Any, *_: Any, **__: Any) -> tuple[Any, None]:
    """Returns a classifier whose two logits are a hash of the text's tokens, instead of `context.load_model`."""
    import torch

    from dist_eval.model.backbone import load_local_backbone
    from dist_eval.model.classifier import Classifier

    class Stub(Classifier):
        def _answer(self, input_ids: torch.Tensor, *_: Any, **__: Any) -> dict[str, torch.Tensor]:
            score = torch.sin(input_ids.sum(dim=1).float())
            return {"logits": torch.stack([-score, score], dim=1)}

    return Stub(load_local_backbone(base.name), target), None


def _measured(meter: Meter, name: str, step: Callable[..., Any]) -> Callable[..., Any]:
    measure_step: Callable[[str], AbstractContextManager[None]] = meter.calls if name == "journal" else meter.step

    @functools.wraps(step)
    def measured(*args: Any, **kwargs: Any) -> Any:
        with measure_step(name):
            return step(*args, **kwargs)

    @functools.wraps(step)
    def measured_items(*args: Any, **kwargs: Any) -> Iterator[Any]:
        with measure_step(name):
            yield from step(*args, **kwargs)

    return measured_items if name == "forwards" else measured


PROGRAM = Program("scale", QUESTION, measure, quick={"sizes": [500, 5_000], "files": 20})
PROGRAM.add("--sizes", (10_000, 100_000, 1_000_000), "numbers of rows")
PROGRAM.add("--files", 200, "compressed files")
PROGRAM.add_data()

if __name__ == "__main__":
    PROGRAM.main()
