"""`python -m benchmarks.estimates`: how far the expected time of a run is from the time that it takes.

`dist-eval plan` estimates it before the run, and the run's own display all the time. The swarms are of different speed:
their servers wait instead of computing (see `waiting_server.py`), and a proxy gives the way a delay.
"""

from __future__ import annotations

import argparse
import fcntl
import itertools
import json
import os
import pty
import re
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import harness
from benchmarks.contenders import LOG, Contender, ContenderError, Stage, run_process
from benchmarks.hosting import distant_swarm_of
from benchmarks.models import PROMPT_TOKENS, make_model, train_tokenizer
from benchmarks.pipeline import BASE, Shape
from benchmarks.program import run_program
from benchmarks.text import Corpus, make_corpus
from benchmarks.waiting_server import set_speeds
from dist_eval.options.groups import MAX_TOKEN_BUDGET
from dist_eval.process.lifetime import end_session

QUESTION = "How far is the expected time of a run from the time that it takes?"
RANKS, SECONDS = (1, 3), 100.0
BEFORE, WHOLE, RUNNING = "forwards, before the run", "whole command, before the run", "the rest, after a tenth"
_BARS = {BEFORE: 0.25, WHOLE: 0.25, RUNNING: 0.15}
_SENTENCES = 12
"""Most sentences in a text, so that texts have very different lengths."""

_TIMEOUT = 1800.0
_COLUMNS = 120
_BAR = re.compile(r"\| (\d+)/(\d+) \[[\d:]+<([\d:]+), ")


@dataclass(frozen=True)
class Pace:
    """A swarm of a certain speed.

    Attributes:
        shape: its pipeline.
        milliseconds: round trip of a request to any server.
    """

    shape: Shape
    milliseconds: int = 0

    @property
    def slowest(self) -> float:
        """Seconds between two full batches."""
        return max(1 / sum(1 / seconds for seconds in replicas) for replicas in self.shape.stages)


PACES = (
    Pace(Shape("fast", ((0.05,), (0.05,)))),
    Pace(Shape("slow", ((0.5,), (0.5,)))),
    Pace(Shape("100 ms away", ((0.1,), (0.1,))), 100),
    Pace(Shape("unequal stages", ((0.07,), (0.07,), (0.2,), (0.07,)))),
)


@dataclass(frozen=True)
class Watched:
    """A run that was watched on a terminal.

    Attributes:
        wall: seconds of the whole command.
        shown: what the display said: the moment in seconds since the command was started, whether all examples were
            done, and the seconds left.
        facts: content of `results.json`.
    """

    wall: float
    shown: list[tuple[float, bool, float]]
    facts: dict[str, Any]

    def after_a_tenth(self) -> tuple[float, float]:
        """Returns the seconds left that were shown after a tenth of the forwards' time, and those that were left.

        Raises:
            ContenderError: the display said nothing of the kind.
        """
        forwards = self.facts["throughput"]["seconds"]
        end = next((moment for moment, complete, _ in self.shown if complete), 0.0)
        for moment, _, left in self.shown:
            if end - 0.9 * forwards <= moment < end:
                return left, end - moment
        raise ContenderError("The display named no time that is left.")


def measure(options: argparse.Namespace, scratch_dir: Path) -> None:
    """Measures all cells.

    Args:
        options: the command line.
        scratch_dir: folder for temporary files.
    """
    if options.quick:
        options.swarms, options.ranks, options.seconds = [PACES[0].shape.name], [1], 10.0
    report = harness.Report("estimates", QUESTION, unit="estimate / what came", options=options)
    sentences = make_corpus(2000).sentences
    model, tokenizer = make_model(scratch_dir, BASE, sentences), train_tokenizer(sentences)
    chosen = [pace for pace in PACES if pace.shape.name in options.swarms]
    for spans, paces in itertools.groupby(chosen, key=lambda pace: pace.shape.spans):
        file, members = scratch_dir / "speeds.json", list(paces)
        set_speeds(file, members[0].shape.speeds())
        program = ("-m", "benchmarks.waiting_server", str(file))
        with distant_swarm_of(model, scratch_dir, spans=spans, program=program) as (swarm, proxy):
            for pace, _ in itertools.product(members, range(options.rounds)):
                set_speeds(file, pace.shape.speeds())
                proxy.set_round_trip(pace.milliseconds / 1000)
                corpus = make_texts(sentences, tokenizer, round(options.seconds / pace.slowest))
                stage = Stage(model, corpus, swarm.initial_peers, scratch_dir)
                for ranks in options.ranks:
                    _measure_cell(report, pace, stage, ranks)
    for (group, name), series in report.series.items():
        errors = [abs(value - 1) for value in series.values]
        report.bound(f"{group}: error of the time of {name}", errors, _BARS[name])
    report.finish()


def _measure_cell(report: harness.Report, pace: Pace, stage: Stage, ranks: int) -> None:
    folder, model = Path(tempfile.mkdtemp(dir=stage.folder)), stage.model
    arguments = ["--model", model.base, "--checkpoint", model.tuned, "--text-column", "sentence"]
    arguments += ["--session-share", "0"]  # servers wait in forwards only
    arguments += ["--dataset", stage.corpus.write_csv(folder / "rows.csv"), "--initial-peers", *stage.peers]
    words = ["--nproc-per-node", str(ranks), *map(str, arguments)]
    run_process(Contender("dist-eval plan", "dist_eval"), folder, "-m", "dist_eval.cli.main", "plan", "--json", *words)
    log = (folder / LOG).read_text(encoding="utf-8")
    expected = json.loads(log[log.index("{") :])["time"]
    found = run_on_terminal(["run", *words, "--output", str(folder / "out")], folder)
    came = found.facts["throughput"]["seconds"]
    left, rest = found.after_a_tenth()
    group = f"{pace.shape.name}, {ranks} rank{'s' * (ranks > 1)}"
    limits = {"low": expected["low"], "high": expected["high"]}
    for name, estimate, truth, more in (
        (BEFORE, expected["seconds"], came, {**limits, "probe": expected["probe_seconds"]}),
        (WHOLE, expected["start_up"] + expected["seconds"], found.wall, {}),
        (RUNNING, left, rest, {"shown": found.shown}),
    ):
        report.add(group, name, estimate / truth, {"estimate": estimate, "came": truth, **more})
    inside = limits["low"] is not None and limits["low"] <= came <= limits["high"]
    report.note(
        f"{group}: {expected['seconds']:.1f} s expected after a probe of {expected['probe_seconds']:.1f} s, "
        f"{came:.1f} s came, {'inside' if inside else 'outside'} the interval."
    )


def make_texts(sentences: Sequence[str], tokenizer: Any, batches: int) -> Corpus:
    """Makes texts of one to many sentences that fill about so many batches."""
    generator = np.random.default_rng(0)
    texts: list[str] = []
    tokens = 0
    lengths = [len(ids) for ids in tokenizer(list(sentences))["input_ids"]]
    while tokens < batches * MAX_TOKEN_BUDGET:
        chosen = generator.integers(0, len(sentences), size=generator.integers(1, _SENTENCES + 1))
        texts.append(" ".join(sentences[number] for number in chosen))
        tokens += PROMPT_TOKENS + sum(lengths[number] for number in chosen)
    return Corpus(texts, [row % 2 for row in range(len(texts))], "sentences put together")


def run_on_terminal(words: Sequence[str], folder: Path) -> Watched:
    """Runs `dist-eval WORDS`, which ends with `--output FOLDER`, with a terminal to show its progress on.

    Raises:
        ContenderError: it failed.
    """
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, _COLUMNS, 0, 0))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(folder)}
    start = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "dist_eval.cli.main", *words],
        cwd=Path(__file__).parents[1],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    shown, said = [], ""
    try:
        while time.monotonic() - start < _TIMEOUT:
            try:
                text = os.read(ours, 1 << 16).decode(errors="replace")
            except OSError:  # the last one that had the terminal has ended
                break
            said += text
            now = time.monotonic() - start
            shown += [(now, done == total, _in_seconds(left)) for done, total, left in _BAR.findall(text)]
        status = process.wait(10.0)
    finally:
        end_session(process.pid)
        os.close(ours)
    if status != 0:
        raise ContenderError(f"dist-eval {words[0]} ended with status {status}. Its last words:\n{said[-1000:]}")
    wall = time.monotonic() - start
    return Watched(wall, shown, json.loads((Path(words[-1]) / "results.json").read_text(encoding="utf-8")))


def _in_seconds(digits: str) -> float:
    total = 0
    for part in digits.split(":"):
        total = 60 * total + int(part)
    return float(total)


def main() -> None:
    """Runs the command line."""
    parser = harness.parser("estimates", QUESTION, rounds=1)
    names = [pace.shape.name for pace in PACES]
    parser.add_argument("--swarms", nargs="+", choices=names, default=names, metavar="SWARM", help="by their speed")
    parser.add_argument("--ranks", nargs="+", type=int, default=RANKS, help="numbers of ranks")
    parser.add_argument(
        "--seconds", type=float, default=SECONDS, help=f"what a run should take, about (default {SECONDS:g})"
    )
    options = parser.parse_args()
    run_program(lambda scratch_dir: measure(options, scratch_dir))


if __name__ == "__main__":
    main()
