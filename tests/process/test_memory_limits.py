"""The memory of a process in a container or batch job ends at the limit of its control group."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from dist_eval.process import memory_limits
from dist_eval.process.memory_limits import available_memory, total_memory

MIB = 1 << 20
UNLIMITED_V1 = "9223372036854771712"


def write_group(folder: Path, version: int, limit: str, used: int, reclaimed: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    names = ("memory.max", "memory.current") if version == 2 else ("memory.limit_in_bytes", "memory.usage_in_bytes")
    (folder / names[0]).write_text(f"{limit}\n")
    (folder / names[1]).write_text(f"{used}\n")
    total = "" if version == 2 else f"total_inactive_file {reclaimed}\n"
    (folder / "memory.stat").write_text(f"anon 5\ninactive_file {reclaimed if version == 2 else 7}\n{total}")


@pytest.fixture
def mount(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(memory_limits, "_MOUNT", tmp_path / "cgroup")
    monkeypatch.setattr(memory_limits, "_MEMBERSHIP", tmp_path / "membership")
    return tmp_path / "cgroup"


@pytest.mark.parametrize("is_nested", [True, False])
@pytest.mark.parametrize("version", [1, 2])
def test_the_narrowest_limit_above_a_process_counts(version: int, is_nested: bool, mount: Path) -> None:
    lines = "5:cpu:/\n4:memory:/job/step\n0::/job/step\n" if version == 1 else "0::/job/step\n"
    (mount.parent / "membership").write_text(lines)
    root = mount / "memory" if version == 1 else mount
    write_group(root / "job", version, str(64 * MIB), used=40 * MIB, reclaimed=10 * MIB)
    if is_nested:  # in a container, the group's own folder may be missing: the mount is that of the container
        write_group(root / "job" / "step", version, UNLIMITED_V1 if version == 1 else "max", 30 * MIB, 0)
    assert (total_memory(), available_memory()) == (64 * MIB, 34 * MIB)


def test_without_limits_it_is_the_hosts_memory(mount: Path) -> None:
    for text in (None, "0::/\n"):
        if text:
            (mount.parent / "membership").write_text(text)
        assert total_memory() == psutil.virtual_memory().total
        assert available_memory() == pytest.approx(psutil.virtual_memory().available, rel=0.5)


def test_a_group_over_its_limit_has_nothing_left(mount: Path) -> None:
    (mount.parent / "membership").write_text("0::/\n")
    write_group(mount, 2, str(MIB), used=2 * MIB, reclaimed=0)
    assert available_memory() == 0
