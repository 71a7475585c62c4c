"""`python -m benchmarks.tuning`: accuracy of prompt tuning through a swarm, on real text.

A small Llama is pretrained on the training sentences of SST-2 (see `pretraining.py`), and two servers hold its blocks.
Prompts and a head are tuned through them by `dist_eval.tuning`, in both modes, and evaluated on the test sentences by
`dist_eval`; so is the base itself, by label words. Baselines are a linear classifier without a language model, and the
majority class.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import harness, text
from benchmarks.hosting import swarm_of
from benchmarks.models import TINY, Model
from benchmarks.pretraining import LABELS, Recipe, pretrain
from benchmarks.program import run_program
from benchmarks.ranks import run, torchrun
from benchmarks.text import Corpus
from dist_eval.compare import __main__ as compare

QUESTION = "How good a classifier is tuned through a swarm, by the mode?"
MODES = ("ptune", "deep_ptune")
MAJORITY, BAG_OF_WORDS = "always the most frequent class", "bag of words, logistic regression"
WORDS = "dist_eval --label-words, nothing tuned"
_RECIPE, _QUICK_RECIPE = Recipe(TINY, epochs=6), Recipe(TINY, epochs=1)
_EPOCHS, _BATCH, _RANKS = 2, 128, 2
_QUICK_ROWS = 128
_CONFIDENCE = 0.95


def measure(options: argparse.Namespace, scratch_dir: Path) -> None:
    """Pretrains a base model, tunes it in both modes on a swarm, and evaluates the results.

    Args:
        options: the command line.
        scratch_dir: folder for temporary files.
    """
    report = harness.Report("tuning", QUESTION, unit="share that is right", options=options)
    recipe = _QUICK_RECIPE if options.quick else _RECIPE
    train, validation, test = (_load(split, options) for split in ("train", "validation", "test"))
    report.note(f"Text: {train.source}, {validation.source}, {test.source}.")
    files = {
        name: one.write_csv(scratch_dir / f"{name}.csv") for name, one in (("train", train), ("validation", validation))
    }
    base, group = scratch_dir / "base", f"Llama {recipe.size}, test sentences"
    began = time.perf_counter()
    pretrain(base, train, recipe)
    report.note(f"Pretrained for {time.perf_counter() - began:.0f} s on the training sentences and their labels.")
    files["test"] = test.write_csv(scratch_dir / "test.csv")
    launcher = [] if options.quick else torchrun(_RANKS)
    with swarm_of(Model(recipe.size, base, scratch_dir), scratch_dir) as swarm:
        for number in range(1 if options.quick else options.rounds):
            majority = max(sum(test.labels), len(test.labels) - sum(test.labels))
            _add(report, group, MAJORITY, majority, len(test.labels))
            _add(report, group, BAG_OF_WORDS, _bag_of_words(train, test), len(test.labels))
            words = scratch_dir / f"words-{number}"
            asked = ["--prompt", "{sentence}", "--label-delimiter", "", "--label-words"]
            asked += [f"{code}={word}" for code, word in enumerate(LABELS)]  # named as the tuned head names them
            results = _evaluate(launcher, base, asked, files["test"], swarm.initial_peers, words, scratch_dir)
            _add(report, group, WORDS, *_right(results))
            for mode in MODES:
                output = scratch_dir / f"{mode}-{number}"
                tuned = _tune(launcher, mode, number, base, files, swarm.initial_peers, output, scratch_dir)
                asked = ["--checkpoint", str(output / "best"), "--text-column", "sentence"]
                results = _evaluate(
                    launcher, base, asked, files["test"], swarm.initial_peers, output / "test", scratch_dir
                )
                details = {"losses": [epoch["loss"] for epoch in tuned["epochs"]], "best": tuned["best"]}
                details["seconds"] = [epoch["seconds"] for epoch in tuned["epochs"]]
                _add(report, group, f"dist_eval.tuning, {mode}", *_right(results), details)
                report.note(f"From label words to {mode}: {_changes(words, output / 'test')}.")
    for mode in MODES:
        name = (group, f"dist_eval.tuning, {mode}")
        bar = None if options.quick else 1.2
        report.compare(f"{mode} / the most frequent class", name, (group, MAJORITY), bar=bar)
    first, second = ((group, f"dist_eval.tuning, {mode}") for mode in reversed(MODES))
    report.compare(f"{MODES[1]} / {MODES[0]}", first, second)
    report.finish()


def _load(split: str, options: argparse.Namespace) -> Corpus:
    found = None if options.quick else text.load_split(split, options.data)
    return found or text.make_opinions(split, _QUICK_ROWS if options.quick else options.rows)


def _right(results: dict[str, Any]) -> tuple[int, int]:
    """Returns how many examples are right, and how many there are."""
    matrix = results["confusion_matrix"]["matrix"]
    return sum(row[i] for i, row in enumerate(matrix)), results["coverage"]["seen"]


def _changes(first: Path, second: Path) -> str:
    """Returns how the predictions of two runs differ, and the paired test, as `dist-eval compare` prints them."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        compare.main([str(first), str(second), "--metric", "accuracy"])
    _, changes, test, *_ = printed.getvalue().replace("\n\n", "\n").splitlines()
    return f"{changes.partition(': ')[2]}; {test}"


def _add(
    report: harness.Report, group: str, name: str, right: int, examples: int, details: dict[str, Any] | None = None
) -> None:
    """Adds an accuracy with its Wilson interval."""
    from scipy.stats import binomtest

    interval = binomtest(right, examples).proportion_ci(_CONFIDENCE, method="wilson")
    bounds = [float(interval.low), float(interval.high)]
    report.add(group, name, right / examples, {**(details or {}), "examples": examples, "interval": bounds})
    report.note(
        f"{name}: {right / examples:.4f}, {right} of {examples} right, {_CONFIDENCE:.0%} interval {bounds[0]:.4f} to "
        f"{bounds[1]:.4f}."
    )


def _bag_of_words(train: Corpus, test: Corpus) -> int:
    """Returns the number of test sentences that a linear bag-of-words classifier gets right."""
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    model = make_pipeline(CountVectorizer(binary=True), LogisticRegression(C=0.2, max_iter=1000))
    model.fit(train.sentences, train.labels)
    return int((model.predict(test.sentences) == test.labels).sum())


def _tune(
    launcher: Sequence[str],
    mode: str,
    seed: int,
    base: Path,
    files: dict[str, Path],
    peers: Sequence[str],
    output: Path,
    scratch_dir: Path,
) -> dict[str, Any]:
    command = ["-m", "dist_eval.tuning", "--model", base, "--dataset", files["train"], "--text-column", "sentence"]
    command += ["--eval-dataset", files["validation"], "--tuning-mode", mode, "--epochs", _EPOCHS, "--seed", seed]
    command += ["--batch-size", _BATCH, "--output", output, "--initial-peers", *peers]
    run([*launcher, *map(str, command)], scratch_dir)
    return dict(json.loads((output / "tuning.json").read_text(encoding="utf-8")))


def _evaluate(
    launcher: Sequence[str],
    base: Path,
    asked: Sequence[str],
    data: Path,
    peers: Sequence[str],
    output: Path,
    scratch_dir: Path,
) -> dict[str, Any]:
    command = ["-m", "dist_eval", "--model", base, *asked, "--dataset", data, "--output", output]
    command += ["--initial-peers", *peers]
    run([*launcher, *map(str, command)], scratch_dir)
    return dict(json.loads((output / "results.json").read_text(encoding="utf-8")))


def main() -> None:
    """Runs the command line."""
    parser = harness.parser("tuning", QUESTION, rounds=1)
    text.add_options(parser, rows=2048)
    options = parser.parse_args()
    run_program(lambda scratch_dir: measure(options, scratch_dir))


if __name__ == "__main__":
    main()
