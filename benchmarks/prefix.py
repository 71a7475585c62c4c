"""`python -m benchmarks.prefix`: what it brings that servers compute the common beginning of texts once.

Label words after prompts that begin with the same tokens, and a checkpoint with deep prompts, in sessions and in plain
forwards (`--session-share 0`), one after the other on the same two servers, whose memory is watched.
"""

from __future__ import annotations

import argparse
import csv
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch

from benchmarks import harness
from benchmarks.contenders import Contender, run_process
from benchmarks.hosting import swarm_of
from benchmarks.models import PROMPT_TOKENS, SMALL, TINY, Model, make_model
from benchmarks.program import BenchmarkError, run_program
from benchmarks.text import SEED, make_corpus
from dist_eval.data.shared_prefixes import Beginnings, plan_with_shared_beginnings
from dist_eval.swarm.private import PrivateSwarm

QUESTION = "How much faster are texts that begin alike, if servers compute their beginning once?"
PREFIXES, TEXT_TOKENS = (16, 64, 300, 1000), 25
BARS = {300: 6.0}
"""How many times as fast as plain forwards, by the number of tokens of the prefix."""

PROMPT_BARS = {(25, 25): 1.3, (15, 35): 1.0, (100, 100): 1.0}
"""The same with deep prompts, by the fewest and the most tokens of a text."""

SESSIONS, PLAIN = "dist_eval, sessions", "dist_eval, plain forwards"
_POSITIONS, _PLAIN_TOKENS, _CLOSE, _POLL_SECONDS = 2048, 250_000, 1e-3, 0.2
_SWITCH_UP_TO, _CLASSES = 64, ("negative", "positive")


@dataclass(frozen=True)
class Run:
    """What a run of dist_eval gave.

    Attributes:
        results: content of `results.json`.
        probabilities: of its rows and classes, float of shape [rows, classes].
        peak: most memory that the servers had, in MiB.
    """

    results: dict[str, Any]
    probabilities: np.ndarray
    peak: float

    @property
    def rate(self) -> float:
        """Rows per second."""
        return float(self.results["throughput"]["examples_per_second"])


@dataclass(frozen=True)
class Stage:
    """Where both ways run.

    Attributes:
        model: the language model, with a tuned checkpoint.
        words: words of one token each.
        swarm: two servers.
        rows: texts that are sent in sessions; fewer in plain forwards, if they are long.
        ranks: processes of dist_eval.
        folder: for temporary files.
    """

    model: Model
    words: list[str]
    swarm: PrivateSwarm
    rows: int
    ranks: int
    folder: Path

    def label_words(self, prefix: int) -> list[str]:
        """Returns the options for label words after prompts that begin with so many tokens."""
        prompt = " ".join([*self._draw(prefix - 1, seed=1), "{sentence}"])  # after the token that begins every text
        return [
            "--prompt",
            prompt,
            "--label-words",
            *(f"{one}={word}" for one, word in zip(_CLASSES, self.words, strict=False)),
        ]

    def rows_of(self, fewest: int, most: int, *, begins: bool) -> Path:
        """Writes texts of so many tokens, with the one that begins every text if nothing else does."""
        path = self.folder / f"rows-{fewest}-{most}-{begins}.csv"
        lengths = np.random.default_rng(SEED).integers(fewest, most + 1, self.rows) - begins
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["sentence", "label"])
            for row, length in enumerate(lengths):
                writer.writerow([" ".join(self._draw(length, seed=row + 2)), _CLASSES[row % 2]])
        return path

    def run(self, contender: Contender, what: list[str], rows: Path, limit: int) -> Run:
        """Runs dist_eval on the first rows of a file."""
        from pyarrow import parquet

        folder = self.folder / f"run-{len(list(self.folder.iterdir()))}"
        folder.mkdir()
        dataset, output = folder / "rows.csv", folder / "output"
        lines = rows.read_text(encoding="utf-8").splitlines(keepends=True)
        dataset.write_text("".join(lines[: 1 + limit]), encoding="utf-8")
        arguments = ["-m", "dist_eval", "--model", str(self.model.base), *what, "--dataset", str(dataset)]
        arguments += ["--text-column", "sentence"] if "--prompt" not in what else []
        arguments += ["--report", "none", "--output", str(output), *contender.options]
        with _watching(self.swarm) as peaks:
            run_process(contender, folder, *arguments, "--initial-peers", *self.swarm.initial_peers, torchrun=True)
        table = parquet.read_table(output / "predictions.parquet")
        return Run(
            json.loads((output / "results.json").read_text(encoding="utf-8")),
            np.stack(table.column("probabilities").to_numpy()),
            max(peaks),
        )

    def _draw(self, count: int, seed: int) -> list[str]:
        return np.random.default_rng((SEED, seed)).choice(self.words[2:], count).tolist()


@contextmanager
def _watching(swarm: PrivateSwarm) -> Iterator[list[float]]:
    """Notes how much memory the servers have together, in MiB."""
    peaks, ended = [_memory(swarm)], threading.Event()

    def watch() -> None:
        while not ended.wait(_POLL_SECONDS):
            peaks.append(_memory(swarm))

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield peaks
    finally:
        ended.set()
        thread.join()


def _memory(swarm: PrivateSwarm) -> float:
    found = 0
    for server in swarm.servers:
        for process in [psutil.Process(server.pid), *psutil.Process(server.pid).children(recursive=True)]:
            try:
                found += process.memory_info().rss
            except psutil.NoSuchProcess:
                continue
    return found / 2**20


def measure(options: argparse.Namespace, scratch_dir: Path) -> None:
    """Measures all prefixes and prompts.

    Args:
        options: the command line.
        scratch_dir: folder for temporary files.

    Raises:
        BenchmarkError: the ways differ.
    """
    if options.quick:
        options.prefixes, options.rows = [64], 60
    report = harness.Report("prefix", QUESTION, unit="rows/s", options=options)
    sentences = make_corpus(2000).sentences
    torch.set_num_threads(1)  # a DHT node that is forked from a process with threads of torch may hang
    model = make_model(
        scratch_dir,
        SIZES[str(TINY) if options.quick else options.base],
        sentences,
        grouped=not options.multi_head,
        positions=_POSITIONS,
    )
    with swarm_of(model, scratch_dir) as swarm:
        stage = Stage(model, words_of_one_token(model, sentences), swarm, options.rows, options.ranks, scratch_dir)
        texts = stage.rows_of(TEXT_TOKENS, TEXT_TOKENS, begins=False)
        for prefix in options.prefixes:
            group = f"{prefix} + {TEXT_TOKENS} tokens"
            tokens = prefix + TEXT_TOKENS
            _measure_cell(report, group, stage, stage.label_words(prefix), texts, tokens, BARS.get(prefix), options)
        for (fewest, most), bar in PROMPT_BARS.items() if not options.quick else ():
            group = f"{PROMPT_TOKENS} deep prompts + {fewest} to {most} tokens"
            texts, tokens = stage.rows_of(fewest, most, begins=True), PROMPT_TOKENS + most
            _measure_cell(report, group, stage, ["--checkpoint", str(model.tuned)], texts, tokens, bar, options)
    report.note(
        f"With {options.rows} texts of {TEXT_TOKENS} tokens, plans use sessions from a common prefix of "
        f"{shortest_prefix(options.rows)} tokens on."
    )
    report.finish()


def _measure_cell(
    report: harness.Report,
    group: str,
    stage: Stage,
    what: list[str],
    texts: Path,
    tokens: int,
    bar: float | None,
    options: argparse.Namespace,
) -> None:
    fewer = min(options.rows, max(20, _PLAIN_TOKENS // tokens))
    for _ in range(options.rounds):
        sessions = stage.run(Contender(SESSIONS, "dist_eval", ranks=stage.ranks), what, texts, options.rows)
        plain = stage.run(
            Contender(PLAIN, "dist_eval", ranks=stage.ranks, options=("--session-share", "0")), what, texts, fewer
        )
        difference = float(np.abs(sessions.probabilities[:fewer] - plain.probabilities).max())
        if difference > _CLOSE:
            raise BenchmarkError(f"{group}: a probability differs by {difference:.2g} between the two ways.")
        for name, run, rows in ((SESSIONS, sessions, options.rows), (PLAIN, plain, fewer)):
            details = {
                "rows": rows,
                "sessions": run.results["sessions"],
                "plan": run.results["plan"],
                "servers_peak_mib": run.peak,
                "largest_difference": difference,
            }
            report.add(group, name, run.rate, details)
    planned = sessions.results["sessions"]
    way = f"sessions of {planned['session_tokens']} tokens" if planned else "planned as plain forwards"
    report.note(f"{group}: {way}; memory of both servers {sessions.peak:.0f} MiB, plain {plain.peak:.0f} MiB at most.")
    if planned is None and bar == 1.0:
        bar = None  # both are plain forwards
    report.compare(f"{group}: sessions / plain forwards", (group, SESSIONS), (group, PLAIN), bar=bar)


def shortest_prefix(rows: int) -> int:
    """Returns the fewest common tokens for which a plan of rows with 25 tokens each uses sessions of 1024 tokens."""
    for prefix in range(1, _SWITCH_UP_TO):
        lengths = np.full(rows, prefix + TEXT_TOKENS)
        common = np.full(rows, prefix)
        begun = Beginnings(common, lengths - 1, lambda row, size: np.zeros(size, dtype=np.int32))
        plan = plan_with_shared_beginnings(lengths, token_budget=1024, cache_tokens=1024, beginnings=begun)
        if plan.shared is not None:
            return prefix
    return _SWITCH_UP_TO


def words_of_one_token(model: Model, sentences: list[str]) -> list[str]:
    """Returns the words of sentences that the model's tokenizer keeps whole."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model.base)
    words = sorted({word for sentence in sentences for word in sentence.split()})
    return [word for word in words if len(tokenizer.tokenize(f"a {word}")) == 1 + len(tokenizer.tokenize("a"))]


SIZES = {str(size): size for size in (TINY, SMALL)}


def main() -> None:
    """Runs the command line."""
    parser = harness.parser("prefix", QUESTION, rounds=3)
    parser.add_argument("--base", choices=SIZES, default=str(SMALL), help="size of the model (%(default)s)")
    parser.add_argument(
        "--multi-head",
        action="store_true",
        help="a key for each query, for which servers have less room",
    )
    parser.add_argument("--rows", type=int, default=2000, help="texts (default 2000)")
    parser.add_argument("--ranks", type=int, default=1, help="processes of dist_eval (default 1)")
    parser.add_argument("--prefixes", nargs="+", type=int, default=PREFIXES, help="common tokens of the prompts")
    options = parser.parse_args()
    run_program(lambda scratch_dir: measure(options, scratch_dir))


if __name__ == "__main__":
    main()
