"""Bad input, by where it is found: what the program says, how it ends, and that nothing is lost."""

from __future__ import annotations

import json
import pickle
import resource
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from conftest import results_of
from samples import DEAD_PEER, files_below

from dist_eval import demo
from dist_eval.__main__ import run
from dist_eval.arguments.commandline import parse_args
from dist_eval.errors import ConfigError
from dist_eval.options.config import EVALUATION

ROWS = "12/3g,1\n45/ab,7\n"


class Scene:
    """A folder with what a run needs, of which a kind of bad input spoils something.

    Attributes:
        folder: holds everything.
        output: the run's folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.output = folder, folder / "out"

    def data(self, content: str | bytes = "text,label\n" + ROWS, name: str = "data.csv") -> list[str]:
        """Writes a dataset and returns the options that name it."""
        path = self.folder / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return ["--dataset", str(path)]


@dataclass(frozen=True)
class Kind:
    """A kind of input.

    Attributes:
        name: describes it, and names the test.
        says: a part of the message; of the printed result where the input is accepted.
        make: spoils a scene and returns options.
        status: exit status.
        around: entered for the time of the run.
    """

    name: str
    says: str
    make: Callable[[Scene], list[str]]
    status: int = 1
    around: Callable[[], Any] = nullcontext


@contextmanager
def small_files() -> Iterator[None]:
    """No file may grow beyond some bytes: as on a full disk, a write fails half-way."""
    limits, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (6000, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)


def tuned_on_other_weights(scene: Scene) -> list[str]:
    folder = shutil.copytree(demo.CHECKPOINT, scene.folder / "tuned")
    content = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**content, "base_model_fingerprint": "0" * 64}))
    return [*scene.data(), "--checkpoint", str(folder)]


def occupied(scene: Scene) -> list[str]:
    scene.output.write_text("a file, not a folder")
    return scene.data()


SWARM = ["--backend", "petals", "--initial-peers", DEAD_PEER, "--swarm-timeout", "1"]
KINDS = (
    # data
    Kind("no such file", "There is no file", lambda s: ["--dataset", str(s.folder / "nothing.csv")]),
    Kind(
        "a folder that is no dataset",
        "contains model.safetensors, which is not data: name the files you want",
        lambda s: ["--dataset", str(demo.CHECKPOINT)],
    ),
    Kind(
        "a file of no known kind",
        "unknown file format. Supported are .csv, .tsv, .json, .jsonl and .parquet.",
        lambda s: s.data("12", "data.xyz"),
    ),
    Kind("a pickle", "unknown file format", lambda s: s.data(pickle.dumps([1, 2]), "data.pkl")),
    Kind("an empty file", "is empty", lambda s: s.data("")),
    Kind("one row", "1 of 1 example, each exactly once", lambda s: s.data("text,label\n12,1\n"), 0),
    Kind(
        "a byte order mark",
        "2 of 2 examples, each exactly once",
        lambda s: s.data(b"\xef\xbb\xbftext,label\n" + ROWS.encode()),
        0,
    ),
    Kind(
        "a quote that is never closed",
        "line 3: a field begins with a quote that is",
        lambda s: s.data('text,label\n12,1\n"34,2\n56,3\n'),
    ),
    Kind(
        "no column of the name that --slice-by has",
        "has no column 'source'. It has: text, label.",
        lambda s: [*s.data(), "--slice-by", "source"],
    ),
    # options
    Kind(
        "an unknown option",
        "There is no option --modle. Did you mean --model?",
        lambda s: [*s.data(), "--modle", "x"],
        2,
    ),
    Kind(
        "--max-length that leaves no room for prompts",
        "--max-length 4000 and 16 prompt tokens are more than the 512 tokens that the base model has positions for: "
        "give --max-length of at most 496.",
        lambda s: [*s.data(), "--max-length", "4000"],
    ),
    # checkpoints and base models
    Kind("no such checkpoint", "does not exist.", lambda s: [*s.data(), "--checkpoint", str(s.folder / "nothing")]),
    Kind("a checkpoint of other weights", "was tuned on other weights", tuned_on_other_weights),
    Kind(
        "no such base model",
        "with a base model does not exist",
        lambda s: [*s.data(), "--model", str(s.folder / "nothing")],
    ),
    # swarms and folders
    Kind(
        "peers that do not answer",
        "None of the swarm's peers answered within 1 s (nothing listens there)",
        lambda s: [*s.data(), *SWARM],
    ),
    Kind("an output folder that is a file", "cannot be written: it is a file, not a folder.", occupied),
    Kind(
        "a full disk",
        "File too large. Nothing was lost",
        lambda s: s.data("text,label\n" + "12,1\n" * 3000),
        around=small_files,
    ),
)


def end_of(options: list[str], scratch_dir: Path) -> int:
    """Does what the program does, in this process."""
    try:
        config = parse_args(options, EVALUATION)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    return run(config, scratch_dir)


@pytest.mark.parametrize("kind", KINDS, ids=[kind.name for kind in KINDS])
def test_it_is_told_in_one_clear_message_and_nothing_is_lost(
    kind: Kind, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    scratch_dir, scene = tmp_path / "own", Scene(tmp_path)
    scratch_dir.mkdir()
    given = kind.make(scene)
    defaults = {
        "--model": str(demo.BASE_MODEL),
        "--checkpoint": str(demo.CHECKPOINT),
        "--backend": "local",
        "--output": str(scene.output),
    }
    options = [*given, *(word for name, value in defaults.items() if name not in given for word in (name, value))]
    before = files_below(tmp_path)
    with kind.around():
        status = end_of(options, scratch_dir)
    said = capfd.readouterr()
    assert status == kind.status, said.err
    assert kind.says in (said.err if status else said.out)
    assert "Traceback" not in said.err
    assert before.items() <= files_below(tmp_path).items()
    if status == 2:
        assert not scene.output.exists()
    if status == 1:
        assert len(said.err.strip().splitlines()) == 1
    if status == 1 and kind.around is nullcontext and scene.output.is_dir():
        results = results_of(scene.output)
        assert results["status"] == "failed"
        assert kind.says in results["error"]["message"]
