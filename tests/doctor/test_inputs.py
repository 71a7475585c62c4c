"""Facts about a run's inputs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dist_eval import demo
from dist_eval.doctor.config import DoctorConfig
from dist_eval.doctor.facts import RankFacts
from dist_eval.doctor.inputs import collect_needs, file_digest
from dist_eval.model.base_model_spec import BaseModelSpec, read_target

BACKENDS = {"local": {"backend": "local"}, "embedded": {"swarm": "embedded"}}


@pytest.mark.parametrize("where", BACKENDS)
def test_a_model_of_a_hub_needs_the_memory_that_the_same_one_in_a_folder_needs(where: str) -> None:
    config = DoctorConfig(
        model=str(demo.BASE_MODEL), checkpoint=str(demo.CHECKPOINT), dataset=str(demo.TEST_DATA), **BACKENDS[where]
    )
    tuned = read_target(config.checkpoint, config.model)
    stored = BaseModelSpec.of(config, tuned)
    needs = []
    for base in (stored, replace(stored, name="someone/model")):
        facts = RankFacts()
        collect_needs(facts, config, base, tuned)
        needs.append((facts.memory_needed or 0) + (facts.servers_needed or 0))
    assert needs[0] == needs[1]
    without = RankFacts()
    collect_needs(without, replace(config, backend="petals", swarm="public"), stored, tuned)
    assert needs[1] > (without.memory_needed or 0), "its weights count"


def test_files_that_differ_in_size_or_anywhere_in_a_small_one_have_another_hash(tmp_path: Path) -> None:
    content = bytes(range(256)) * 1000
    contents = [content, content + b"x", content[:100_000] + b"\xff" + content[100_001:], content[:-1] + b"\0", b""]
    assert len({len(content), len(contents[2]), len(contents[3])}) == 1
    digests = []
    for number, one in enumerate(contents):
        (tmp_path / str(number)).write_bytes(one)
        digests.append(file_digest(tmp_path / str(number)))
    assert len(set(digests)) == len(contents)
    (tmp_path / "again").write_bytes(content)
    assert file_digest(tmp_path / "again") == digests[0], "the name does not count"


def test_a_large_file_is_not_read_as_a_whole(tmp_path: Path) -> None:
    large = tmp_path / "large"
    with large.open("wb") as file:
        file.truncate(1 << 40)  # takes no space; to read it would take many minutes
    assert file_digest(large) != file_digest(Path(__file__))
