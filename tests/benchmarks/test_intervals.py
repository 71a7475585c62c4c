"""The benchmark of intervals and comparisons, small: all methods are measured, and the theory is theory."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from conftest import Launcher
from scipy import stats
from sklearn import metrics as sk

from benchmarks.intervals import POPULATIONS, power_of_mcnemar


def test_it_measures_coverage_speed_and_power(launcher: Launcher, tmp_path: Path) -> None:
    done = launcher.run("-m", "benchmarks.intervals", "--quick", "--output", str(tmp_path), preloaded=False)
    assert done.returncode == 0, done.stderr
    found = {}
    for name in ("intervals", "intervals-groups", "intervals-samples", "intervals-speed", "intervals-power"):
        found[name] = json.loads((tmp_path / f"{name}.json").read_text())
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    coverage = [one for one in found["intervals"]["series"] if "classes" in one["group"] and "dist_eval" in one["name"]]
    assert {one["name"].split(":")[0] for one in coverage} == {"accuracy", "f1_macro", "mcc"}
    assert len(coverage) == 3 * len(POPULATIONS)
    assert all(one["median"] >= 75 for one in coverage), "of 40 seeded samples"
    grouped = {one["name"]: one["median"] for one in found["intervals-groups"]["series"]}
    for name in ("accuracy", "f1_macro", "mcc"):
        assert grouped[f"{name}: BCa, by groups (dist_eval)"] > grouped[f"{name}: BCa, by examples"]
    samples = {(one["group"], one["name"]): one["median"] for one in found["intervals-samples"]["series"]}
    assert {name for _, name in samples if "dist_eval" in name} == {
        f"{name}, corrected (dist_eval)" for name in ("accuracy: Wilson", "f1_macro: BCa", "mcc: BCa")
    }
    assert all(value >= 80 for value in samples.values())
    assert all(one["values"][0] > 0 for one in found["intervals-speed"]["series"])
    power = {(one["group"], one["name"]): one["median"] for one in found["intervals-power"]["series"]}
    for (group, name), value in power.items():
        assert value <= 20 if "0 points" in group else value >= 10, (group, name)
    assert launcher.leftovers() == []


@pytest.mark.parametrize("population", POPULATIONS, ids=lambda one: one.name)
def test_a_populations_truth_is_that_of_a_huge_sample(population: object) -> None:
    cells = population.cells
    assert cells.sum() == pytest.approx(1)
    assert (cells > 0).all()
    label, prediction = (axis.ravel() for axis in np.indices(cells.shape))
    weights = cells.ravel()
    truth = population.truth()
    assert truth["mcc"] == pytest.approx(sk.matthews_corrcoef(label, prediction, sample_weight=weights))
    assert truth["f1_macro"] == pytest.approx(sk.f1_score(label, prediction, sample_weight=weights, average="macro"))


@pytest.mark.parametrize(("better", "worse"), [(0.2, 0.1), (0.15, 0.15), (0.3, 0.0)])
def test_the_power_of_the_exact_test_is_the_probability_of_what_it_rejects(better: float, worse: float) -> None:
    examples, power = 20, 0.0
    for first in range(examples + 1):
        for second in range(examples + 1 - first):
            if first + second and stats.binomtest(first, first + second).pvalue <= 0.05:
                power += stats.multinomial.pmf(
                    [first, second, examples - first - second], examples, [worse, better, 1 - better - worse]
                )
    assert power_of_mcnemar(examples, better, worse) == pytest.approx(power, rel=1e-9)
