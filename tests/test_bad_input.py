"""Bad input of many kinds: what the program says, how it ends, and that nothing is lost."""

from __future__ import annotations

import json
import pickle
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from conftest import results_of
from pyarrow import parquet
from safetensors.torch import load_file, save_file

from dist_eval import demo
from dist_eval.__main__ import run
from dist_eval.arguments.commandline import parse_args
from dist_eval.errors import ConfigError
from dist_eval.options.config import EVALUATION

PEER = "/ip4/127.0.0.1/tcp/9/p2p/QmZmNRxpVSgwCUQ1ncBqnmjUUzotKCQj6JPvWEd2YpBd57"
ROWS = "12/3g,1\n45/ab,7\n"


class Scene:
    """A folder with what a run needs, of which a kind of bad input spoils something.

    Attributes:
        folder: holds everything.
        output: the run's folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.output = folder, folder / "out"

    def data(self, content: str | bytes | pa.Table | Any = "text,label\n" + ROWS, name: str = "data.csv") -> list[str]:
        """Writes a dataset and returns the options that name it."""
        path = self.folder / name
        if isinstance(content, pa.Table):
            parquet.write_table(content, path)
        elif isinstance(content, (str, bytes)):
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
        else:
            path.write_text("\n".join(json.dumps(row) for row in content))
        return ["--dataset", str(path)]

    def labels(self, *labels: Any) -> list[str]:
        """Writes a dataset with such labels."""
        return self.data([{"text": "12/3g", "label": label} for label in labels], "data.jsonl")

    def texts(self, *texts: Any) -> list[str]:
        """Writes a dataset with such texts."""
        return self.data([{"text": text, "label": 1} for text in texts], "data.jsonl")

    def checkpoint(self, change: Callable[[Path], None]) -> list[str]:
        """Spoils a copy of the checkpoint and returns the options that name it."""
        folder = shutil.copytree(demo.CHECKPOINT, self.folder / "tuned")
        change(folder)
        return [*self.data(), "--checkpoint", str(folder)]

    def prompt(self, *options: str, data: str = "text,label\n" + ROWS) -> list[str]:
        """Writes a dataset and returns the options of a run with a prompt in place of a checkpoint."""
        return [*self.data(data), "--checkpoint", "", "--label-delimiter", "", *options]

    def tensors(self, change: Callable[[dict[str, torch.Tensor]], None]) -> list[str]:
        """Spoils the tensors of a copy of the checkpoint."""

        def rewrite(folder: Path) -> None:
            tensors = load_file(folder / "model.safetensors")
            change(tensors)
            save_file(tensors, folder / "model.safetensors")

        return self.checkpoint(rewrite)

    def config(self, **changes: Any) -> list[str]:
        """Spoils the configuration of a copy of the checkpoint."""

        def rewrite(folder: Path) -> None:
            content = json.loads((folder / "config.json").read_text())
            (folder / "config.json").write_text(json.dumps({**content, **changes}))

        return self.checkpoint(rewrite)


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
    around: Callable[[Scene], Any] | None = None


@contextmanager
def in_use(scene: Scene) -> Iterator[None]:
    """Another process holds the output folder."""
    (scene.output / "journal").mkdir(parents=True)
    (scene.output / "journal" / "holder").write_text("process 1 on here")
    (scene.output / "results.json").write_text('{"status": "running"}')
    code = (
        "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.lockf(f, fcntl.LOCK_EX); print('locked', flush=True); "
        "sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(scene.output / "journal" / "lock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as holder:
        assert holder.stdout and holder.stdout.readline()
        yield
        holder.kill()
    assert json.loads((scene.output / "results.json").read_text()) == {"status": "running"}, (
        "it belongs to the other run"
    )


@contextmanager
def small_files(scene: Scene) -> Iterator[None]:
    """No file may grow beyond some bytes: as on a full disk, a write fails half-way."""
    limits, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (6000, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def truncated_parquet(scene: Scene) -> list[str]:
    options = scene.data(pa.table({"text": ["12"] * 500, "label": [1] * 500}), "data.parquet")
    truncate(Path(options[1]))
    return options


def pickled(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps({"score.weight": [1.0]}))


def occupied(scene: Scene) -> list[str]:
    scene.output.write_text("a file, not a folder")
    return scene.data()


SWARM = ["--backend", "petals"]
HUGE = "10 MB in one cell"
KINDS = (
    # files
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
    Kind("a header only", "has no rows: there is nothing to evaluate.", lambda s: s.data("text,label\n")),
    Kind("one row", "1 of 1 example, each exactly once", lambda s: s.data("text,label\n12,1\n"), 0),
    Kind("a truncated Parquet file", "cannot be read: Parquet magic bytes not found in footer", truncated_parquet),
    Kind(
        "a truncated JSON file", "is not valid JSON", lambda s: s.data('[{"text": "12", "label": 1}, {"te', "data.json")
    ),
    Kind(
        "a broken line in JSONL",
        "Missing a name for object member. in row 1",
        lambda s: s.data('{"text": "12", "label": 1}\n{oops\n', "data.jsonl"),
    ),
    Kind(
        "Latin-1 instead of UTF-8",
        "is not UTF-8 text (invalid continuation byte at byte 14). Convert it to UTF-8.",
        lambda s: s.data("text,label\ncaf\xe9,1\n".encode("latin-1")),
    ),
    Kind(
        "UTF-16",
        "is not UTF-8 text (invalid start byte at byte 0). Convert it to UTF-8.",
        lambda s: s.data("text,label\n12,1\n".encode("utf-16")),
    ),
    Kind(
        "a byte order mark",
        "2 of 2 examples, each exactly once",
        lambda s: s.data(b"\xef\xbb\xbftext,label\n" + ROWS.encode()),
        0,
    ),
    Kind(
        "Windows line ends",
        "2 of 2 examples, each exactly once",
        lambda s: s.data(b"text,label\r\n12,1\r\n34,2\r\n"),
        0,
    ),
    Kind(
        "NUL bytes",
        "row 0 (counted from 0): column 'text' contains a NUL byte",
        lambda s: s.data(b"text,label\n1\x002,1\n"),
    ),
    Kind("a column twice", "has the column 'text' more than once.", lambda s: s.data("text,text,label\n1,2,3\n")),
    Kind(
        "no text column",
        "has no column 'text'. It has: sentence, label. Name yours with --text-column",
        lambda s: s.data("sentence,label\n12,1\n"),
    ),
    Kind("no label column", "has no column 'label'. It has: text, class.", lambda s: s.data("text,class\n12,1\n")),
    Kind(
        "a row with more fields than the header",
        "Row #3: Expected 2 columns, got 3",
        lambda s: s.data("text,label\n12,1\n34,2,x\n"),
    ),
    Kind("quotes across lines", "1 text has several lines", lambda s: s.data('text,label\n"1\n2",1\n'), 0),
    Kind(
        "a quote that is never closed",
        "Row #3: Expected 2 columns, got 1",
        lambda s: s.data('text,label\n12,1\n"34,2\n56,3\n'),
    ),
    Kind(
        HUGE,
        "1 text cut to 496 tokens",
        lambda s: s.data("text,label\n12" + "\U0001f600" * 2_500_000 + ",1\n"),
        0,
    ),
    # labels
    Kind(
        "a label that is null",
        "row 1 (counted from 0): the label in column 'label' is missing (null).",
        lambda s: s.labels(1, None),
    ),
    Kind(
        "a label that is a fraction",
        "row 1 (counted from 0): the label in column 'label' is 1.5; labels are class numbers or names.",
        lambda s: s.labels(1, 1.5),
    ),
    Kind(
        "a label that is negative",
        "row 1 (counted from 0): the label in column 'label' is '-1', but the classes are",
        lambda s: s.labels(1, -1),
    ),
    Kind("a label beyond the head's classes", "is '10', but the classes are", lambda s: s.labels(1, 10)),
    Kind(
        "a name that the head does not know",
        "is 'eleven', but the classes are",
        lambda s: s.labels("1", "eleven"),
    ),
    Kind("labels true and false", "is 'True', but the classes are", lambda s: s.labels(True, False)),
    Kind(
        "labels of mixed types",
        "row 1 (counted from 0): column 'label' cannot be read (",
        lambda s: s.labels(1, "1"),
    ),
    # texts
    Kind(
        "a text that is null",
        "row 1 (counted from 0): the text in column 'text' is missing (null).",
        lambda s: s.texts("12", None),
    ),
    Kind("a text that is a number", "column 'text' holds int64, not text.", lambda s: s.texts(12, 34)),
    # columns to look at results by
    Kind(
        "no column of the name that --slice-by has",
        "has no column 'source'. It has: text, label.",
        lambda s: [*s.data(), "--slice-by", "source"],
    ),
    Kind(
        "a column of lists to slice by",
        "column 'tags' holds list<item: string>; --slice-by and --group-column accept",
        lambda s: [*s.data([{"text": "12", "label": 1, "tags": ["a"]}], "data.jsonl"), "--slice-by", "tags"],
    ),
    Kind(
        "a row without a group",
        "row 1 (counted from 0): the group in column 'doc' is missing.",
        lambda s: [*s.data("text,label,doc\n12,1,a\n34,2,\n"), "--group-column", "doc"],
    ),
    Kind("an empty text", "1 text has no token of its own", lambda s: s.texts("12", ""), 0),
    Kind("a text of blanks only", "1 text has no token that the tokenizer knows", lambda s: s.texts("12", "   "), 0),
    Kind("emoji", "1 of 1 example, each exactly once", lambda s: s.texts("12 \U0001f600"), 0),
    Kind(
        "only characters that the tokenizer does not know",
        "1 text has no token that the tokenizer knows",
        lambda s: s.texts("\u4e2d\u6587"),
        0,
    ),
    Kind("the text of a special token", "1 of 1 example, each exactly once", lambda s: s.texts("<s>12</s>"), 0),
    Kind(
        "a text that is too long, with --strict",
        "has 5001 tokens, more than --max-length 496. Raise it, or allow truncation",
        lambda s: [*s.texts("1" * 5000), "--strict"],
    ),
    # options
    Kind(
        "an unknown option",
        "There is no option --modle. Did you mean --model?",
        lambda s: [*s.data(), "--modle", "x"],
        2,
    ),
    Kind(
        "an unknown choice",
        "--on-error must be one of stop, skip, not 'skp'.",
        lambda s: [*s.data(), "--on-error", "skp"],
        2,
    ),
    Kind(
        "a number out of range",
        "--token-budget must be between 1 and 1024, not 5000.",
        lambda s: [*s.data(), "--token-budget", "5000"],
        2,
    ),
    Kind(
        "a word instead of a number",
        "--in-flight must be a whole number, not 'many'.",
        lambda s: [*s.data(), "--in-flight", "many"],
        2,
    ),
    Kind(
        "an option without its value",
        "--max-length: expected one argument.",
        lambda s: [*s.data(), "--max-length"],
        2,
    ),
    Kind(
        "a prompt and a checkpoint",
        "--checkpoint and --prompt cannot be combined",
        lambda s: [*s.data(), "--prompt", "{text}", "--label-words", "<0>", "<1>"],
        2,
    ),
    Kind(
        "a prompt without label words",
        "--prompt and --label-words must be given together",
        lambda s: s.prompt("--prompt", "{text}"),
        2,
    ),
    Kind(
        "a prompt without a column",
        "--prompt 'Review:' is not a template: it names no column, such as {text}",
        lambda s: s.prompt("--prompt", "Review:", "--label-words", "<0>", "<1>"),
        2,
    ),
    Kind(
        "a prompt with a column that is not there",
        "has no column 'review'. It has: text, label.",
        lambda s: s.prompt("--prompt", "{review}", "--label-words", "<0>", "<1>"),
    ),
    Kind(
        "a prompt that has the labels",
        "--prompt shows the model the labels: leave out the column 'label'.",
        lambda s: s.prompt("--prompt", "{text}{label}", "--label-words", "<0>", "<1>"),
        2,
    ),
    Kind(
        "label words that are the same tokens",
        "--label-words '<0>' and '<0>' are the same tokens. Choose other words.",
        lambda s: s.prompt("--prompt", "{text}", "--label-words", "a=<0>", "b=<0>"),
    ),
    Kind(
        "label words that start alike",
        "--label-words '1' and '12' start alike: the first is never less likely.",
        lambda s: s.prompt("--prompt", "{text}", "--label-words", "1", "12"),
    ),
    Kind(
        "examples from the dataset itself",
        "is also the evaluated dataset: draw examples from other data.",
        lambda s: s.prompt(
            *("--prompt", "{text}", "--label-words", "<0>", "<1>", "--few-shot", "1"),
            *("--few-shot-from", str(s.folder / "data.csv")),
        ),
        2,
    ),
    Kind(
        "two swarms",
        "--swarm embedded and --initial-peers cannot be combined",
        lambda s: [*s.data(), *SWARM, "--swarm", "embedded", "--initial-peers", PEER],
        2,
    ),
    Kind("no swarm", "No swarm was named. Give --initial-peers ADDRESS...", lambda s: [*s.data(), *SWARM], 2),
    Kind(
        "an address that is none",
        "'10.0.0.5:31337' is not a peer address. It should have the form",
        lambda s: [*s.data(), *SWARM, "--initial-peers", "10.0.0.5:31337"],
        2,
    ),
    Kind(
        "an audit without a swarm",
        "--backend local uses no servers for --audit to compare",
        lambda s: [*s.data(), "--audit", "0.1"],
        2,
    ),
    Kind(
        "one column as text and label",
        "--label-column and --text-column both name 'text'.",
        lambda s: [*s.data(), "--label-column", "text"],
        2,
    ),
    Kind("--demo and a dataset", "leave out --dataset, or leave out --demo.", lambda s: [*s.data(), "--demo"], 2),
    Kind(
        "no such --config file",
        "cannot be read (No such file or directory).",
        lambda s: [*s.data(), "--config", str(s.folder / "nothing.yaml")],
        2,
    ),
    Kind(
        "--max-length that leaves no room for prompts",
        "give --max-length of at most 496.",
        lambda s: [*s.data(), "--max-length", "4000"],
    ),
    # checkpoints and base models
    Kind("no such checkpoint", "does not exist.", lambda s: [*s.data(), "--checkpoint", str(s.folder / "nothing")]),
    Kind(
        "no config.json",
        "has no config.json.",
        lambda s: s.checkpoint(lambda folder: (folder / "config.json").unlink()),
    ),
    Kind(
        "truncated safetensors",
        "is damaged or not a safetensors file",
        lambda s: s.checkpoint(lambda folder: truncate(folder / "model.safetensors")),
    ),
    Kind("weights as a pickle", "is a pickle, which could run code and is not read.", lambda s: s.checkpoint(pickled)),
    Kind(
        "a head of another width",
        "score.weight has shape [10, 7], but config.json asks for [10, 96].",
        lambda s: s.tensors(lambda t: t.update({"score.weight": torch.zeros(10, 7)})),
    ),
    Kind(
        "a checkpoint without a head",
        "has no classification head: it lacks 'score.weight'.",
        lambda s: s.tensors(lambda t: [t.pop(n) for n in [*t] if "score" in n]),
    ),
    Kind(
        "weights that are not finite",
        "score.weight holds values that are not finite.",
        lambda s: s.tensors(lambda t: t["score.weight"].fill_(torch.nan)),
    ),
    Kind(
        "an unknown tuning_mode",
        "tuning_mode 'lora' is none of none, ptune, deep_ptune.",
        lambda s: s.config(tuning_mode="lora"),
    ),
    Kind(
        "a checkpoint of another family",
        "was tuned for a base model with model_type bloom",
        lambda s: s.config(model_type="bloom"),
    ),
    Kind(
        "a checkpoint of other weights",
        "was tuned on other weights",
        lambda s: s.config(base_model_fingerprint="0" * 64),
    ),
    Kind(
        "no such base model",
        "with a base model does not exist",
        lambda s: [*s.data(), "--model", str(s.folder / "nothing")],
    ),
    # swarms and folders
    Kind(
        "peers that do not answer",
        "None of the swarm's peers answered within 1 s (nothing listens there)",
        lambda s: [*s.data(), *SWARM, "--initial-peers", PEER, "--swarm-timeout", "1"],
    ),
    Kind("an output folder that is a file", "cannot be written: it is a file, not a folder.", occupied),
    Kind(
        "an output folder in use",
        "is in use by another run (process 1 on here). Choose another --output",
        Scene.data,
        around=in_use,
    ),
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


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, id=kind.name, marks=[pytest.mark.slow] if kind.name == HUGE else []) for kind in KINDS],
)
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
    before = contents(tmp_path)
    with kind.around(scene) if kind.around else nullcontext():
        status = end_of(options, scratch_dir)
    said = capfd.readouterr()
    assert status == kind.status, said.err
    assert kind.says in (said.err if status else said.out)
    assert "Traceback" not in said.err
    assert before.items() <= contents(tmp_path).items()
    if status == 2:
        assert not scene.output.exists()
    if status == 1:
        assert len(said.err.strip().splitlines()) == 1
    if status == 1 and kind.around is None and scene.output.is_dir():
        results = results_of(scene.output)
        assert results["status"] == "failed"
        assert kind.says in results["error"]["message"]


def test_the_kinds_are_many_and_different() -> None:
    assert len({kind.name for kind in KINDS}) == len(KINDS) >= 40
