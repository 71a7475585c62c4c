"""Revisions on a hub: one commit for all files of a run, also when it starts again; private ones by a token."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from shutil import copytree

import pytest
from conftest import results_of, run_here
from hub import COMMIT, Hub, _Handler

from dist_eval import demo, revisions
from dist_eval.errors import CheckpointError, DataError
from dist_eval.revisions import resolve_commit

MODEL = "org/digits"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub with the demo's base model, where only the revision v1 is: who asks for another one gets nothing."""
    files = copytree(demo.BASE_MODEL, tmp_path / "files")
    with Hub(MODEL, files, ("v1",)).serving_here(monkeypatch, tmp_path / "cache") as hub:
        monkeypatch.setattr(revisions, "_commits", {})
        yield hub


def test_a_revision_is_a_commit(hub: Hub) -> None:
    assert resolve_commit("model", MODEL, "v1") == COMMIT
    assert resolve_commit("model", "org/anything", COMMIT) == COMMIT
    with pytest.raises(CheckpointError, match="The model org/digits has no revision v2 on its hub"):
        resolve_commit("model", MODEL, "v2")
    with pytest.raises(
        CheckpointError, match=r"model org/private does not exist on its hub, or is private .* HF_TOKEN"
    ):
        resolve_commit("model", "org/private", "v1")


def test_without_a_hub_the_cache_says_which_commit_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(DataError, match=r"revision v1 of the dataset org/digits is.*Name the commit itself"):
        resolve_commit("dataset", MODEL, "v1")
    refs = tmp_path / "datasets--org--digits" / "refs"
    refs.mkdir(parents=True)
    (refs / "v1").write_text(COMMIT)
    assert resolve_commit("dataset", MODEL, "v1") == COMMIT


def test_a_run_and_its_restart_read_one_commit(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    token = "hf_of-nobody"
    monkeypatch.setenv("HF_TOKEN", token)
    output = tmp_path / "out"
    options = ["--model", MODEL, "--revision", "v1", "--checkpoint", str(demo.CHECKPOINT), "--backend", "local"]
    options += ["--dataset", str(demo.TEST_DATA), "--limit", "20", "--report", "none", "--output", str(output)]
    assert run_here("-m", "dist_eval", *options) == 0
    assert results_of(output)["revisions"] == {"model": COMMIT, "dataset": None}
    hub.revisions.remove("v1")  # it has moved: from here on the run's own record says what it was
    assert run_here("-m", "dist_eval", *options) == 0
    assert "already holds the complete results of this run" in capfd.readouterr().out
    assert run_here("-m", "dist_eval", *options, "--overwrite") == 1
    assert "has no revision v1" in capfd.readouterr().err
    other = [COMMIT[::-1] if word == "v1" else word for word in options]
    hub.revisions.add(COMMIT[::-1])
    assert run_here("-m", "dist_eval", *options[:2], "--revision", COMMIT, *options[4:], "--overwrite") == 0
    assert run_here("-m", "dist_eval", *other) == 1
    assert "it differs in the --revision" in capfd.readouterr().err
    assert not [path for path in output.rglob("*") if path.is_file() and token.encode() in path.read_bytes()]


class _DatasetHandler(_Handler):
    """Answers for a dataset as the hub does for a model."""

    def do_GET(self) -> None:
        self.path = self.path.replace("/api/datasets/", "/api/models/").replace("/datasets/", "/")
        if part := self.headers.get("Range"):  # always all of the file
            self.headers.replace_header("Range", part.rpartition("-")[0] + "-")
        super().do_GET()


def test_a_dataset_is_read_of_its_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "test.csv").write_text("text,label\n1 2,3\n")
    hub = Hub("org/rows", tmp_path, ())
    monkeypatch.setattr(hub, "RequestHandlerClass", _DatasetHandler)
    with hub.serving():
        read = f"""
from dist_eval.data.readers import open_rows
from dist_eval.revisions import pin

pin("dataset", "org/rows", "{COMMIT}")
print(*(batch.to_pylist() for batch in open_rows("org/rows", ["text", "label"], split="test").batches))
"""
        # the library reads these variables when it is imported
        where = {"HF_ENDPOINT": hub.endpoint, "HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "0"}
        done = subprocess.run(
            [sys.executable, "-c", read], env={**os.environ, **where}, capture_output=True, text=True, timeout=100
        )
    assert done.stdout == "[{'text': '1 2', 'label': 3}]\n", done.stderr


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--model", "MODEL", "--revision", "v1"], "not a name on a hub"),
        (["--revision", "v1"], "--revision v1 needs --model with a name on a hub."),
        (["--dataset-revision", "v1"], "--dataset-revision v1: FILE is not a name on a hub"),
    ],
)
def test_only_what_is_on_a_hub_has_revisions(options: list[str], words: str, tmp_path: Path) -> None:
    from dist_eval.arguments.commandline import parse_args
    from dist_eval.errors import ConfigError
    from dist_eval.options.config import EVALUATION

    places = {"MODEL": str(demo.BASE_MODEL), "FILE": str(demo.TEST_DATA)}
    data = ["--checkpoint", str(demo.CHECKPOINT), "--dataset", str(demo.TEST_DATA), "--backend", "local"]
    with pytest.raises(ConfigError) as caught:
        parse_args([places.get(word, word) for word in options] + data, EVALUATION)
    for place, path in places.items():
        words = words.replace(place, path)
    assert words in str(caught.value)
