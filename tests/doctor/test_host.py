"""Facts about this host."""

from __future__ import annotations

import resource

from dist_eval.doctor.facts import RankFacts
from dist_eval.doctor.host import collect_host


def test_open_files_are_those_that_a_rank_will_have_not_those_that_it_starts_with() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    facts = RankFacts(host="localhost")
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, before[1]), before[1]))
        collect_host(facts, {})
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert facts.open_files == min(before[1], 1 << 16)
    assert facts.launcher_files is None


def test_the_limit_of_torchrun_is_told_where_the_ranks_store_is() -> None:
    # the parent of this process takes the place of torchrun
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    for rank, known in ((0, limit), (1, None)):
        facts = RankFacts(rank=rank, host="localhost")
        collect_host(facts, {"TORCHELASTIC_RUN_ID": "x"})
        assert facts.launcher_files == known
