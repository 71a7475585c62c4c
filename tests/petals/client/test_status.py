"""The status of a swarm."""

from __future__ import annotations

import time

import pytest

from dist_eval.errors import SwarmError
from dist_eval.petals.client.coverage import SwarmCoverage
from dist_eval.petals.client.status import look_up_all


def test_many_announced_models_do_not_take_longer_than_the_timeout() -> None:
    def look_up(name: str, blocks: int, timeout: float) -> SwarmCoverage:
        if name == "slow":
            time.sleep(min(timeout, 60.0))
        if name == "slow" or timeout < 0.2:
            raise SwarmError("no answer")
        return SwarmCoverage(name, blocks, ())

    found, unknown = look_up_all(look_up, {"base": 4, "slow": 1000, "then": 4}, timeout=0.5)
    assert ([coverage.dht_prefix for coverage in found], unknown) == (["base"], ["slow", "then"])
    with pytest.raises(SwarmError, match="no answer"):
        look_up_all(look_up, {"slow": 1000, "very slow": 1000}, timeout=0.1)
