"""`python -m benchmarks.tuning`: accuracy of prompt tuning through a swarm, on real text.

A small Llama is pretrained on the training sentences of SST-2 (see `pretraining.py`), and two servers hold its blocks.
Prompts and a head are tuned through them by `dist_eval.tuning`, in both modes, and evaluated on the test sentences by
`dist_eval`; so is the base itself, by label words. Baselines are a linear classifier without a language model, and the
majority class.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.harness import Program, Report
from benchmarks.models import TINY, Model
from benchmarks.pretraining import LABELS, pretrain
from benchmarks.processes import run, run_dist_eval
from benchmarks.swarms import swarm_of
from benchmarks.text import Corpus, load_split, make_opinions

QUESTION = "How good a classifier is tuned through a swarm, by the mode?"
MODES = ("ptune", "deep_ptune")
MAJORITY, BAG_OF_WORDS = "always the most frequent class", "bag of words, logistic regression"
WORDS = "dist_eval --label-words, nothing tuned"
_GROUP = f"Llama {TINY}, test sentences"
_EPOCHS, _BATCH = 2, 128
_CONFIDENCE = 0.95


def tuned(mode: str) -> str:
    """Returns the name of what is tuned in a mode."""
    return f"dist_eval.tuning, {mode}"


def measure(options: argparse.Namespace, scratch_dir: Path) -> None:
    """Pretrains a base model, tunes it in both modes on a swarm, and evaluates the results."""
    report = Report("tuning", QUESTION, unit="accuracy", options=options)
    corpora = {split: _load(split, options) for split in ("train", "validation", "test")}
    report.note(f"Text: {', '.join(corpus.source for corpus in corpora.values())}.")
    files = {split: str(corpus.write_csv(scratch_dir / f"{split}.csv")) for split, corpus in corpora.items()}
    base, test = scratch_dir / "base", corpora["test"]
    began = time.perf_counter()
    pretrain(base, corpora["train"], TINY, epochs=options.pretraining_epochs)
    report.note(f"Pretrained for {time.perf_counter() - began:.0f} s on the training sentences and their labels.")
    with swarm_of(Model(TINY, base, scratch_dir), scratch_dir) as swarm:
        where: list[Any] = ["--model", base, "--initial-peers", *swarm.initial_peers]
        for seed in range(options.rounds):
            majority = max(sum(test.labels), len(test.labels) - sum(test.labels))
            _add(report, MAJORITY, majority, len(test.labels))
            _add(report, BAG_OF_WORDS, _bag_of_words(corpora["train"], test), len(test.labels))
            names = [f"{code}={word}" for code, word in enumerate(LABELS)]  # as the tuned head names them
            asked = ["--prompt", "{sentence}", "--label-delimiter", "", "--label-words", *names]
            results, words = run_dist_eval(scratch_dir, *where, *asked, "--dataset", files["test"], ranks=options.ranks)
            _add(report, WORDS, *_right(results))
            for mode in MODES:
                output = Path(tempfile.mkdtemp(dir=scratch_dir))
                arguments = ["--dataset", files["train"], "--eval-dataset", files["validation"], "--epochs", _EPOCHS]
                arguments += ["--tuning-mode", mode, "--seed", seed, "--batch-size", _BATCH, "--output", output]
                arguments += ["--text-column", "sentence", *where]
                run(scratch_dir, "-m", "dist_eval.tuning", *arguments, ranks=options.ranks)
                found = json.loads((output / "tuning.json").read_text(encoding="utf-8"))
                asked = ["--checkpoint", str(output / "best"), "--text-column", "sentence", "--dataset", files["test"]]
                results, evaluated = run_dist_eval(scratch_dir, *where, *asked, ranks=options.ranks)
                details = {key: [epoch[key] for epoch in found["epochs"]] for key in ("loss", "seconds")}
                _add(report, tuned(mode), *_right(results), details={**details, "best": found["best"]})
                compare = ["-m", "dist_eval.cli.main", "compare", words, evaluated, "--metric", "accuracy"]
                report.note(f"From label words to {mode}:\n{run(scratch_dir, *compare)}")
    for mode in MODES:
        report.compare(f"{mode} / the most frequent class", (_GROUP, tuned(mode)), (_GROUP, MAJORITY), bar=1.2)
    ptune, deep_ptune = ((_GROUP, tuned(mode)) for mode in MODES)
    report.compare(f"{MODES[1]} / {MODES[0]}", deep_ptune, ptune)
    report.finish()


def _load(split: str, options: argparse.Namespace) -> Corpus:
    found = None if options.quick else load_split(split, options.data)
    return found or make_opinions(split, options.rows)


def _right(results: dict[str, Any]) -> tuple[int, int]:
    """Returns the numbers of correct examples and of all examples."""
    matrix = results["confusion_matrix"]["matrix"]
    return sum(row[i] for i, row in enumerate(matrix)), results["coverage"]["seen"]


def _add(report: Report, name: str, right: int, examples: int, details: dict[str, Any] | None = None) -> None:
    """Adds an accuracy with its Wilson interval."""
    from scipy.stats import binomtest

    interval = binomtest(right, examples).proportion_ci(_CONFIDENCE, method="wilson")
    low, high = float(interval.low), float(interval.high)
    report.add(_GROUP, name, right / examples, {**(details or {}), "examples": examples, "interval": [low, high]})
    report.note(
        f"{name}: {right / examples:.4f}, {right} of {examples} right, {_CONFIDENCE:.0%} interval {low:.4f} to "
        f"{high:.4f}."
    )


def _bag_of_words(train: Corpus, test: Corpus) -> int:
    """Returns the number of test sentences that a linear bag-of-words classifier gets right."""
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    model = make_pipeline(CountVectorizer(binary=True), LogisticRegression(C=0.2, max_iter=1000))
    model.fit(train.sentences, train.labels)
    return int((model.predict(test.sentences) == test.labels).sum())


PROGRAM = Program(
    "tuning", QUESTION, measure, rounds=1, rows=2048, quick={"rows": 128, "ranks": 1, "pretraining_epochs": 1}
)
PROGRAM.add("--ranks", 2, "number of ranks")
PROGRAM.add("--pretraining-epochs", 6, "of the base model")

if __name__ == "__main__":
    PROGRAM.main()
