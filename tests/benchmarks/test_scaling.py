"""The benchmark of further ranks, small: ranks are compared, and nothing is left behind."""

from __future__ import annotations

import json
import re
from pathlib import Path

from conftest import Launcher

ONE_EACH = "Llama 64x4, 100 ms round trip, 1 request in flight for each rank"


def test_ranks_are_compared(launcher: Launcher, tmp_path: Path) -> None:
    process = launcher.run("-m", "benchmarks.scaling", "--quick", "--output", str(tmp_path), preloaded=False)
    assert process.returncode == 0, process.stderr
    content = json.loads((tmp_path / "scaling.json").read_text())
    details = {(one["group"], one["name"]): one["details"][0] for one in content["series"]}
    names = ("dist_eval, 1 rank", "dist_eval, 2 ranks")
    assert set(details) == {(ONE_EACH, name) for name in names}
    assert all(one["equal_predictions"] == 1.0 for one in details.values())
    batches = next(int(found[1]) for note in content["notes"] if (found := re.search(r"sent (\d+) batches", note)))
    assert details[ONE_EACH, names[0]]["seconds"] > batches * 0.2, "two servers at 100 ms each, one batch at a time"
    assert [one["claim"] for one in content["comparisons"]] == ["1 request in flight for each rank: 2 ranks / 1 rank"]
    assert (tmp_path / "scaling.png").stat().st_size > 0
    assert not launcher.leftovers()
