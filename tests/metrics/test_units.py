"""The resampling units: which examples are of one kind, and the distribution of the draws."""

from __future__ import annotations

import numpy as np
import pytest

from dist_eval.statistics import Units


def drawn(units: Units, resamples: int, seed: int = 0) -> np.ndarray:
    return np.concatenate(list(units.draws(resamples, seed)), axis=1)


UNITS = {
    "single": Units.single(7),
    "few kinds": Units(np.repeat([0, 1, 2], [70, 20, 10]), np.array([70, 20, 10])),
    "many kinds": Units(np.repeat([0, 1, 2], [7, 2, 1]), np.array([7, 2, 1])),
    "groups": Units.groups(np.array(["b", "a", "b", "c"])),
}


@pytest.mark.parametrize("units", UNITS.values(), ids=UNITS)
def test_draws_have_the_moments_of_a_multinomial_distribution(units: Units) -> None:
    counts = drawn(units, 40_000)
    assert counts.shape == (units.kinds, 40_000)
    assert (counts.sum(axis=0) == units.count).all()
    shares = units.multiplicity / units.count
    covariance = units.count * (np.diag(shares) - np.outer(shares, shares))
    tolerance = 6 * covariance.max() / np.sqrt(40_000)
    assert counts.mean(axis=1) == pytest.approx(units.multiplicity, abs=tolerance)
    assert np.cov(counts) == pytest.approx(covariance, abs=2 * tolerance)


@pytest.mark.parametrize("units", UNITS.values(), ids=UNITS)
def test_draws_depend_on_the_seed_and_not_on_the_chunk_size(units: Units, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = drawn(units, 50)
    assert not np.array_equal(whole, drawn(units, 50, seed=1))
    monkeypatch.setattr("dist_eval.metrics.units.CHUNK_SIZE", 9)
    assert np.array_equal(whole, drawn(units, 50))


def test_equivalent_examples_are_of_one_kind() -> None:
    units = Units.by_value(np.array([0, 1, 1, 0, 1]), np.array([2, 0, 0, 1, 2]))
    assert sorted(units.multiplicity.tolist()) == [1, 1, 1, 2]
    assert units.kind_of[1] == units.kind_of[2]
    assert len(set(units.kind_of.tolist())) == units.kinds == 4
