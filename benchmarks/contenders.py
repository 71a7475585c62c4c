"""Contenders: dist_eval as users start it, and common alternatives.

A benchmark opens a swarm and runs its contenders in rounds, one after the other, so that each has the machine and the
swarm to itself.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.harness import BenchmarkError, Report
from benchmarks.models import Model
from benchmarks.processes import call, run_dist_eval
from benchmarks.text import Corpus

OURS = ("local", "evaluate")
"""Alternatives that use dist_eval's own model classes."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of a contender.

    Attributes:
        seconds: duration of the work that is compared, on the slowest rank.
        answers: one per row, in order: classes, log-likelihoods or texts.
        facts: content of `results.json`, for dist_eval; of its `ranks` also for `evaluate`.
        units: number of units for the rate; by default, the number of answers.
    """

    seconds: float
    answers: list[Any]
    facts: dict[str, Any] = field(default_factory=dict)
    units: float | None = None

    @property
    def rate(self) -> float:
        """Units per second."""
        return (len(self.answers) if self.units is None else self.units) / self.seconds


@dataclass(frozen=True)
class Contender:
    """One way to do the work.

    Attributes:
        name: name in the report.
        run: does it once.
        every: it gets only every n-th row if it is slow; rates are compared.
    """

    name: str
    run: Callable[[], Outcome]
    every: int = 1


def with_ranks(ranks: int) -> str:
    """Returns the name of dist_eval on a number of ranks."""
    return f"dist_eval, {ranks} rank{'s' * (ranks > 1)}"


def run_round(
    report: Report, group: str, contenders: Sequence[Contender], *, tolerance: float = 0.0
) -> dict[str, Outcome]:
    """Runs contenders one after the other and adds their rates to the report.

    The first one must have all rows: the others' answers are compared with its answers.

    Args:
        report: the report.
        group: of the report.
        contenders: the contenders.
        tolerance: difference between two numbers that are still the same answer.

    Returns:
        Their outcomes, by name.

    Raises:
        BenchmarkError: one failed, or did not answer all its rows.
    """
    outcomes: dict[str, Outcome] = {}
    for contender in contenders:
        outcome = outcomes[contender.name] = contender.run()
        expected = outcomes[contenders[0].name].answers[:: contender.every]
        if len(expected) != len(outcome.answers):
            raise BenchmarkError(f"{contender.name} gave {len(outcome.answers)} of {len(expected)} answers.")
        equal = sum(
            answer == other or (tolerance > 0 and abs(answer - other) <= tolerance)
            for answer, other in zip(outcome.answers, expected, strict=True)
        )
        details = {"seconds": outcome.seconds, "answers": len(expected), "equal": equal / len(expected)}
        report.add(group, contender.name, outcome.rate, details)
    return outcomes


def note_agreement(report: Report, contenders: Sequence[Contender]) -> None:
    """Adds notes on the agreement of the contenders' answers, and on the rows that they were given."""
    shares: dict[str, float] = {}
    for series in report.series.values():
        shares[series.name] = min([shares.get(series.name, 1.0), *(found["equal"] for found in series.details)])
    lower = [f"{name} {share:.4f}" for name, share in shares.items() if share < 1]
    report.note(
        f"Answers equal to those of {contenders[0].name}: "
        + ("all, of all the others." if not lower else f"all, except for {', '.join(lower)} (share; lowest round).")
    )
    fewer = [f"{contender.name} 1 in {contender.every}" for contender in contenders if contender.every > 1]
    if fewer:
        report.note(f"Given fewer rows, evenly spaced, to save time: {', '.join(fewer)}.")


@dataclass(frozen=True)
class HarnessWork:
    """Tasks of the harness for a model on a swarm.

    Attributes:
        model: the language model.
        tasks: folder of the task files.
        peers: addresses of the swarm.
        folder: for temporary files.
    """

    model: Model
    tasks: Path
    peers: list[str]
    folder: Path

    def by_dist_eval(self, ranks: int, names: Sequence[str], *options: object) -> tuple[float, list[Any]]:
        """Runs dist_eval on some of the tasks; returns its seconds, and all answers in order."""
        arguments = ["--model", self.model.base, "--tasks", *names, "--include-path", self.tasks, *options]
        arguments += ["--initial-peers", *self.peers]
        results, output = run_dist_eval(self.folder, *arguments, ranks=ranks, module="dist_eval.harness")
        files = [output / results["files"]["samples"][name] for name in names]
        lines = [line for file in files for line in file.read_text(encoding="utf-8").splitlines()]
        answers = [answer[0] for line in lines for answer in json.loads(line)["resps"]]
        return results["throughput"]["seconds"], answers

    def by_alternative(self, function: str, *, on_swarm: bool, **arguments: Any) -> tuple[float, list[Any]]:
        """Calls a function of `benchmarks.alternatives`; returns its seconds and answers."""
        found, *_ = call(
            f"benchmarks.alternatives.{function}",
            self.folder,
            petals=on_swarm,
            model=str(self.model.base),
            initial_peers=self.peers if on_swarm else [],
            dht_prefix=self.model.dht_prefix,
            **arguments,
        )
        return found["seconds"], found["answers"]


def write_task(folder: Path, name: str, files: Mapping[str, Path], **form: Any) -> None:
    """Writes a task of the harness with documents in JSON files, one for each split."""
    task = {
        "task": name,
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {split: str(file) for split, file in files.items()}},
        "test_split": "test",
        **form,
    }
    (folder / f"{name}.yaml").write_text(json.dumps(task), encoding="utf-8")


@dataclass(frozen=True)
class Classification:
    """Sentences that a tuned model on a swarm classifies.

    Attributes:
        model: the base model and the tuned checkpoint.
        corpus: the sentences.
        peers: addresses of the swarm.
        folder: folder for temporary files.
    """

    model: Model
    corpus: Corpus
    peers: list[str]
    folder: Path

    def dist_eval(self, name: str, ranks: int, *options: str) -> Contender:
        """Returns dist_eval as a contender, with additional options."""

        def run() -> Outcome:
            from pyarrow import parquet

            arguments = ["--model", self.model.base, "--checkpoint", self.model.tuned, "--dataset", self._rows(1)]
            arguments += ["--text-column", "sentence", *options, "--initial-peers", *self.peers]
            results, output = run_dist_eval(self.folder, *arguments, ranks=ranks)
            answers = parquet.read_table(output / "predictions.parquet").column("prediction").to_pylist()
            return Outcome(results["throughput"]["seconds"], answers, results)

        return Contender(name, run)

    def alternative(
        self,
        name: str,
        module: str,
        *,
        ranks: int | None = None,
        every: int = 1,
        threads: int = 1,
        batch_size: int = 32,
        max_length: int | None = None,
    ) -> Contender:
        """Returns an alternative as a contender.

        Args:
            name: name in the report.
            module: of `benchmarks.alternatives`, with a function `classify`.
            ranks: number of processes under torchrun; None for one without it.
            every: see `Contender`.
            threads: of each process.
            batch_size: examples in a batch.
            max_length: tokens that every text is padded to; None pads by batch.
        """

        def run() -> Outcome:
            found, *_ = call(
                f"benchmarks.alternatives.{module}:classify",
                self.folder,
                ranks=ranks,
                threads=threads,
                petals=module not in OURS,
                model=str(self.model.base),
                checkpoint=str(self.model.tuned),
                dataset=str(self._rows(every)),
                initial_peers=self.peers,
                dht_prefix=self.model.dht_prefix,
                batch_size=batch_size,
                max_length=max_length,
            )
            return Outcome(found["seconds"], found["answers"], found.get("facts", {}))

        return Contender(name, run, every)

    def _rows(self, every: int) -> Path:
        return self.corpus.write_csv(Path(tempfile.mkdtemp(dir=self.folder)) / "rows.csv", every=every)
