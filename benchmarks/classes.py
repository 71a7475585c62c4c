"""`python -m benchmarks.classes`: what a run costs with many classes and few rows.

A tiny BERT with random weights labels random digits, on this host without a swarm: nearly all that a run of 5,000
classes takes more than one of 10 classes is for counting, testing and showing them.
"""

from __future__ import annotations

import argparse
import random
import resource
import time
from pathlib import Path

from benchmarks import harness
from benchmarks.program import run_program
from benchmarks.ranks import run

QUESTION = "How much time, memory and disk does a run with many classes take?"
_CLASSES, _QUICK_CLASSES, _ROWS = (10, 1_000, 5_000), (10, 300), 100


def make_inputs(folder: Path, classes: int, rows: int) -> list[str]:
    """Writes a classifier and labelled texts, and returns the options that name them."""
    from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification

    from dist_eval import demo

    tokenizer, drawn = AutoTokenizer.from_pretrained(demo.BASE_MODEL), random.Random(classes)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        id2label={number: f"class {number}" for number in range(classes)},
    )
    BertForSequenceClassification(config).save_pretrained(folder / "model", safe_serialization=True)
    tokenizer.save_pretrained(folder / "model")
    lines = [f"{drawn.randrange(10)} {drawn.randrange(10)},{drawn.randrange(classes)}" for _ in range(rows)]
    (folder / "data.csv").write_text("text,label\n" + "\n".join(lines) + "\n", encoding="utf-8")
    return ["--model", str(folder / "model"), "--dataset", str(folder / "data.csv")]


def measure(options: argparse.Namespace, scratch_dir: Path) -> None:
    """Measures runs of one rank.

    Args:
        options: the command line.
        scratch_dir: folder for temporary files.
    """
    reports = {
        unit: harness.Report(name, QUESTION, unit=unit, options=options, more_is_better=False)
        for unit, name in (("s", "classes"), ("MiB", "classes-memory"), ("MB", "classes-results"))
    }
    for classes in _QUICK_CLASSES if options.quick else _CLASSES:
        folder = scratch_dir / str(classes)
        folder.mkdir()
        inputs = make_inputs(folder, classes, _ROWS)
        for number in range(1 if options.quick else options.rounds):
            output, began = folder / f"run-{number}", time.perf_counter()
            command = ["-m", "dist_eval", "--backend", "local", *inputs, "--output", str(output)]
            run(command, scratch_dir)
            peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024  # of all so far: classes increase
            size = (output / "results.json").stat().st_size
            figures = {"s": time.perf_counter() - began, "MiB": peak, "MB": size / 1e6}
            for unit, figure in figures.items():
                reports[unit].add(f"{_ROWS} rows, one rank", f"{classes:,} classes", figure)
    for report in reports.values():
        report.finish()


def main() -> None:
    """Runs the command line."""
    options = harness.parser("classes", QUESTION, rounds=1).parse_args()
    run_program(lambda scratch_dir: measure(options, scratch_dir))


if __name__ == "__main__":
    main()
