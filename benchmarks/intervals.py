"""`python -m benchmarks.intervals`: coverage and speed of confidence intervals, and power of paired comparisons.

Five reports. Coverage: the share of intervals that contain the true value, for samples from populations with known
metrics, for examples that come in groups, such as the sentences of a document, and for samples of a finite population,
drawn without replacement as `--sample` draws them. Speed: the same resampling as `scipy.stats.bootstrap`, in one
process. Power: how often comparisons find a difference of 2 points in accuracy, next to the theoretical power of
McNemar's test.
"""

from __future__ import annotations

import argparse
import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import Program, Report
from dist_eval.data.selection import allocate, draw_rows
from dist_eval.metrics.confusion import class_addends
from dist_eval.metrics.definitions import metrics_of_classes, statistics_of
from dist_eval.metrics.predictions import Predictions
from dist_eval.statistics import Difference, Evidence, Sums, Units, bca, gather_evidence, mcnemar, percentile, wilson

COVERAGE = "How many of the 95% intervals contain the truth?"
GROUPS = "How many of the 95% intervals contain the truth if examples come in groups?"
SAMPLES = "How many of the 95% intervals of a sample contain the metric of all rows?"
SPEED = "How many resamples are computed per second?"
POWER = "How often is a difference between two models found, at the level of 5%?"
OURS = "(dist_eval)"
METRICS = ("f1_macro", "mcc")
_ALPHA, _RESAMPLES = 0.05, 1_999
_ACCURACIES = np.linspace(0.5, 0.99, 99)
# groups of two balanced classes with symmetric errors, which are correlated within a group
_ACCURACY, _CORRELATION, _GROUP_SIZE, _ENOUGH_GROUPS = 0.85, 0.3, 10, 50
_TRUTH_OF_GROUPS = {"accuracy": _ACCURACY, "f1_macro": _ACCURACY, "mcc": 2 * _ACCURACY - 1}
# the finite population
_ROWS, _SHARES, _RECALLS = 2_000, (0.4, 0.3, 0.2, 0.1), (0.9, 0.85, 0.8, 0.7)

Ends = tuple[float | None, float | None]


@dataclass
class Coverage:
    """Counts how many intervals contain the truth, by metric and method."""

    hits: dict[str, list[bool]] = field(default_factory=dict)

    def count(self, name: str, ends: Ends | None, truth: float) -> None:
        """Counts an interval; a failed one contains nothing."""
        low, high = ends or (None, None)
        self.hits.setdefault(name, []).append(low is not None and high is not None and low <= truth <= high)

    def add_to(self, report: Report, group: str, bar: float | None) -> None:
        """Adds the shares in percent; the bar for dist_eval is a maximum distance from 95, in points."""
        for name, hits in sorted(self.hits.items()):
            share = 100 * float(np.mean(hits))
            report.add(group, name, share, {"simulations": len(hits)})
            if name.endswith(OURS) and bar is not None:
                report.bound(f"points away from 95: {name}, {group}", [abs(share - 95)], bar)


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
    def from_recalls(cls, shares: Sequence[float], recalls: Sequence[float]) -> Population:
        """Builds a population from the classes' shares and recalls; errors are distributed by the shares."""
        cells = np.tile(np.asarray(shares), (len(shares), 1))
        np.fill_diagonal(cells, 0)
        cells *= ((1 - np.asarray(recalls)) * shares / cells.sum(axis=1))[:, np.newaxis]
        np.fill_diagonal(cells, np.asarray(recalls) * shares)
        return cls(f"{len(shares)} classes, {'even' if len(set(shares)) == 1 else 'uneven'}", cells)

    def truth(self) -> dict[str, float]:
        """Returns the metrics of the population itself."""
        sums = np.concatenate([np.diag(self.cells), self.cells.sum(axis=1), self.cells.sum(axis=0)])
        return {name: float(value[0]) for name, value in metrics_of_classes(sums[:, np.newaxis]).items()}

    def sample(self, examples: int, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Draws labels and predictions, int64 of shape [examples] each."""
        counts = generator.multinomial(examples, self.cells.ravel())
        label, prediction = np.unravel_index(np.arange(counts.size), self.cells.shape)
        return np.repeat(label, counts), np.repeat(prediction, counts)


POPULATIONS = (
    Population.from_recalls([0.5, 0.5], [0.92, 0.88]),
    Population.from_recalls([0.7, 0.3], [0.9, 0.7]),
    Population.from_recalls(_SHARES, _RECALLS),
)


def cover(options: argparse.Namespace) -> Report:
    """Measures the coverage of intervals."""
    report = Report("intervals", COVERAGE, unit="%", options=options)
    for population in POPULATIONS:
        for examples in options.examples:
            group = f"{population.name}, n = {examples:,}"
            exact = 100 * exact_coverage(population.truth()["accuracy"], examples)
            report.add(group, f"accuracy: Wilson {OURS}", exact)
            report.bound(f"points away from 95: accuracy: Wilson {OURS}, {group}", [abs(exact - 95)], 1.0)
            coverage_of(population, examples, options.simulations).add_to(report, group, bar=1.0)
    for examples in options.examples:
        all_exact = [100 * exact_coverage(float(accuracy), examples) for accuracy in _ACCURACIES]
        group = f"accuracies from {_ACCURACIES[0]:g} to {_ACCURACIES[-1]:g}, n = {examples:,}"
        for name, value in (("mean", np.mean(all_exact)), ("lowest", min(all_exact)), ("highest", max(all_exact))):
            report.add(group, f"Wilson, {name} {OURS}", float(value))
    error = 100 * float(np.sqrt(_ALPHA * (1 - _ALPHA) / options.simulations))
    report.note(
        "Wilson's coverage is computed exactly; hits are whole numbers, so it jumps with the accuracy. Each other "
        f"figure rests on {options.simulations:,} samples, which leaves a standard error of {error:.2f} points, and "
        f"each interval of the bootstrap on {_RESAMPLES:,} resamples."
    )
    return report


def coverage_of(population: Population, examples: int, simulations: int) -> Coverage:
    """Counts intervals of samples from a population."""
    truth, generator, coverage = population.truth(), np.random.default_rng(examples), Coverage()
    for number in range(simulations):
        label, prediction = population.sample(examples, generator)
        share = float((label == prediction).mean())
        half = 1.959964 * float(np.sqrt(share * (1 - share) / examples))
        coverage.count("accuracy: Wald", (share - half, share + half), truth["accuracy"])
        evidence = evidence_of(confusion_of(label, prediction), METRICS, number)
        for name, found in evidence.items():
            interval = found.interval()
            coverage.count(f"{name}: BCa {OURS}", (interval.low, interval.high), truth[name])
            if found.distribution is not None:
                ends = percentile(found.distribution[~np.isnan(found.distribution)])
                coverage.count(f"{name}: percentile", ends, truth[name])
    return coverage


def exact_coverage(accuracy: float, examples: int) -> float:
    """Computes the exact coverage of Wilson's interval, by summing over the binomial distribution."""
    from scipy.stats import binom

    hits = np.arange(examples + 1)
    low, high = np.array([wilson(number, examples) for number in range(examples + 1)]).T
    return float(binom.pmf(hits, examples, accuracy)[(low <= accuracy) & (accuracy <= high)].sum())


def confusion_of(label: np.ndarray, prediction: np.ndarray, units: Units | None = None) -> Sums:
    """Returns the metrics of a confusion matrix as a statistic, by default of single examples."""
    units = Units.by_value(label, prediction) if units is None else units
    return Sums(units, class_addends(label, prediction), metrics_of_classes)


def evidence_of(statistic: Sums, metrics: Sequence[str], seed: int) -> dict[str, Evidence]:
    """Resamples some metrics of a confusion matrix."""
    observed = statistic.values(statistic.units.observed_weights())
    values = {name: float(observed[name][0]) for name in metrics}
    return gather_evidence(statistic, values, resamples=_RESAMPLES, seed=seed)


def cover_groups(options: argparse.Namespace) -> Report:
    """Measures the coverage of intervals from resampling examples and from resampling whole groups."""
    report = Report("intervals-groups", GROUPS, unit="%", options=options)
    for groups in options.groups:
        group = f"{groups} groups of {_GROUP_SIZE} examples"
        bar = 3.0 if groups >= _ENOUGH_GROUPS else None
        coverage_of_groups(groups, options.simulations).add_to(report, group, bar)
    report.note(
        f"The accuracy of a group is drawn from a beta distribution with mean {_ACCURACY:g}; two examples of a group "
        f"are both right or both wrong with a correlation of {_CORRELATION:g}. Each figure rests on "
        f"{options.simulations:,} samples."
    )
    return report


def coverage_of_groups(groups: int, simulations: int) -> Coverage:
    """Counts intervals of samples of whole groups."""
    generator, coverage = np.random.default_rng(groups), Coverage()
    names = np.repeat(np.arange(groups), _GROUP_SIZE)
    weight = 1 / _CORRELATION - 1
    for number in range(simulations):
        accuracy = generator.beta(_ACCURACY * weight, (1 - _ACCURACY) * weight, size=groups)
        label = generator.integers(2, size=len(names))
        is_right = generator.random(len(names)) < accuracy[names]
        prediction = np.where(is_right, label, 1 - label)
        coverage.count("accuracy: Wilson, by examples", wilson(int(is_right.sum()), len(names)), _ACCURACY)
        for kind, units in (("by examples", None), (f"by groups {OURS}", Units.groups(names))):
            evidence = evidence_of(confusion_of(label, prediction, units), tuple(_TRUTH_OF_GROUPS), number)
            for name, found in evidence.items():
                assert found.distribution is not None and found.influence is not None
                defined = found.distribution[~np.isnan(found.distribution)]
                # also below the number of groups for which `Evidence.interval` gives an interval: this shows why
                ends = bca(defined, found.value, found.influence, found.multiplicity)
                coverage.count(f"{name}: BCa, {kind}", ends, _TRUTH_OF_GROUPS[name])
    return coverage


def cover_samples(options: argparse.Namespace) -> Report:
    """Measures the coverage of intervals with and without the correction for a finite population."""
    report = Report("intervals-samples", SAMPLES, unit="%", options=options)
    for size in options.samples:
        for is_stratified in (False, True):
            group = f"{size:,} of {_ROWS:,} rows" + (", stratified" if is_stratified else "")
            bar = None if is_stratified else 2.0
            coverage_of_samples(size, options.simulations, is_stratified).add_to(report, group, bar)
    report.note(
        f"Rows of {len(_SHARES)} classes with shares {_SHARES} and recalls {_RECALLS}. Each figure rests on "
        f"{options.simulations:,} samples. The intervals of a stratified sample are those of a plain one, so they are "
        "wider than need be."
    )
    return report


def coverage_of_samples(size: int, simulations: int, is_stratified: bool) -> Coverage:
    """Counts intervals of samples of the same rows."""
    generator, coverage = np.random.default_rng(0), Coverage()
    label = generator.choice(len(_SHARES), size=_ROWS, p=_SHARES)
    is_right = generator.random(_ROWS) < np.asarray(_RECALLS)[label]
    prediction = np.where(is_right, label, (label + 1) % len(_SHARES))
    statistic = confusion_of(label, prediction)
    truth = {name: float(value[0]) for name, value in statistic.values(statistic.units.observed_weights()).items()}
    quotas = allocate(size, np.bincount(label)) if is_stratified else np.asarray([size])
    fraction = size / _ROWS
    for seed in range(simulations):
        rows = draw_rows(_ROWS, quotas, seed, label if is_stratified else None)
        right = int(is_right[rows].sum())
        corrected = wilson(right, size, sampling_fraction=fraction)
        coverage.count("accuracy: Wilson", wilson(right, size), truth["accuracy"])
        coverage.count(f"accuracy: Wilson, corrected {OURS}", corrected, truth["accuracy"])
        evidence = evidence_of(confusion_of(label[rows], prediction[rows]), METRICS, seed)
        for name, found in evidence.items():
            coverage.count(f"{name}: BCa", found.interval().limits, truth[name])
            limits = found.interval(sampling_fraction=fraction).limits
            coverage.count(f"{name}: BCa, corrected {OURS}", limits, truth[name])
    return coverage


def race(options: argparse.Namespace) -> Report:
    """Resamples the same predictions with dist_eval and with SciPy."""
    report = Report("intervals-speed", SPEED, unit="resamples/s", options=options)
    group = f"{options.resampled:,} examples, 2 classes"
    predictions = synthetic(options.resampled)
    confusion, losses, *_, areas = statistics_of(predictions)
    few = 20 if options.quick else 200
    by_scipy("f1_macro", predictions, 1)  # warm-up
    for _ in range(options.rounds):
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
        ours, theirs = (group, f"{name}: dist_eval"), (group, f"{name}: scipy")
        report.compare(f"{name}: dist_eval / scipy", ours, theirs, bar=1.0)
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
        tp, fp, fn, tn = (cell.astype(np.float64) for cell in cells(label, guess, axis))
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


def find(options: argparse.Namespace) -> Report:
    """Measures how often a comparison rejects for a difference of 2 points, and for none."""
    report = Report("intervals-power", POWER, unit="%", options=options)
    examples, simulations = options.compared, options.simulations
    for differing in (0.04, 0.06, 0.1):
        for points in (2.0, 0.0):
            group = f"n = {examples:,}, {points:g} points, models differ on {100 * differing:g}%"
            better, worse = (differing + points / 100) / 2, (differing - points / 100) / 2
            theory = power_of_mcnemar(examples, better, worse)
            report.add(group, "McNemar's test: theory", 100 * theory)
            found = power_found(examples, better, worse, simulations)
            for name, share in found.items():
                report.add(group, name, 100 * share, {"simulations": simulations})
            distance = abs(100 * (found[_MCNEMAR] - theory))
            report.bound(f"points away from theory: McNemar's test, {group}", [distance], 2.0)
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
        evidence = gather_evidence(Difference(*pair), {"accuracy": value}, resamples=_RESAMPLES, seed=number)
        p_value = evidence["accuracy"].p_value()
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
    """Produces all reports."""
    for produce in (cover, cover_groups, cover_samples, race, find):
        produce(options).finish()


PROGRAM = Program(
    "intervals",
    COVERAGE,
    measure,
    quick={"examples": [200], "groups": [20], "samples": [500], "resampled": 5_000, "compared": 500, "simulations": 40},
)
PROGRAM.add("--simulations", 4_000, "samples for coverage and power")
PROGRAM.add("--examples", (200, 5_000), "of a sample, for coverage")
PROGRAM.add("--groups", (10, 20, 50, 200), "of a sample, for coverage")
PROGRAM.add("--samples", (200, 1_000, 1_800), f"rows of a sample of {_ROWS:,} rows")
PROGRAM.add("--resampled", 100_000, "examples, for speed")
PROGRAM.add("--compared", 2_000, "examples, for power")

if __name__ == "__main__":
    PROGRAM.main()
