"""`python -m benchmarks.pipeline`: how close a run comes to what the servers can do.

The servers wait instead of computing (see `waiting_server.py`), so that what they can do is arithmetic: the first batch
passes all stages, and each further one comes after what the slowest stage takes for a batch, with all its replicas. A
proxy gives the way a delay. If another client is beside, its batches count as if they were of the run: both together
can get as much as one alone.
"""

from __future__ import annotations

import argparse
import itertools
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from benchmarks import harness
from benchmarks.beside import AnotherClient, another_client
from benchmarks.contenders import Contender, Stage
from benchmarks.hosting import distant_swarm_of
from benchmarks.models import PROMPT_TOKENS, Model, Size, make_model, train_tokenizer
from benchmarks.program import run_program
from benchmarks.text import Corpus, make_corpus
from benchmarks.waiting_server import Speed, set_speeds
from dist_eval.swarm.private import PrivateSwarm

QUESTION = "How close does a run come to what the servers of a pipeline can do?"
BASE = Size(32, 8)
ROUND_TRIPS, RANKS, BATCHES = (0, 100), (1, 4), (20, 50, 500)
PETALS = "Petals' client, all texts in one batch"
_SLOWEST = 0.2
"""Seconds that the slowest stage takes for a batch."""

_BATCH_TOKENS = 1024
"""What Petals' own client puts into a request, too. `_SLOWEST` is for as many."""

_TEXT_TOKENS = 16
_BARS = {20: 0.90, 50: 0.95, 500: 0.95}


@dataclass(frozen=True)
class Shape:
    """A pipeline.

    Attributes:
        name: for the report.
        stages: of each stage, the seconds of each replica for a batch.
    """

    name: str
    stages: tuple[tuple[float, ...], ...]

    @property
    def spans(self) -> list[tuple[int, int]]:
        """The blocks of each server."""
        cuts = [BASE.layers * i // len(self.stages) for i in range(len(self.stages) + 1)]
        return [span for span, replicas in zip(itertools.pairwise(cuts), self.stages, strict=True) for _ in replicas]

    def speeds(self, overhead: float = 0.5) -> list[Speed]:
        """Returns the speed of each server.

        Args:
            overhead: share of the time of a full batch that does not depend on its tokens.
        """
        return [Speed(s * overhead, s * (1 - overhead) / _BATCH_TOKENS) for replicas in self.stages for s in replicas]

    def least_seconds(self, batches: float, round_trip: float, share: float = 1.0) -> float:
        """Returns the seconds for this number of batches, if the slowest stage is never idle after the first one.

        Args:
            batches: number of batches; of one that is not finished, a part counts.
            round_trip: of a request to any server, in seconds.
            share: of the time of a full batch that each of them takes.
        """
        passage = sum(share * min(replicas) + round_trip for replicas in self.stages)
        slowest = max(share / sum(1 / s for s in replicas) for replicas in self.stages)
        return passage + (batches - 1) * slowest


def _equal(stages: int) -> Shape:
    return Shape(f"{stages} stages", ((_SLOWEST,),) * stages)


def _unequal(stages: int) -> Shape:
    fast = (_SLOWEST / 3,)
    return Shape(
        f"{stages} stages, one 3 times slower", (fast,) * (stages // 2) + ((_SLOWEST,),) + (fast,) * (stages // 2 - 1)
    )


SHAPES = (
    *(make(stages) for stages in (2, 4, 8) for make in (_equal, _unequal)),
    Shape("2 stages, replicas of unequal speed", ((_SLOWEST,), (1.5 * _SLOWEST, 3 * _SLOWEST))),
)


def measure(options: argparse.Namespace, scratch_dir: Path) -> None:
    """Measures all cells.

    Args:
        options: the command line.
        scratch_dir: folder for temporary files.
    """
    if options.quick:
        options.shapes, options.round_trips, options.ranks, options.batches = [SHAPES[0].name], [0], [1], [20]
    report = harness.Report("pipeline", QUESTION, unit="share of the limit", options=options)
    sentence, rows = _sentence_of_a_batch(options.batch_tokens)
    share = options.overhead + (1 - options.overhead) * options.batch_tokens / _BATCH_TOKENS
    model = make_model(scratch_dir, BASE, make_corpus(200).sentences)
    by_spans = {
        spans: [shape for shape in SHAPES if tuple(shape.spans) == spans and shape.name in options.shapes]
        for spans in {tuple(shape.spans): None for shape in SHAPES}
    }
    for spans, shapes in by_spans.items():
        if not shapes:
            continue
        file = scratch_dir / "speeds.json"
        set_speeds(file, shapes[0].speeds(options.overhead))
        program = ("-m", "benchmarks.waiting_server", str(file))
        with (
            distant_swarm_of(model, scratch_dir, spans=spans, program=program) as (swarm, proxy),
            another_client(_stage(model, [sentence] * rows, swarm, scratch_dir), _TEXT_TOKENS)
            if options.beside
            else nullcontext() as other,
        ):
            for shape, milliseconds, batches in itertools.product(shapes, options.round_trips, options.batches):
                set_speeds(file, shape.speeds(options.overhead))
                proxy.set_round_trip(milliseconds / 1000)
                stage = _stage(model, [sentence] * rows * batches, swarm, scratch_dir)
                cell = Cell(shape, milliseconds, batches, share, other)
                _measure_cell(report, cell, stage, options)
    report.finish()


def _stage(model: Model, sentences: list[str], swarm: PrivateSwarm, scratch_dir: Path) -> Stage:
    return Stage(model, Corpus(sentences, [0] * len(sentences), "one sentence"), swarm.initial_peers, scratch_dir)


@dataclass(frozen=True)
class Cell:
    """What is measured at a time.

    Attributes:
        shape: of the pipeline.
        round_trip: in milliseconds.
        batches: number of batches.
        share: of the time of a full batch that each of them takes.
        other: the client beside, if there is one.
    """

    shape: Shape
    round_trip: int
    batches: int
    share: float
    other: AnotherClient | None

    @property
    def name(self) -> str:
        """Its name in the report."""
        beside = ", another client beside" if self.other else ""
        return f"{self.shape.name}, {self.round_trip} ms, {self.batches} batches{beside}"

    def limit(self, others: float) -> float:
        """Returns the seconds that the run could have taken at least, beside others' batches."""
        return self.shape.least_seconds(self.batches + others, self.round_trip / 1000, self.share)


def _measure_cell(report: harness.Report, cell: Cell, stage: Stage, options: argparse.Namespace) -> None:
    group, batches = cell.name, cell.batches
    # servers wait in forwards only
    plan = ("--token-budget", str(options.batch_tokens), "--session-share", "0")
    ours = [
        Contender(f"dist_eval, {ranks} rank{'s' * (ranks > 1)}", "dist_eval", ranks=ranks, options=plan)
        for ranks in options.ranks
    ]
    petals = Contender(PETALS, "loop", batch_size=len(stage.corpus.sentences), max_length=_TEXT_TOKENS)
    theirs = [petals] if options.petals else []
    for _ in range(options.rounds):
        for contender in [*ours, *theirs]:
            outcome = stage.run(contender)
            if contender in ours and (sent := outcome.facts["plan"]["batches"]) != batches:
                report.note(f"{group}: dist_eval sent {sent} batches.")
            others = cell.other.batches_during(outcome) if cell.other else 0
            limit = cell.limit(others)
            details = {"seconds": outcome.seconds, "limit": limit, "batches_of_others": others}
            report.add(group, contender.name, limit / outcome.seconds, details)
            if others:
                report.note(f"{group}, {contender.name}: beside {batches} batches {others:.1f} of the other client.")
    for one in ours:
        name = f"{group}: {one.name}"
        shares = report.series[group, one.name].values
        report.bound(f"{name} / limit", shares, _BARS.get(batches), at_most=False)
        if theirs:
            report.compare(f"{name} / {PETALS}", (group, one.name), (group, PETALS), bar=1)


def _sentence_of_a_batch(tokens: int) -> tuple[str, int]:
    """Returns a sentence, and how many of them fill a batch of a number of tokens."""
    sentences = make_corpus(200).sentences
    tokenizer = train_tokenizer(sentences)
    sentence = next(one for one in sentences if len(tokenizer(one)["input_ids"]) == _TEXT_TOKENS)
    return sentence, tokens // (_TEXT_TOKENS + PROMPT_TOKENS)


def main() -> None:
    """Runs the command line."""
    parser = harness.parser("pipeline", QUESTION, rounds=1)
    names = [shape.name for shape in SHAPES]
    parser.add_argument("--shapes", nargs="+", choices=names, default=names, metavar="SHAPE", help="of the pipeline")
    for name, values, what in (
        ("--round-trips", ROUND_TRIPS, "milliseconds"),
        ("--ranks", RANKS, "numbers of ranks"),
        ("--batches", BATCHES, "numbers of batches"),
    ):
        parser.add_argument(name, nargs="+", type=int, default=values, help=what)
    parser.add_argument(
        "--batch-tokens", type=int, default=_BATCH_TOKENS, help="tokens of a batch, prompts included (%(default)s)"
    )
    parser.add_argument(
        "--overhead",
        type=float,
        default=0.5,
        help="share of a full batch's time that a server takes whatever the number of tokens (%(default)s)",
    )
    parser.add_argument("--no-petals", dest="petals", action="store_false", help="leave out Petals' own client")
    parser.add_argument("--beside", action="store_true", help="with another client beside; leaves out Petals' own")
    options = parser.parse_args()
    options.petals &= not options.beside
    run_program(lambda scratch_dir: measure(options, scratch_dir))


if __name__ == "__main__":
    main()
