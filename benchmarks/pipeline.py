"""`python -m benchmarks.pipeline`: how close a run comes to what the servers can do.

The servers wait instead of computing (see `waiting_server.py`), so their limit is arithmetic: the first batch passes
all stages, and each further batch follows after the time of the slowest stage with all its replicas. A proxy adds
delay.
"""

from __future__ import annotations

import argparse
import itertools
from dataclasses import dataclass
from pathlib import Path

from benchmarks.contenders import Classification, Contender, with_ranks
from benchmarks.harness import Program, Report
from benchmarks.models import PROMPT_TOKENS, Size, make_model, train_tokenizer
from benchmarks.text import Corpus, make_corpus
from benchmarks.waiting_server import Speed, waiting_swarm

QUESTION = "How close does a run come to the limit of a pipeline's servers?"
BASE = Size(32, 8)
PETALS = "Petals' client, all texts in one batch"
TRUE, SAME = "true", "same"
_SLOWEST = 0.2  # seconds of the slowest stage for a batch of `_BATCH_TOKENS`
_BATCH_TOKENS = 1024  # as in requests of Petals' own client
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
    def spans(self) -> tuple[tuple[int, int], ...]:
        """The blocks of each server."""
        cuts = [BASE.layers * i // len(self.stages) for i in range(len(self.stages) + 1)]
        stages = zip(itertools.pairwise(cuts), self.stages, strict=True)
        return tuple(span for span, replicas in stages for _ in replicas)

    def speeds(self, overhead: float = 0.5) -> list[Speed]:
        """Returns the speed of each server.

        Args:
            overhead: share of the time of a full batch that does not depend on its tokens.
        """
        return [Speed(s * overhead, s * (1 - overhead) / _BATCH_TOKENS) for replicas in self.stages for s in replicas]

    def least_seconds(self, batches: float, round_trip: float, share: float = 1.0) -> float:
        """Returns the seconds for this number of batches, if the slowest stage is never idle after the first one.

        Args:
            batches: number of batches.
            round_trip: of a request to any server, in seconds.
            share: of the time of a full batch that each of them takes.
        """
        passage = sum(share * min(replicas) + round_trip for replicas in self.stages)
        return passage + (batches - 1) * share * self.slowest

    @property
    def slowest(self) -> float:
        """Seconds between two full batches."""
        return max(1 / sum(1 / seconds for seconds in replicas) for replicas in self.stages)


def _equal(stages: int) -> Shape:
    return Shape(f"{stages} stages", ((_SLOWEST,),) * stages)


def _unequal(stages: int) -> Shape:
    fast = (_SLOWEST / 3,)
    return Shape(
        f"{stages} stages, one 3 times slower", (fast,) * (stages // 2) + ((_SLOWEST,),) + (fast,) * (stages // 2 - 1)
    )


SHAPES = {
    shape.name: shape
    for shape in (
        *(make(stages) for stages in (2, 4, 8) for make in (_equal, _unequal)),
        Shape("2 stages, replicas of unequal speed", ((_SLOWEST,), (1.5 * _SLOWEST, 3 * _SLOWEST))),
        Shape("1 stage, one of two replicas 5 times slower", ((_SLOWEST, 5 * _SLOWEST),)),
        Shape("4 stages of two replicas", ((2 * _SLOWEST, 2 * _SLOWEST),) * 4),
    )
}


def measure(options: argparse.Namespace, scratch_dir: Path) -> None:
    """Measures all cells."""
    report = Report("pipeline", QUESTION, unit="share of the limit", options=options)
    sentence, rows = _sentence_of_a_batch(options.batch_tokens)
    share = options.overhead + (1 - options.overhead) * options.batch_tokens / _BATCH_TOKENS
    model = make_model(scratch_dir, BASE, make_corpus(200).sentences)
    for shape, announced in itertools.product(map(SHAPES.__getitem__, options.shapes), options.announced):
        speeds = shape.speeds(options.overhead)
        name = shape.name if announced == TRUE else f"{shape.name}, announcing the same speed"
        with waiting_swarm(model, scratch_dir, shape.spans, speeds if announced == TRUE else ()) as (peers, adjust):
            for far, batches in itertools.product(options.round_trips, options.batches):
                adjust(speeds, far / 1000)
                texts = [sentence] * rows * batches
                work = Classification(model, Corpus(texts, [0] * len(texts), "one sentence"), peers, scratch_dir)
                limit = shape.least_seconds(batches, far / 1000, share)
                _measure_cell(report, f"{name}, {far} ms, {batches} batches", work, limit, batches, options)
    report.finish()


def _measure_cell(
    report: Report, group: str, work: Classification, limit: float, batches: int, options: argparse.Namespace
) -> None:
    # servers wait in forwards only
    plan = ("--token-budget", str(options.batch_tokens), "--session-share", "0")
    ours = [work.dist_eval(with_ranks(ranks), ranks, *plan) for ranks in options.ranks]
    contenders: list[Contender] = list(ours)
    if options.petals:
        rows = len(work.corpus.sentences)
        contenders.append(work.alternative(PETALS, "loop", batch_size=rows, max_length=_TEXT_TOKENS))
    for _ in range(options.rounds):
        for contender in contenders:
            outcome = contender.run()
            if outcome.facts and (sent := outcome.facts["plan"]["batches"]) != batches:
                report.note(f"{group}: dist_eval sent {sent} batches.")
            details = {"seconds": outcome.seconds, "limit": limit}
            report.add(group, contender.name, limit / outcome.seconds, details)
    for contender in ours:
        name = f"{group}: {contender.name}"
        shares = report.series[group, contender.name].values
        report.bound(f"{name} / limit", shares, _BARS.get(batches), at_most=False)
        report.compare(f"{name} / {PETALS}", (group, contender.name), (group, PETALS), bar=1)


def _sentence_of_a_batch(tokens: int) -> tuple[str, int]:
    """Returns a sentence, and how many of them fill a batch of a number of tokens."""
    sentences = make_corpus(200).sentences
    tokenizer = train_tokenizer(sentences)
    sentence = next(words for words in sentences if len(tokenizer(words)["input_ids"]) == _TEXT_TOKENS)
    return sentence, tokens // (_TEXT_TOKENS + PROMPT_TOKENS)


PROGRAM = Program(
    "pipeline",
    QUESTION,
    measure,
    rounds=1,
    quick={"shapes": ["2 stages"], "round_trips": [0], "ranks": [1], "batches": [20]},
)
PROGRAM.add("--shapes", tuple(SHAPES), "of the pipeline", choices=SHAPES, metavar="SHAPE")
PROGRAM.add(
    "--announced",
    (TRUE,),
    "what servers announce: their true speeds, which real ones measure, or all the same one, which is far too high",
    choices=(TRUE, SAME),
)
PROGRAM.add("--round-trips", (0, 100), "milliseconds")
PROGRAM.add("--ranks", (1, 4), "numbers of ranks")
PROGRAM.add("--batches", (20, 50, 500), "numbers of batches")
PROGRAM.add("--batch-tokens", _BATCH_TOKENS, "tokens of a batch, prompts included")
PROGRAM.add("--overhead", 0.5, "share of a full batch's time that a server takes whatever the number of tokens")
PROGRAM.parser.add_argument("--no-petals", dest="petals", action="store_false", help="leave out Petals' own client")

if __name__ == "__main__":
    PROGRAM.main()
