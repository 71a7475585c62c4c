"""`python -m benchmarks.shards`: seconds and memory of a run on one file, and on the same rows in 200 compressed files.

As in `benchmarks.scale`, the evaluator runs on two ranks from the data to the results, with stubs for the forwards.
Then a run on the files is killed with SIGKILL and started again, and once more after one of the files has changed.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import time
from pathlib import Path

from benchmarks import harness, ranks, text
from benchmarks.models import TINY, Model, make_model
from benchmarks.program import BenchmarkError, run_program
from benchmarks.ranks import MEBIBYTE, Rank
from benchmarks.text import Corpus
from dist_eval.process.lifetime import end_session

QUESTION = "How long does a run take until its report, without its forwards, on one file and on compressed shards?"
MEMORY_QUESTION = "How much memory is resident at most in a rank, on one file and on compressed shards?"
RANKS = 2
ROWS, QUICK_ROWS = (10_000, 100_000, 1_000_000), (500, 5_000)
SHARDS, QUICK_SHARDS = 200, 20
ONE, MANY = "one file", "shards"
_TRAINED_ON = 10_000
_FLAT = 1.1
_LONGEST_WAIT, _PAUSE = 600.0, 0.05


def measure(options: argparse.Namespace, scratch_dir: Path) -> None:
    """Measures all sizes, and resuming at the largest.

    Args:
        options: the command line.
        scratch_dir: folder for temporary files.

    Raises:
        BenchmarkError: a run failed, or results on shards differ from those on one file.
    """
    sizes, count = (QUICK_ROWS, QUICK_SHARDS) if options.quick else (ROWS, SHARDS)
    seconds = harness.Report("shards", QUESTION, unit="s", options=options, more_is_better=False)
    memory = harness.Report("shards-memory", MEMORY_QUESTION, unit="MiB", options=options, more_is_better=False)
    corpus = text.load_corpus(max(sizes), options.data)
    model = make_model(scratch_dir, TINY, corpus.sentences[:_TRAINED_ON])
    for rows in sizes:
        group = f"{rows:,} rows"
        some = Corpus(corpus.sentences[:rows], corpus.labels[:rows], corpus.source)
        datasets = {ONE: some.write_csv(scratch_dir / "rows.csv"), MANY: write_shards(some, count, scratch_dir)}
        for _ in range(1 if options.quick else options.rounds):
            for name, dataset in datasets.items():
                began = time.perf_counter()
                output = scratch_dir / name
                command = command_for(model, dataset, scratch_dir, output)
                measured = run_once([*command, "--overwrite"], rows, scratch_dir, output)
                seconds.add(group, f"{name}: whole run", time.perf_counter() - began)
                seconds.add(group, f"{name}: tokenizing", measured[0].phases["tokenizing"].seconds)
                for rank, found in enumerate(measured):
                    memory.add(group, f"{name}: rank {rank}", found.peak / MEBIBYTE)
                memory.add(group, f"{name}: while tokenizing", measured[0].phases["tokenizing"].peak / MEBIBYTE)
            require_equal(scratch_dir / ONE, scratch_dir / MANY)
    resume(seconds, f"{max(sizes):,} rows", model, datasets[MANY], scratch_dir, max(sizes))
    small, large = f"{min(sizes):,} rows", f"{max(sizes):,} rows"
    for part in ("while tokenizing", "rank 1"):
        name = f"{MANY}: {part}"
        memory.compare(f"{name}, {large} / {small}", (large, name), (small, name), bar=_FLAT, at_most=True)
    for group in (small, large):
        first, second = (f"{name}: while tokenizing" for name in (MANY, ONE))
        memory.compare(f"{first} / {second}, {group}", (group, first), (group, second), bar=_FLAT, at_most=True)
        first, second = (f"{name}: tokenizing" for name in (MANY, ONE))
        seconds.compare(f"{first} / {second}, {group}", (group, first), (group, second))
    for report in (seconds, memory):
        report.note(corpus.source)
        report.note(f"Shards are {count} CSV files, each compressed by gzip. Predictions are equal byte for byte.")
        report.finish()


def write_shards(corpus: Corpus, count: int, folder: Path) -> Path:
    """Writes a corpus to compressed files of equal size, and returns their folder."""
    shards = folder / "parts"
    shards.mkdir(exist_ok=True)
    rows = len(corpus.sentences)
    for number in range(count):
        here = slice(number * rows // count, (number + 1) * rows // count)
        part = Corpus(corpus.sentences[here], corpus.labels[here], corpus.source).write_csv(folder / "part.csv")
        (shards / f"part-{number}.csv.gz").write_bytes(gzip.compress(part.read_bytes(), compresslevel=6, mtime=0))
    return shards


def command_for(model: Model, dataset: Path, scratch_dir: Path, output: Path) -> list[str]:
    """Returns the arguments of the interpreter for a run."""
    options = ["--model", model.base, "--checkpoint", model.tuned, "--dataset", dataset, "--text-column", "sentence"]
    options += ["--backend", "local", "--output", output, "--report", "none"]
    return [*ranks.torchrun(RANKS), "-m", "benchmarks.scale_rank", str(scratch_dir), *map(str, options)]


def run_once(command: list[str], rows: int, scratch_dir: Path, output: Path) -> list[Rank]:
    """Runs a command of `command_for` to its end, and returns what its ranks measured.

    Raises:
        BenchmarkError: the run failed, or not all rows were counted.
    """
    ranks.run(command, scratch_dir)
    coverage = json.loads((output / "results.json").read_text(encoding="utf-8"))["coverage"]
    if coverage["seen"] != rows:
        raise BenchmarkError(f"{coverage['seen']} of {rows} rows were counted.")
    return ranks.read_ranks(scratch_dir, RANKS)


def require_equal(first: Path, second: Path) -> None:
    """Compares the predictions in two output folders.

    Raises:
        BenchmarkError: they differ.
    """
    digests = [hashlib.sha256((folder / "predictions.parquet").read_bytes()).hexdigest() for folder in (first, second)]
    if digests[0] != digests[1]:
        raise BenchmarkError(f"The predictions in {first} and {second} differ.")


def resume(seconds: harness.Report, group: str, model: Model, dataset: Path, scratch_dir: Path, rows: int) -> None:
    """Kills a run half-way, starts it again, and once more with another file in place of one of the shards.

    Raises:
        BenchmarkError: a run ended otherwise than it should, or its predictions differ from an undisturbed run's.
    """
    whole, output = scratch_dir / MANY, scratch_dir / "resumed"
    command = command_for(model, dataset, scratch_dir, output)
    process = ranks.start(command, scratch_dir)
    began = time.perf_counter()
    try:
        while _journal_bytes(output) < _journal_bytes(whole) / 2:
            if process.poll() is not None or time.perf_counter() - began > _LONGEST_WAIT:
                raise BenchmarkError("The run that should be killed ended too soon, or wrote too little.")
            time.sleep(_PAUSE)
    finally:
        end_session(process.pid)
    seconds.add(group, f"{MANY}: until kill -9", time.perf_counter() - began)
    kept = _journal_bytes(output) / _journal_bytes(whole)
    began = time.perf_counter()
    run_once(command, rows, scratch_dir, output)
    seconds.add(group, f"{MANY}: resumed run", time.perf_counter() - began, {"share in the journal": kept})
    require_equal(whole, output)
    part = dataset / "part-7.csv.gz"
    before = part.read_bytes()
    part.write_bytes(gzip.compress(gzip.decompress(before).replace(b",1\r\n", b",0\r\n", 1)))
    try:
        ranks.run(command, scratch_dir)
    except BenchmarkError as error:
        if f"{part.name} has changed" not in str(error):
            raise
    else:
        raise BenchmarkError(f"A run was resumed although {part} had changed.")
    finally:
        part.write_bytes(before)
    seconds.note(
        f"{kept:.0%} of the journal was there when the run was killed; the resumed run's predictions are equal byte "
        "for byte. After a label in one shard was changed, the run refused to resume and named that shard."
    )


def _journal_bytes(output: Path) -> int:
    return sum(path.stat().st_size for path in (output / "journal").glob("*.batches"))


def main() -> None:
    """Runs the command line."""
    parser = harness.parser("shards", QUESTION, rounds=1)
    parser.add_argument("--data", type=Path, metavar="FOLDER", help="folder with SST-2 (see benchmarks.throughput)")
    options = parser.parse_args()
    run_program(lambda scratch_dir: measure(options, scratch_dir))


if __name__ == "__main__":
    main()
