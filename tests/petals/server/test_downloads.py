"""Models on a hub: a server downloads the files that hold its blocks, and no others."""

from __future__ import annotations

import re
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import Launcher, wait_for
from hub import COMMIT, Hub
from tiny_models import LAYERS, make_tiny_model
from transformers import AutoConfig

from dist_eval.errors import CheckpointError
from dist_eval.petals.__main__ import main
from dist_eval.petals.base_model.architecture import Architecture
from dist_eval.petals.base_model.weights import ModelWeights
from dist_eval.petals.server.downloads import download_blocks

MODEL = "org/sharded"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sharded")
    make_tiny_model("mixtral").save_pretrained(folder, max_shard_size="150KB")
    return folder


@pytest.fixture
def hub(files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with Hub(MODEL, files, ("main", "v1")).serving_here(monkeypatch, tmp_path / "cache") as hub:
        yield hub


def files_of(folder: Path, *blocks: int) -> set[str]:
    """The files with weights of blocks, by the names of transformers' modules."""
    architecture = Architecture(AutoConfig.from_pretrained(folder))
    weights = ModelWeights(str(folder), architecture)
    return {file for block in blocks for file in weights.files(f"layers.{block}.")}


def test_files_of_blocks_are_downloaded_once_and_for_one_commit(hub: Hub, files: Path) -> None:
    said: list[str] = []
    assert download_blocks(MODEL, "v1", [1], said.append) == COMMIT
    wanted, all_files = files_of(files, 1), files_of(files, *range(LAYERS))
    assert {name for name, _ in hub.downloaded} == {"config.json", "model.safetensors.index.json", *wanted}
    assert 1 < len(wanted) < len(all_files) - 1
    assert said == [f"downloading {len(wanted)} files of {MODEL} ({COMMIT[:12]}), {said[0].rpartition(', ')[2]}"]
    hub.downloaded.clear()
    assert download_blocks(MODEL, COMMIT, [1, 2], said.append) == COMMIT
    assert {name for name, _ in hub.downloaded} == files_of(files, 2) - wanted
    hub.downloaded.clear()
    assert download_blocks(MODEL, "v1", [2, 1], said.append) == COMMIT
    assert hub.downloaded == [] and len(said) == 2


def test_a_download_goes_on_after_a_broken_connection(
    hub: Hub, files: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 1 << 10)
    file = max(files_of(files, 3), key=lambda name: (files / name).stat().st_size)
    hub.breaks.add(file)
    commit = download_blocks(MODEL, None, [3], lambda _: None)
    first, second = (offset for name, offset in hub.downloaded if name == file)
    assert first == 0 < second <= (files / file).stat().st_size // 2
    assert capfd.readouterr() == ("", "")
    weights = ModelWeights(MODEL, Architecture(AutoConfig.from_pretrained(files)), commit)
    assert weights.tensors("layers.3.")


def test_a_file_that_the_index_names_and_nobody_has_is_missing(hub: Hub, files: Path, tmp_path: Path) -> None:
    hub.folder = shutil.copytree(files, tmp_path / "files")
    lost = min(files_of(files, 0))
    (hub.folder / lost).unlink()
    with pytest.raises(CheckpointError, match=f"The model {MODEL} lacks {lost}, which its"):
        download_blocks(MODEL, None, [0], lambda _: None)


@pytest.mark.parametrize(
    ("model", "revision", "why"), [(MODEL, "v2", "Revision Not"), ("org/none", None, "Repository")]
)
def test_what_the_hub_does_not_have_is_named(model: str, revision: str | None, why: str, hub: Hub) -> None:
    with pytest.raises(CheckpointError, match=rf"The model {model} cannot be downloaded: .*{why}"):
        download_blocks(model, revision, [0])


@pytest.mark.slow
def test_a_server_serves_a_revision_of_a_hub(
    launcher: Launcher, files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["identities", "--servers", "1", "--address", "/ip4/127.0.0.1/tcp/{}", "--folder", str(tmp_path / "keys")]
    assert main(words) == 0
    with Hub(MODEL, files, ("main", "v1")).serving() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
        command = ["serve", "--model", MODEL, "--revision", "v1", "--blocks", "0:1", "1:4", "--torch-dtype", "bfloat16"]
        where = ["--host", "127.0.0.1", "--port", "31337", "--identity", str(tmp_path / "keys" / "swarm-0.key")]
        log = tmp_path / "log"
        with log.open("w") as out:
            server = launcher.start("-m", "dist_eval.petals", *command, *where, stdout=out)
        assert wait_for(lambda: "loaded" in log.read_text() or server.poll() is not None)
        server.send_signal(signal.SIGTERM)
        assert (server.wait(), server.communicate()[1]) == (0, "")
    said = log.read_text()
    assert re.search(r"^downloading \d files of org/sharded \(0123456789ab\), 0\.\d MiB\nstarting blocks 0:1 of ", said)
    assert re.search(r"\nloaded blocks 0:1 in bfloat16: .* \(estimated: 0\.2 MiB\); sessions may take up to ", said)
    downloaded = {name for name, _ in hub.downloaded if name.endswith(".safetensors")}
    assert downloaded == files_of(files, 0)
    assert not launcher.leftovers()
