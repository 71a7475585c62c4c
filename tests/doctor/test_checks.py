"""The checks of one rank."""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dist_eval import demo
from dist_eval.distributed.rank_store import Topology
from dist_eval.doctor import checks, examination
from dist_eval.doctor.config import DoctorConfig
from dist_eval.doctor.findings import Fault

BACKENDS: dict[str, Any] = {
    "local": {"backend": "local"},
    "embedded": {"swarm": "embedded"},
    "public": {"swarm": "public"},
}


def config_of(where: str, **more: Any) -> DoctorConfig:
    model, checkpoint, dataset = map(str, (demo.BASE_MODEL, demo.CHECKPOINT, demo.TEST_DATA))
    return DoctorConfig(model=model, checkpoint=checkpoint, dataset=dataset, **BACKENDS[where], **more)


def test_a_model_in_this_process_needs_memory_for_its_weights() -> None:
    model = checks.read_model(config_of("local"))
    weights = checks.weight_bytes(model.base.config)
    size = (demo.BASE_MODEL / "model.safetensors").stat().st_size
    assert weights == pytest.approx(size, rel=0.05)
    needed = {where: checks.rank_bytes(config_of(where), Topology(), model) for where in BACKENDS}
    assert needed["local"] - weights < needed["public"] == needed["embedded"]
    assert checks.available_memory() > 0


def test_too_little_memory_is_an_error_and_hardly_enough_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    config, topology = config_of("embedded"), Topology(host="here")
    model = checks.read_model(config)
    said = checks.check_memory(config, topology, model)
    assert said.startswith("1 rank and the servers of --swarm embedded: about 1.8 GiB are needed, ")
    for ranks, available, level in ((1, 1 << 30, "error"), (1, int(1.9 * 2**30), "warning"), (9, 3 << 30, "error")):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", str(ranks))
        monkeypatch.setattr(checks, "available_memory", lambda available=available: available)
        with pytest.raises(Fault, match="are needed") as caught:
            checks.check_memory(config, topology, model)
        assert caught.value.level == level


def test_an_embedded_swarm_is_for_one_host(tmp_path: Path) -> None:
    config = config_of("embedded")
    base = checks.read_model(config).base
    assert checks.check_swarm(config, Topology(), base, tmp_path) == "the run starts its own on this host"
    with pytest.raises(Fault, match="servers that other hosts cannot reach"):
        checks.check_swarm(config, Topology(hosts=2, world_size=2), base, tmp_path)


def test_files_that_differ_in_size_or_anywhere_in_a_small_one_have_another_hash(tmp_path: Path) -> None:
    content = bytes(range(256)) * 1000
    contents = [content, content + b"x", content[:100_000] + b"\xff" + content[100_001:], content[:-1] + b"\0", b""]
    for number, text in enumerate(contents):
        (tmp_path / str(number)).write_bytes(text)
    assert len({checks.file_digest(tmp_path / str(number)) for number in range(len(contents))}) == len(contents)
    (tmp_path / "again").write_bytes(content)
    assert checks.file_digest(tmp_path / "again") == checks.file_digest(tmp_path / "0"), "the name does not count"


def test_a_large_file_is_not_read_as_a_whole(tmp_path: Path) -> None:
    large = tmp_path / "large"
    with large.open("wb") as file:
        file.truncate(1 << 40)  # takes no space; to read it would take many minutes
    assert checks.file_digest(large) != checks.file_digest(Path(__file__))


def test_the_limit_of_open_files_is_the_one_that_a_rank_can_have() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, hard), hard))
        assert checks.check_open_files(Topology()) == f"a rank may have {min(hard, 1 << 16)}"
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    with pytest.raises(Fault, match=r"a rank may have \d+ files open, and needs about 1000256"):
        checks.check_open_files(Topology(world_size=10**6))


RANK = """
import os
from dist_eval.distributed.rank_store import Topology
from dist_eval.doctor.checks import check_open_files
from dist_eval.process.files import allow_many_files
allow_many_files()
os.environ["TORCHELASTIC_RUN_ID"] = "x"
check_open_files(Topology(world_size=100, rank=1))
check_open_files(Topology(world_size=100))
"""


def test_the_limit_of_torchrun_counts_where_the_store_is() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:  # this process takes the place of torchrun
        resource.setrlimit(resource.RLIMIT_NOFILE, (500, before[1]))
        done = subprocess.run([sys.executable, "-c", RANK], capture_output=True, text=True)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert done.stderr.endswith("Fault: torchrun may have 500 files open, and needs about 556.\n")


def test_another_users_torchrun_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
    monkeypatch.setattr(resource, "prlimit", lambda *_: (_ for _ in ()).throw(PermissionError(1, "not permitted")))
    assert checks.check_open_files(Topology()).startswith("a rank may have")


def test_a_disk_that_is_nearly_full_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = checks.check_space(tmp_path / "not" / "yet")
    assert "GiB free for results" in said
    assert not (tmp_path / "not").exists()
    monkeypatch.setattr(checks, "_LEAST_FREE", 1 << 62)
    with pytest.raises(Fault, match=rf"MiB are free in {tmp_path}\."):
        checks.check_space(tmp_path)


def test_a_name_on_loopback_is_a_fault_unless_an_interface_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    topology = Topology(host="localhost", hosts=2)
    monkeypatch.setenv("MASTER_ADDR", "192.0.2.1")
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    with pytest.raises(Fault, match="own name leads to") as caught:
        checks.check_names(topology)
    assert "export GLOO_SOCKET_IFNAME=" in caught.value.advice and "--local-addr=" in caught.value.advice
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth7")
    checks.check_names(topology)
    monkeypatch.setenv("MASTER_ADDR", "localhost")
    with pytest.raises(Fault, match="MASTER_ADDR=localhost, leads to"):
        checks.check_names(topology)


def test_probes_are_seen_in_the_same_folder_alone_and_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examination, "_FOLDER_SECONDS", 0.2)
    with (
        examination.written_probe(tmp_path / "new" / "a") as mine,
        examination.written_probe(tmp_path / "elsewhere" / "b") as theirs,
    ):
        assert examination.unseen_probes(tmp_path / "new", {0: mine, 1: theirs}) == [1]
        assert examination.unseen_probes(tmp_path / "new", {0: mine}) == []
    assert list((tmp_path / "new").iterdir()) == []


@contextmanager
def held_by_another_process(path: Path) -> Iterator[None]:
    code = "import fcntl,sys;f=open(sys.argv[1],'w');fcntl.lockf(f,fcntl.LOCK_EX);print(flush=True);sys.stdin.read()"
    holder = subprocess.Popen([sys.executable, "-c", code, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert holder.stdout and holder.stdout.readline() == b"\n"
    yield
    holder.communicate()


def test_a_folder_that_a_run_uses_is_known_by_its_lock(tmp_path: Path) -> None:
    assert not examination.is_locked(tmp_path / "lock")
    with held_by_another_process(tmp_path / "lock"):
        assert examination.is_locked(tmp_path / "lock")
    assert not examination.is_locked(tmp_path / "lock")


def examination_in(folder: Path) -> examination.Examination:
    config = config_of("local", output=str(folder), check_timeout=0.5)
    return examination.Examination(config, Topology(), folder, folder / ".doctor-mine")


def test_another_group_that_checks_the_same_folder_is_an_error(tmp_path: Path) -> None:
    own = examination_in(tmp_path)
    (tmp_path / ".doctor-left-by-a-killed-one").touch()
    with examination.written_probe(own.probe) as mine:
        assert "can be written" in own.check_folder({0: mine})
        with held_by_another_process(tmp_path / ".doctor-other"), pytest.raises(Fault, match="Another group checks"):
            own.check_folder({0: mine})


def test_a_report_that_cannot_be_written_in_time_delays_no_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(examination, "write_report", lambda *_: time.sleep(60))
    own = examination_in(tmp_path)
    assert own.finish([own.report]) == 0
    assert "The findings could not be written: no answer within 0.5 s.\n" in capsys.readouterr().out


def test_a_rank_that_came_late_says_so(tmp_path: Path) -> None:
    with pytest.raises(Fault, match="came after rank 0 had stopped waiting"):
        examination_in(tmp_path).check_group({1: "there"})


@pytest.mark.parametrize("version", [1, 2])
def test_the_limit_of_a_control_group_counts(version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    controllers = ("memory", "")[version - 1]
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        if line.split(":")[1] == controllers:
            folder = tmp_path / controllers / line.split(":")[2].strip("/")
            folder.mkdir(parents=True, exist_ok=True)
            limit, used = checks._MEMORY_FILES[controllers]
            for name, content in {limit: "5000", used: "2000", "memory.stat": "inactive_file 500\n"}.items():
                (folder / name).write_text(content)
            monkeypatch.setattr(checks, "_CGROUP", tmp_path)
            assert checks.available_memory() == 3500
