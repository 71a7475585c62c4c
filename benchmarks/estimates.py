"""`python -m benchmarks.estimates`: how far the expected time of a run is from the time that it takes.

`dist-eval plan` estimates it before the run. The swarms are of different speed: their servers wait instead of computing
(see `waiting_server.py`), and a proxy gives the way a delay.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import Program, Report
from benchmarks.models import PROMPT_TOKENS, make_model, train_tokenizer
from benchmarks.pipeline import BASE, Shape
from benchmarks.processes import run
from benchmarks.text import Corpus, make_corpus
from benchmarks.waiting_server import waiting_swarm
from dist_eval.options.groups import MAX_TOKEN_BUDGET

QUESTION = "How far is the expected time of a run from the time that it takes?"
FORWARDS, WHOLE = "forwards, before the run", "whole command, before the run"
SWARMS = {
    shape.name: (shape, milliseconds)
    for shape, milliseconds in (
        (Shape("fast", ((0.05,), (0.05,))), 0),
        (Shape("slow", ((0.5,), (0.5,))), 0),
        (Shape("100 ms away", ((0.1,), (0.1,))), 100),
        (Shape("unequal stages", ((0.07,), (0.07,), (0.2,), (0.07,))), 0),
    )
}
_BAR = 0.25
_SENTENCES = 12  # most of them in a text, so that texts have very different lengths


def measure(options: argparse.Namespace, scratch_dir: Path) -> None:
    """Measures all swarms and numbers of ranks."""
    report = Report("estimates", QUESTION, unit="estimate / what came", options=options)
    sentences = make_corpus(2000).sentences
    model, tokenizer = make_model(scratch_dir, BASE, sentences), train_tokenizer(sentences)
    for name in options.swarms:
        shape, milliseconds = SWARMS[name]
        rows = make_texts(sentences, tokenizer, round(options.seconds / shape.slowest))
        dataset = rows.write_csv(scratch_dir / "rows.csv")
        arguments = ["--model", model.base, "--checkpoint", model.tuned, "--text-column", "sentence"]
        arguments += ["--dataset", dataset, "--session-share", "0"]  # servers wait in forwards only
        with waiting_swarm(model, scratch_dir, shape.spans) as (peers, adjust):
            adjust(shape.speeds(), milliseconds / 1000)
            for _ in range(options.rounds):
                for ranks in options.ranks:
                    words = ["--nproc-per-node", ranks, *arguments, "--initial-peers", *peers]
                    _measure_cell(report, f"{name}, {ranks} rank{'s' * (ranks > 1)}", words, scratch_dir)
    for (group, name), series in report.series.items():
        errors = [abs(value - 1) for value in series.values]
        report.bound(f"{group}: error of the time of {name}", errors, _BAR)
    report.finish()


def _measure_cell(report: Report, group: str, words: list[Any], scratch_dir: Path) -> None:
    printed = run(scratch_dir, "-m", "dist_eval.cli.main", "plan", "--json", *words)
    expected = json.loads(printed[printed.index("{") :])["time"]
    output = Path(tempfile.mkdtemp(dir=scratch_dir)) / "output"
    start = time.monotonic()
    run(scratch_dir, "-m", "dist_eval.cli.main", "run", *words, "--output", output)
    wall = time.monotonic() - start
    came = json.loads((output / "results.json").read_text(encoding="utf-8"))["throughput"]["seconds"]
    report.add(group, FORWARDS, expected["seconds"] / came, {**expected, "came": came})
    report.add(group, WHOLE, (expected["start_up"] + expected["seconds"]) / wall, {"came": wall})
    inside = expected["low"] is not None and expected["low"] <= came <= expected["high"]
    report.note(
        f"{group}: {expected['seconds']:.1f} s expected after a probe of {expected['probe_seconds']:.1f} s, "
        f"{came:.1f} s came, {'inside' if inside else 'outside'} the range."
    )


def make_texts(sentences: Sequence[str], tokenizer: Any, batches: int) -> Corpus:
    """Makes texts of one to many sentences that fill about the given number of batches."""
    generator = np.random.default_rng(0)
    texts: list[str] = []
    tokens = 0
    lengths = [len(ids) for ids in tokenizer(list(sentences))["input_ids"]]
    while tokens < batches * MAX_TOKEN_BUDGET:
        chosen = generator.integers(0, len(sentences), size=generator.integers(1, _SENTENCES + 1))
        texts.append(" ".join(sentences[number] for number in chosen))
        tokens += PROMPT_TOKENS + sum(lengths[number] for number in chosen)
    return Corpus(texts, [row % 2 for row in range(len(texts))], "sentences put together")


PROGRAM = Program("estimates", QUESTION, measure, rounds=1, quick={"swarms": ["fast"], "ranks": [1], "seconds": 10.0})
PROGRAM.add("--swarms", tuple(SWARMS), "by their speed", choices=SWARMS, metavar="SWARM")
PROGRAM.add("--ranks", (1, 3), "numbers of ranks")
PROGRAM.add("--seconds", 100.0, "what a run should take, about")

if __name__ == "__main__":
    PROGRAM.main()
