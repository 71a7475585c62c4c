"""The checks of one rank."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dist_eval import demo
from dist_eval.arguments.commandline import parse_args
from dist_eval.distributed.rank_store import Topology
from dist_eval.doctor import checks, examination
from dist_eval.doctor.config import DOCTOR, DoctorConfig
from dist_eval.doctor.findings import Fault
from dist_eval.errors import ConfigError, DataError

BACKENDS: dict[str, Any] = {
    "local": {"backend": "local"},
    "embedded": {"swarm": "embedded"},
    "public": {"swarm": "public"},
}


def config_of(where: str, **more: Any) -> DoctorConfig:
    model, checkpoint, dataset = map(str, (demo.BASE_MODEL, demo.CHECKPOINT, demo.TEST_DATA))
    return DoctorConfig(model=model, checkpoint=checkpoint, dataset=dataset, **BACKENDS[where], **more)


def test_an_embedded_swarm_is_for_one_host(tmp_path: Path) -> None:
    config = config_of("embedded")
    base = checks.read_model(config).base
    assert checks.check_swarm(config, Topology(), base, tmp_path) == "the run starts its own swarm on this host"
    with pytest.raises(Fault, match="servers that other hosts cannot reach"):
        checks.check_swarm(config, Topology(hosts=2, world_size=2), base, tmp_path)


def test_generation_has_its_examples_opened_as_a_run_does(tmp_path: Path) -> None:
    rows = tmp_path / "rows.csv"
    rows.write_text("text,label\n12,1\n")
    shared = ["--model", str(demo.BASE_MODEL), "--prompt", "{text}", "--generate", "--dataset", str(demo.TEST_DATA)]
    shared += ["--backend", "local", "--few-shot-from", str(rows), "--few-shot"]
    checks.read_model(parse_args([*shared, "1"], DOCTOR))
    with pytest.raises(DataError, match=r"rows\.csv"):
        checks.read_model(parse_args([*shared, "2"], DOCTOR))


@pytest.mark.parametrize("task", [[], ["--prompt", "{text}", "--generate"]], ids=["labels", "references"])
def test_texts_and_labels_of_all_rows_are_read(task: list[str], tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    command = ["--dataset", str(rows), "--backend", "local", "--model", str(demo.BASE_MODEL), *task]
    command += [] if task else ["--checkpoint", str(demo.CHECKPOINT)]

    def check(*labels: int | None, seconds: float = 60.0, options: Sequence[str] = ()) -> str:
        content = "".join(json.dumps({"text": "12 3", "label": label}) + "\n" for label in labels)
        rows.write_text(content or "[]")
        config = parse_args([*command, *options], DOCTOR)
        return checks.check_rows(config, checks.read_model(config), seconds)

    assert check(*[1] * 5) == "all 5 rows have usable texts and labels"
    with pytest.raises(DataError, match=r"rows\.jsonl, row 2 \(counted from 0\)"):
        check(1, 1, None)
    with pytest.raises(DataError, match=r"rows\.jsonl has no rows"):
        check()
    assert check(1, None, options=["--limit", "1"]).startswith("not read")
    assert re.fullmatch(r"the first \d+ rows have usable texts and labels", check(*[1] * 5000, seconds=0.0))


def test_files_that_differ_in_size_or_anywhere_in_a_small_one_have_another_hash(tmp_path: Path) -> None:
    content = bytes(range(256)) * 1000
    contents = [content, content + b"x", content[:100_000] + b"\xff" + content[100_001:], content[:-1] + b"\0", b""]
    for number, text in enumerate(contents):
        (tmp_path / str(number)).write_bytes(text)
    assert len({checks.sample_digest(tmp_path / str(number)) for number in range(len(contents))}) == len(contents)
    (tmp_path / "again").write_bytes(content)
    assert checks.sample_digest(tmp_path / "again") == checks.sample_digest(tmp_path / "0"), "the name does not count"


def test_a_large_file_is_not_read_as_a_whole(tmp_path: Path) -> None:
    large = tmp_path / "large"
    with large.open("wb") as file:
        file.truncate(1 << 40)  # takes no space; to read it would take many minutes
    assert checks.sample_digest(large) != checks.sample_digest(Path(__file__))


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
    with pytest.raises(Fault, match="own name resolves to") as caught:
        checks.check_names(topology)
    assert "export GLOO_SOCKET_IFNAME=" in caught.value.advice and "--local-addr=" in caught.value.advice
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth7")
    checks.check_names(topology)
    monkeypatch.setenv("MASTER_ADDR", "localhost")
    with pytest.raises(Fault, match="MASTER_ADDR=localhost, resolves to"):
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


@pytest.mark.parametrize(
    ("options", "said"),
    [({"metric": ["no_such_module:f"]}, "no_such_module"), ({"tracker": ["wandb"]}, "needs the package wandb")],
)
def test_what_would_end_the_run_at_its_start_is_found(
    options: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("accelerate.tracking.get_available_trackers", list)
    with pytest.raises(ConfigError, match=said):
        checks.read_model(config_of("local", **options))
