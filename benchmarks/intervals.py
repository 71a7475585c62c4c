"""`python -m benchmarks.intervals`: coverage and speed of confidence intervals, and power of paired comparisons.

Five reports. Coverage: the share of intervals that contain the true value, for samples from populations with known
metrics, and the same for clustered examples (see `clusters`) and for samples of a finite population (see
`finite_populations`). Speed: the same resampling as `scipy.stats.bootstrap`, in
one process. Power: how often comparisons find a difference of 2 points in accuracy, next to the theoretical power of
McNemar's test.
"""

from __future__ import annotations

import argparse
import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import harness
from benchmarks.clusters import OURS, cover_groups
from benchmarks.finite_populations import cover_rows
from benchmarks.program import run_program
from dist_eval.metrics.confusion import margins
from dist_eval.metrics.definitions import metrics_of_margins, statistics_of
from dist_eval.metrics.predictions import Predictions
from dist_eval.statistics import Difference, Sums, Units, gather_evidence, mcnemar, percentile, wilson

COVERAGE = "How many of the 95% intervals contain the truth?"
SPEED = "How many resamples are computed per second?"
POWER = "How often is a difference between two models found, at the level of 5%?"
METRICS = ("f1_macro", "mcc")
_ALPHA, _RESAMPLES = 0.05, 1_999
_ACCURACIES = np.linspace(0.5, 0.99, 99)


@dataclass(frozen=True)
class Population:
    """A joint distribution of true and predicted classes.

    Attributes:
        name: name in the report.
        cells: probability of each true (row) and predicted class (column), float64 of shape [classes, classes].
    """

    name: str
    cells: np.ndarray

    @classmethod
    def of(cls, shares: Sequence[float], recalls: Sequence[float]) -> Population:
        """Builds a population from the classes' shares and recalls; errors are distributed by the shares."""
        cells = np.tile(np.asarray(shares), (len(shares), 1))
        np.fill_diagonal(cells, 0)
        cells *= ((1 - np.asarray(recalls)) * shares / cells.sum(axis=1))[:, np.newaxis]
        np.fill_diagonal(cells, np.asarray(recalls) * shares)
        return cls(f"{len(shares)} classes, {'even' if len(set(shares)) == 1 else 'uneven'}", cells)

    def truth(self) -> dict[str, float]:
        """Returns the metrics of the population itself."""
        sums = np.concatenate([np.diag(self.cells), self.cells.sum(axis=1), self.cells.sum(axis=0)])
        return {name: float(value[0]) for name, value in metrics_of_margins(sums[:, np.newaxis]).items()}

    def sample(self, examples: int, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Draws labels and predictions, int64 of shape [examples] each."""
        counts = generator.multinomial(examples, self.cells.ravel())
        label, prediction = np.unravel_index(np.arange(counts.size), self.cells.shape)
        return np.repeat(label, counts), np.repeat(prediction, counts)


POPULATIONS = (
    Population.of([0.5, 0.5], [0.92, 0.88]),
    Population.of([0.7, 0.3], [0.9, 0.7]),
    Population.of([0.4, 0.3, 0.2, 0.1], [0.9, 0.85, 0.8, 0.7]),
)


def cover(options: argparse.Namespace, sizes: Sequence[int], simulations: int) -> harness.Report:
    """Measures the coverage of intervals."""
    report = harness.Report("intervals", COVERAGE, unit="%", options=options)
    for population in POPULATIONS:
        for examples in sizes:
            group = f"{population.name}, n = {examples:,}"
            covered = coverage_of(population, examples, simulations)
            for name, share in covered.items():
                report.add(group, name, 100 * share, {"simulations": simulations})
                if name.endswith(OURS):
                    bar = None if options.quick else 1.0
                    report.bound(f"points away from 95: {name}, {group}", [abs(100 * share - 95)], bar)
    for examples in sizes:
        exact = [100 * exact_coverage(float(accuracy), examples) for accuracy in _ACCURACIES]
        group = f"accuracies from {_ACCURACIES[0]:g} to {_ACCURACIES[-1]:g}, n = {examples:,}"
        for name, one in (("mean", np.mean(exact)), ("lowest", min(exact)), ("highest", max(exact))):
            report.add(group, f"Wilson, {name} {OURS}", float(one))
    error = 100 * float(np.sqrt(_ALPHA * (1 - _ALPHA) / simulations))
    report.note(
        "Wilson's coverage is computed exactly; hits are whole numbers, so it jumps with the accuracy. Each other "
        f"figure rests on {simulations:,} samples, which leaves a standard error of {error:.2f} points, and each "
        f"interval of the bootstrap on {_RESAMPLES:,} resamples."
    )
    return report


def coverage_of(population: Population, examples: int, simulations: int) -> dict[str, float]:
    """Returns the share of intervals that contain the truth, by metric and method."""
    truth, generator = population.truth(), np.random.default_rng(examples)
    hits: dict[str, list[bool]] = {}

    def count(name: str, ends: tuple[float | None, float | None], value: float) -> None:
        low, high = ends
        hits.setdefault(name, []).append(low is not None and high is not None and low <= value <= high)

    for number in range(simulations):
        label, prediction = population.sample(examples, generator)
        right = int((label == prediction).sum())
        share = right / examples
        half = 1.959964 * float(np.sqrt(share * (1 - share) / examples))
        count("accuracy: Wald", (share - half, share + half), truth["accuracy"])
        statistic = confusion_of(label, prediction)
        values = {name: float(statistic.values(statistic.units.observed_weights())[name][0]) for name in METRICS}
        for name, one in gather_evidence(statistic, values, resamples=_RESAMPLES, seed=number).items():
            interval = one.interval()
            count(f"{name}: BCa {OURS}", (interval.low, interval.high), truth[name])
            if one.distribution is not None:
                count(f"{name}: percentile", percentile(one.distribution[~np.isnan(one.distribution)]), truth[name])
    covered = {name: float(np.mean(found)) for name, found in sorted(hits.items())}
    return {f"accuracy: Wilson {OURS}": exact_coverage(truth["accuracy"], examples), **covered}


def exact_coverage(accuracy: float, examples: int) -> float:
    """Computes the exact coverage of Wilson's interval, by summing over the binomial distribution."""
    from scipy.stats import binom

    hits = np.arange(examples + 1)
    low, high = np.array([wilson(number, examples) for number in range(examples + 1)]).T
    return float(binom.pmf(hits, examples, accuracy)[(low <= accuracy) & (accuracy <= high)].sum())


def confusion_of(label: np.ndarray, prediction: np.ndarray) -> Sums:
    """Returns the metrics of a confusion matrix as a statistic."""
    return Sums(Units.by_value(label, prediction), margins(label, prediction), metrics_of_margins)


def race(options: argparse.Namespace, examples: int, rounds: int) -> harness.Report:
    """Resamples the same predictions with dist_eval and with SciPy."""
    report = harness.Report("intervals-speed", SPEED, unit="resamples/s", options=options)
    group = f"{examples:,} examples, 2 classes"
    predictions = synthetic(examples)
    confusion, losses, *_, areas = statistics_of(predictions)
    few = 20 if options.quick else 200
    by_scipy("f1_macro", predictions, 1)  # warm-up
    for _ in range(rounds):
        for name, statistic, resamples in (
            ("f1_macro", confusion, 50 * few),
            ("mcc", confusion, 50 * few),
            ("loss", losses, 5 * few),
            ("roc_auc", areas, few),
        ):
            took = seconds(functools.partial(statistic.resampled, resamples))
            report.add(group, f"{name}: dist_eval", resamples / took)
            report.add(group, f"{name}: scipy", few / seconds(functools.partial(by_scipy, name, predictions, few)))
    for name in ("f1_macro", "mcc", "loss", "roc_auc"):
        bar = None if options.quick else 1.0
        report.compare(f"{name}: dist_eval / scipy", (group, f"{name}: dist_eval"), (group, f"{name}: scipy"), bar=bar)
    report.note(
        "One process, one thread. SciPy's functions work on many resamples at once, but for the area under the curve, "
        "which is scikit-learn's. The metrics of a confusion matrix come all together with dist_eval, and one by one "
        "with SciPy; examples of similar loss are drawn as one kind."
    )
    return report


def synthetic(examples: int) -> Predictions:
    """Generates predictions of two classes that are mostly correct."""
    generator = np.random.default_rng(0)
    label = generator.integers(2, size=examples)
    logits = generator.normal(size=(examples, 2))
    logits[np.arange(examples), label] += 1.5
    return Predictions.from_logits(np.arange(examples), label, logits)


def seconds(work: Callable[[], Any]) -> float:
    """Returns the duration of a call."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def by_scipy(name: str, predictions: Predictions, resamples: int) -> None:
    """Resamples with `scipy.stats.bootstrap`."""
    from scipy import stats
    from sklearn.metrics import roc_auc_score

    label, guess = predictions.label.astype(bool), predictions.prediction.astype(bool)

    def cells(label: np.ndarray, guess: np.ndarray, axis: int) -> tuple[np.ndarray, ...]:
        true, found = label.sum(axis=axis), guess.sum(axis=axis)
        hits = (label & guess).sum(axis=axis)
        return hits, found - hits, true - hits, label.shape[axis] - found - true + hits

    def f1(label: np.ndarray, guess: np.ndarray, axis: int) -> np.ndarray:
        tp, fp, fn, tn = cells(label, guess, axis)
        return (2 * tp / (2 * tp + fp + fn) + 2 * tn / (2 * tn + fp + fn)) / 2

    def mcc(label: np.ndarray, guess: np.ndarray, axis: int) -> np.ndarray:
        tp, fp, fn, tn = (one.astype(np.float64) for one in cells(label, guess, axis))
        return (tp * tn - fp * fn) / np.sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn))

    columns: dict[str, tuple[tuple[np.ndarray, ...], Any]] = {
        "f1_macro": ((label, guess), f1),
        "mcc": ((label, guess), mcc),
        "loss": ((predictions.loss,), np.mean),
        "roc_auc": ((label, predictions.probabilities[:, 1]), roc_auc_score),
    }
    data, function = columns[name]
    stats.bootstrap(
        data,
        function,
        paired=len(data) > 1,
        vectorized=name != "roc_auc",
        n_resamples=resamples,
        batch=20,
        method="percentile",
    )


def find(options: argparse.Namespace, examples: int, simulations: int) -> harness.Report:
    """Measures how often a comparison rejects for a difference of 2 points, and for none."""
    report = harness.Report("intervals-power", POWER, unit="%", options=options)
    for differing in (0.04, 0.06, 0.1):
        for points in (2.0, 0.0):
            group = f"n = {examples:,}, {points:g} points, models differ on {100 * differing:g}%"
            better, worse = (differing + points / 100) / 2, (differing - points / 100) / 2
            theory = power_of_mcnemar(examples, better, worse)
            report.add(group, "McNemar's test: theory", 100 * theory)
            found = power_found(examples, better, worse, simulations)
            for name, share in found.items():
                report.add(group, name, 100 * share, {"simulations": simulations})
            bar = None if options.quick else 2.0
            distance = abs(100 * (found[_MCNEMAR] - theory))
            report.bound(f"points away from theory: McNemar's test, {group}", [distance], bar)
    report.note(
        f"Each figure rests on {simulations:,} pairs of models. The theory is that of the exact test: which outcomes "
        "it rejects, and how likely they are. Without a difference, what is found is the share of false alarms."
    )
    return report


_MCNEMAR, _BOOTSTRAP = "McNemar's test (dist_eval)", "paired bootstrap, accuracy (dist_eval)"
_RIGHT_OF_BOTH = 0.9


def power_found(examples: int, better: float, worse: float, simulations: int) -> dict[str, float]:
    """Returns the rejection rates of the tests, for models that differ on these shares of the population."""
    generator = np.random.default_rng(examples)
    both = _RIGHT_OF_BOTH - (better + worse) / 2
    outcomes = np.array([both, worse, better, 1 - both - better - worse])
    rejected: dict[str, list[bool]] = {_MCNEMAR: [], _BOOTSTRAP: []}
    for number in range(simulations):
        counts = generator.multinomial(examples, outcomes)
        first, second = np.repeat([True, True, False, False], counts), np.repeat([True, False, True, False], counts)
        rejected[_MCNEMAR].append(mcnemar(first, second).p_value <= _ALPHA)
        units = Units.by_value(first.astype(np.int64), second.astype(np.int64))
        pair = [Sums(units, right[np.newaxis].astype(np.float64), _hits) for right in (first, second)]
        value = float(second.sum() - first.sum())
        evidence = gather_evidence(Difference(*pair), {"accuracy": value}, resamples=_RESAMPLES, seed=number)[
            "accuracy"
        ]
        p_value = evidence.p_value()
        rejected[_BOOTSTRAP].append(p_value is not None and p_value <= _ALPHA)
    return {name: float(np.mean(found)) for name, found in rejected.items()}


def _hits(sums: np.ndarray) -> dict[str, np.ndarray]:
    return {"accuracy": sums[0]}


def power_of_mcnemar(examples: int, better: float, worse: float) -> float:
    """Computes the power of the exact McNemar test.

    R. J. Connor (1987), "Sample size for testing differences in proportions for the paired-sample design", Biometrics
    43, 207-211: the number of discordant examples is binomial, and so is, given it, the number in favour of one model.

    Args:
        examples: number of examples.
        better: share of the population that only the second model gets right.
        worse: share that only the first model gets right.
    """
    from scipy.stats import binom

    differing = np.arange(1, examples + 1)
    # the largest count of the rarer side that the test rejects; the quantile may be one too large
    critical = binom.ppf(_ALPHA / 2, differing, 0.5)
    critical -= binom.cdf(critical, differing, 0.5) > _ALPHA / 2
    share = better / (better + worse)
    rejects = binom.cdf(critical, differing, share) + binom.sf(differing - critical - 1, differing, share)
    return float((binom.pmf(differing, examples, better + worse) * rejects).sum())


def measure(options: argparse.Namespace, scratch_dir: Path) -> None:
    """Produces all reports.

    Args:
        options: the command line.
        scratch_dir: folder for temporary files.
    """
    if options.quick:
        reports = [
            cover(options, (200,), 40),
            cover_groups(options, (20,), 40),
            cover_rows(options, (500,), 40),
            race(options, 5_000, 1),
            find(options, 500, 40),
        ]
    else:
        reports = [
            cover(options, (200, 5_000), options.simulations),
            cover_groups(options, (10, 20, 50, 200), options.simulations),
            cover_rows(options, (200, 1_000, 1_800), options.simulations),
            race(options, 100_000, options.rounds),
            find(options, 2_000, options.simulations),
        ]
    for report in reports:
        report.finish()


def main() -> None:
    """Runs the command line."""
    parser = harness.parser("intervals", COVERAGE, rounds=3)
    parser.add_argument("--simulations", type=int, default=4_000, help="samples for coverage and power (default 4,000)")
    options = parser.parse_args()
    run_program(lambda scratch_dir: measure(options, scratch_dir))


if __name__ == "__main__":
    main()
