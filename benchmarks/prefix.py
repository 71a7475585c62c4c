"""`python -m benchmarks.prefix`: the gain when servers compute the common prefix of texts once.

Label words after prompts that begin with the same tokens, and a checkpoint with deep prompts, in sessions and in plain
forwards (`--session-share 0`), one after the other on the same two servers, whose memory is watched.
"""

from __future__ import annotations

import argparse
import csv
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch

from benchmarks.harness import BenchmarkError, Program, Report
from benchmarks.meter import sampled
from benchmarks.models import PROMPT_TOKENS, SIZES, SMALL, Model, make_model
from benchmarks.processes import run_dist_eval
from benchmarks.swarms import swarm_of
from benchmarks.text import SEED, make_corpus
from dist_eval.petals.server.private import PrivateSwarm

QUESTION = "How much faster are texts with a common prefix, if servers compute it once?"
SESSIONS, PLAIN = "dist_eval, sessions", "dist_eval, plain forwards"
TEXT_TOKENS = 25
# how many times as fast as plain forwards: by the tokens of the prefix, and with deep prompts by those of a text
BARS = {300: 6.0}
PROMPT_BARS = {(25, 25): 1.3, (15, 35): 1.0, (100, 100): 1.0}
_POSITIONS, _PLAIN_TOKENS, _CLOSE, _POLL_SECONDS = 2048, 250_000, 1e-3, 0.2
_CLASSES = ("negative", "positive")


@dataclass(frozen=True)
class Run:
    """The outcome of a run: `results.json`, probabilities [rows, classes], and the servers' peak memory in MiB."""

    results: dict[str, Any]
    probabilities: np.ndarray
    peak: float


@dataclass(frozen=True)
class Place:
    """The setup of both ways.

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
        """Returns the options for label words after prompts with a prefix of a number of tokens."""
        prompt = " ".join([*self._draw(prefix - 1, seed=1), "{sentence}"])  # after the token that begins every text
        words = [f"{name}={word}" for name, word in zip(_CLASSES, self.words, strict=False)]
        return ["--prompt", prompt, "--label-words", *words]

    def texts(self, fewest: int, most: int) -> list[list[str]]:
        """Makes rows with texts of a number of tokens."""
        lengths = np.random.default_rng(SEED).integers(fewest, most + 1, self.rows)
        return [[" ".join(self._draw(length, seed=row + 2)), _CLASSES[row % 2]] for row, length in enumerate(lengths)]

    def run(self, what: list[str], rows: list[list[str]]) -> Run:
        """Runs dist_eval on some rows."""
        from pyarrow import parquet

        dataset = self.folder / "rows.csv"
        with dataset.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([["sentence", "label"], *rows])
        arguments = ["--model", self.model.base, *what, "--dataset", dataset, "--report", "none"]
        arguments += ["--text-column", "sentence"] if "--prompt" not in what else []
        with sampled(lambda: _memory(self.swarm), _POLL_SECONDS) as peaks:
            results, output = run_dist_eval(
                self.folder, *arguments, "--initial-peers", *self.swarm.initial_peers, ranks=self.ranks
            )
        table = parquet.read_table(output / "predictions.parquet")
        return Run(results, np.stack(table.column("probabilities").to_numpy()), max(peaks))

    def _draw(self, count: int, seed: int) -> list[str]:
        return np.random.default_rng((SEED, seed)).choice(self.words[2:], count).tolist()


def _memory(swarm: PrivateSwarm) -> float:
    """Returns the memory of all servers together, in MiB."""
    total = 0
    for server in swarm.servers:
        for process in [psutil.Process(server.pid), *psutil.Process(server.pid).children(recursive=True)]:
            with suppress(psutil.NoSuchProcess):
                total += process.memory_info().rss
    return total / 2**20


def measure(options: argparse.Namespace, scratch_dir: Path) -> None:
    """Measures all prefixes and prompts."""
    report = Report("prefix", QUESTION, unit="rows/s", options=options)
    sentences = make_corpus(2000).sentences
    torch.set_num_threads(1)  # a DHT node that is forked from a process with threads of torch may hang
    model = make_model(
        scratch_dir, SIZES[options.base], sentences, grouped=not options.multi_head, positions=_POSITIONS
    )
    with swarm_of(model, scratch_dir) as swarm:
        place = Place(model, words_of_one_token(model, sentences), swarm, options.rows, options.ranks, scratch_dir)
        texts = place.texts(TEXT_TOKENS, TEXT_TOKENS)
        for prefix in options.prefixes:
            group, words = f"{prefix} + {TEXT_TOKENS} tokens", place.label_words(prefix)
            _measure_cell(report, group, place, words, texts, prefix + TEXT_TOKENS, BARS.get(prefix), options.rounds)
        for (fewest, most), bar in {} if options.quick else PROMPT_BARS.items():
            group, tuned = f"{PROMPT_TOKENS} deep prompts + {fewest} to {most} tokens", ["--checkpoint", model.tuned]
            texts = place.texts(fewest - 1, most - 1)  # after the token that begins every text
            _measure_cell(report, group, place, tuned, texts, PROMPT_TOKENS + most, bar, options.rounds)
    report.finish()


def _measure_cell(
    report: Report,
    group: str,
    place: Place,
    what: list[Any],
    texts: list[list[str]],
    tokens: int,
    bar: float | None,
    rounds: int,
) -> None:
    fewer = texts[: max(20, _PLAIN_TOKENS // tokens)]
    for _ in range(rounds):
        sessions = place.run(what, texts)
        plain = place.run([*what, "--session-share", "0"], fewer)
        difference = float(np.abs(sessions.probabilities[: len(fewer)] - plain.probabilities).max())
        if difference > _CLOSE:
            raise BenchmarkError(f"{group}: a probability differs by {difference:.2g} between the two ways.")
        for name, run in ((SESSIONS, sessions), (PLAIN, plain)):
            details = {key: run.results[key] for key in ("sessions", "plan")}
            details.update(rows=len(run.probabilities), servers_peak_mib=run.peak, largest_difference=difference)
            report.add(group, name, run.results["throughput"]["examples_per_second"], details)
    planned = sessions.results["sessions"]
    way = f"sessions of {planned['session_tokens']} tokens" if planned else "planned as plain forwards"
    report.note(f"{group}: {way}; memory of both servers {sessions.peak:.0f} MiB, plain {plain.peak:.0f} MiB at most.")
    if planned is None and bar == 1.0:
        bar = None  # both are plain forwards
    report.compare(f"{group}: sessions / plain forwards", (group, SESSIONS), (group, PLAIN), bar=bar)


def words_of_one_token(model: Model, sentences: list[str]) -> list[str]:
    """Returns the words of sentences that the model's tokenizer keeps whole."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model.base)
    words = sorted({word for sentence in sentences for word in sentence.split()})
    return [word for word in words if len(tokenizer.tokenize(f"a {word}")) == 1 + len(tokenizer.tokenize("a"))]


PROGRAM = Program("prefix", QUESTION, measure, quick={"base": "64x4", "prefixes": [64], "rows": 60})
PROGRAM.add("--base", str(SMALL), "size of the model", choices=SIZES)
PROGRAM.parser.add_argument(
    "--multi-head", action="store_true", help="one key per query: servers have less cache space"
)
PROGRAM.add("--rows", 2000, "texts")
PROGRAM.add("--ranks", 1, "processes of dist_eval")
PROGRAM.add("--prefixes", (16, 64, 300, 1000), "common tokens of the prompts")

if __name__ == "__main__":
    PROGRAM.main()
