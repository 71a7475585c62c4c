"""Facts about this host."""

from __future__ import annotations

import resource
import subprocess
import sys

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


RANK = """
import sys
from dist_eval.doctor.facts import RankFacts
from dist_eval.doctor.host import collect_host
from dist_eval.process.files import allow_many_files
allow_many_files()
facts = RankFacts(rank=int(sys.argv[1]), host="localhost")
collect_host(facts, {"TORCHELASTIC_RUN_ID": "x"})
print(facts.launcher_files)
"""


def test_the_limit_of_torchrun_is_recorded_where_the_store_is() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    low = min(300, before[1])
    try:  # this process takes the place of torchrun
        resource.setrlimit(resource.RLIMIT_NOFILE, (low, before[1]))
        told = [subprocess.check_output([sys.executable, "-c", RANK, rank], text=True).strip() for rank in ("0", "1")]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert told == [str(low), "None"]
