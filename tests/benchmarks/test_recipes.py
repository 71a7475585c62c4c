"""The benchmark of recipes, small: the recipes are wrong in the way that is told of them, dist_eval is not."""

from __future__ import annotations

import json
from pathlib import Path

from conftest import Launcher

from benchmarks.recipes import OURS, ROUNDING
from benchmarks.recipes_rank import ORDERS, RECIPES


def test_every_recipe_is_measured_and_dist_eval_is_right(launcher: Launcher, tmp_path: Path) -> None:
    process = launcher.run("-m", "benchmarks.recipes", "--quick", "--output", str(tmp_path), preloaded=False)
    assert process.returncode == 0, process.stderr
    content = json.loads((tmp_path / "recipes.json").read_text())
    off = {(one["group"], one["name"]): one["median"] for one in content["series"]}
    assert set(off) == {(f"{order}, {n}", name) for order in ORDERS for n in ("1 rank", "3 ranks") for name in RECIPES}
    for (group, name), points in off.items():
        batches = name == "F1 of each batch, averaged"
        if name == OURS or (group.endswith("1 rank") and not batches):
            assert points <= ROUNDING, (group, name)
        elif batches or "cut" in name or "padding" in name:
            assert points > 0.01, (group, name)
    assert off["sorted by class, 3 ranks", "F1 of each rank, averaged"] > 0
    assert [one["met"] for one in content["comparisons"]] == [True]
    assert not launcher.leftovers()
