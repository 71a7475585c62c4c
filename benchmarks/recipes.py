"""`python -m benchmarks.recipes`: the errors of common recipes for evaluation on several processes.

Real ranks under torchrun evaluate the same synthetic predictions of three classes, one of them rare, by each recipe and
by `dist_eval.evaluate`; the true metrics are known.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from benchmarks import harness, ranks
from benchmarks.program import run_program

QUESTION = "How far from the true macro F1 are the well-known recipes, by the number of ranks?"
OURS = "dist_eval.evaluate"
EXAMPLES, RANKS = 1003, (1, 2, 4, 8)
QUICK_RANKS = (1, 3)
_POINTS = 100.0
ROUNDING = 1e-10
"""Tolerance for rounding errors, in points."""


def measure(options: argparse.Namespace, scratch_dir: Path) -> None:
    """Runs all recipes on each number of ranks, with different predictions in each round.

    Args:
        options: the command line.
        scratch_dir: folder for temporary files.
    """
    report = harness.Report("recipes", QUESTION, unit="points off", options=options, more_is_better=False)
    errors: list[float] = []
    for seed in range(1 if options.quick else options.rounds):
        for count in QUICK_RANKS if options.quick else RANKS:
            path = scratch_dir / "found.json"
            ranks.run(
                [*ranks.torchrun(count), "-m", "benchmarks.recipes_rank", str(path), str(EXAMPLES), str(seed)],
                scratch_dir,
            )
            for order, found in json.loads(path.read_text(encoding="utf-8")).items():
                true = found.pop("true")
                for name, figure in found.items():
                    off = _POINTS * abs(figure - true)
                    report.add(f"{order}, {count} rank{'s' if count > 1 else ''}", name, off, {"true": true})
                    errors += [off] if name == OURS else []
    report.bound("dist_eval: the largest error of all", [max(errors)], bar=ROUNDING)
    report.note(
        f"{EXAMPLES} synthetic predictions of three classes (80, 15 and 5 % of them), in batches of 32. One point is "
        "0.01 of macro F1."
    )
    report.finish()


def main() -> None:
    """Runs the command line."""
    options = harness.parser("recipes", QUESTION, rounds=3).parse_args()
    run_program(lambda scratch_dir: measure(options, scratch_dir))


if __name__ == "__main__":
    main()
