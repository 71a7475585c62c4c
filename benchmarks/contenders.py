"""The contenders: dist_eval as users start it, and common alternatives, each in separate processes.

A benchmark opens a swarm, creates a `Stage` on it, and runs contenders one after the other, so that each has the
machine and the same swarm to itself.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.alternatives.common import Result, Spec
from benchmarks.harness import Report
from benchmarks.models import Model
from benchmarks.petals_environment import petals_python
from benchmarks.program import BenchmarkError
from benchmarks.text import Corpus
from dist_eval.process.lifetime import end_session

_ROOT = Path(__file__).parents[1]
_TIMEOUT = 1800.0
LOG, _LOG_LINES_SHOWN = "log.txt", 15


class ContenderError(BenchmarkError):
    """A contender failed; the message contains the end of its log."""


@dataclass(frozen=True)
class Contender:
    """One way to evaluate, with its settings.

    Attributes:
        name: name in the report.
        module: `dist_eval`, or a module of `benchmarks.alternatives`.
        ranks: number of processes.
        batch_size: examples in a batch, for the alternatives.
        max_length: tokens that every text is padded to, for the alternatives; None pads by batch.
        options: further options of dist_eval.
        every: classify only every n-th row, for slow alternatives; rates are compared.
        threads: threads of each process.
    """

    name: str
    module: str
    ranks: int = 1
    batch_size: int = 32
    max_length: int | None = None
    options: tuple[str, ...] = ()
    every: int = 1
    threads: int = 1


def libraries(every: int) -> tuple[Contender, ...]:
    """Returns the contenders of Hugging Face's libraries, each with batches of 32 and of 64.

    Args:
        every: see `Contender`.
    """
    return tuple(
        Contender(f"{name}, batch {size}", module, ranks=ranks, batch_size=size, every=every)
        for name, module, ranks in (
            ("gather_for_metrics, 2 ranks", "gather_for_metrics", 2),
            ("Trainer.predict", "trainer_predict", 1),
        )
        for size in (32, 64)
    )


@dataclass(frozen=True)
class Outcome:
    """The outcome of one run of a contender.

    Attributes:
        seconds: duration of the evaluation loop, on the slowest rank.
        predictions: predicted class of each of its rows, in order.
        facts: content of `results.json`, for dist_eval.
    """

    seconds: float
    predictions: list[int]
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def rate(self) -> float:
        """Examples per second."""
        return len(self.predictions) / self.seconds


@dataclass(frozen=True)
class Stage:
    """The environment in which contenders run.

    Attributes:
        model: the base model and the tuned checkpoint.
        corpus: the sentences to classify.
        peers: addresses of the swarm.
        folder: folder for temporary files.
    """

    model: Model
    corpus: Corpus
    peers: list[str]
    folder: Path

    def run(self, contender: Contender) -> Outcome:
        """Runs a contender once.

        Raises:
            ContenderError: it failed.
        """
        folder = Path(tempfile.mkdtemp(dir=self.folder))
        dataset = self.corpus.write_csv(folder / "rows.csv", every=contender.every)
        run = _run_dist_eval if contender.module == "dist_eval" else _run_alternative
        return run(contender, self, folder, dataset)

    def spec(self, dataset: Path, batch_size: int, max_length: int | None) -> Spec:
        """Returns the task of an alternative on this swarm."""
        return Spec(
            model=str(self.model.base),
            checkpoint=str(self.model.tuned),
            dataset=str(dataset),
            initial_peers=self.peers,
            dht_prefix=self.model.dht_prefix,
            batch_size=batch_size,
            max_length=max_length,
        )


def run_round(report: Report, group: str, stage: Stage, contenders: Sequence[Contender]) -> dict[str, Outcome]:
    """Runs contenders one after the other and adds their rates to the report.

    The first one must classify all rows: its predictions are the reference for the others.

    Returns:
        Their outcomes, by name.

    Raises:
        ContenderError: one failed.
    """
    outcomes: dict[str, Outcome] = {}
    reference: list[int] = []
    for contender in contenders:
        outcome = outcomes[contender.name] = stage.run(contender)
        reference = reference or outcome.predictions
        expected = reference[:: contender.every]
        if len(expected) != len(outcome.predictions):
            raise ContenderError(f"{contender.name} classified {len(outcome.predictions)} of {len(expected)} rows.")
        equal = sum(a == b for a, b in zip(outcome.predictions, expected, strict=True))
        details = {
            "seconds": outcome.seconds,
            "examples": len(expected),
            "equal_predictions": equal / len(expected),
            "share_of_positives": sum(outcome.predictions) / len(expected),
            "in_flight": [rank["in_flight"] for rank in outcome.facts.get("ranks", [])],
        }
        report.add(group, contender.name, outcome.rate, details)
    return outcomes


def note_agreement(report: Report, contenders: Sequence[Contender]) -> None:
    """Adds notes on the agreement of the contenders' predictions, and on the rows that they classified."""
    shares = {
        name: min(details["equal_predictions"] for series in report.series.values() if series.name == name
                  for details in series.details)
        for name in dict.fromkeys(name for _, name in report.series)
    }  # fmt: skip
    reference = contenders[0].name
    lower = [f"{name} {share:.4f}" for name, share in shares.items() if share < 1]
    report.note(
        f"Predictions equal to those of {reference}: "
        + ("all, of all the others." if not lower else f"all, except for {', '.join(lower)} (share; lowest round).")
    )
    fewer = [f"{one.name} 1 in {one.every}" for one in contenders if one.every > 1]
    if fewer:
        report.note(f"Given fewer rows, evenly spaced, to save time: {', '.join(fewer)}.")


def describe_plan(outcome: Outcome) -> str:
    """Returns a sentence on the number of batches that dist_eval sent, and on the share of padding."""
    plan = outcome.facts["plan"]
    return (
        f"dist_eval sent {plan['batches']} batches of together {plan['padded_tokens']} tokens, "
        f"{plan['real_tokens']} of them real (prompts included)."
    )


def _run_alternative(contender: Contender, stage: Stage, folder: Path, dataset: Path) -> Outcome:
    spec = stage.spec(dataset, contender.batch_size, contender.max_length)
    result = Result(**run_alternative(contender, folder, spec, petals=contender.module != "local"))
    return Outcome(result.seconds, result.predictions)


def run_alternative(contender: Contender, folder: Path, spec: Any, *, petals: bool) -> dict[str, Any]:
    """Runs an alternative once.

    Args:
        contender: the alternative.
        folder: for temporary files.
        spec: its task, a dataclass.
        petals: it uses Petals' own classes of models.

    Returns:
        The fields of its result.

    Raises:
        ContenderError: it failed.
    """
    asked, answered = folder / "spec.json", folder / "result.json"
    asked.write_text(json.dumps(asdict(spec)), encoding="utf-8")
    arguments = ("-m", f"benchmarks.alternatives.{contender.module}", str(asked), str(answered))
    run_process(contender, folder, *arguments, petals=petals)
    return dict(json.loads(answered.read_text(encoding="utf-8")))


def _run_dist_eval(contender: Contender, stage: Stage, folder: Path, dataset: Path) -> Outcome:
    from pyarrow import parquet

    output = folder / "output"
    arguments = ["-m", "dist_eval", "--model", stage.model.base, "--checkpoint", stage.model.tuned]
    arguments += ["--dataset", dataset, "--text-column", "sentence", "--output", output, *contender.options]
    arguments += ["--initial-peers", *stage.peers]
    run_process(contender, folder, *map(str, arguments), torchrun=True)
    results = json.loads((output / "results.json").read_bytes())
    predictions = parquet.read_table(output / "predictions.parquet").column("prediction").to_pylist()
    return Outcome(results["throughput"]["seconds"], predictions, results)


def run_process(
    contender: Contender, folder: Path, *arguments: str, torchrun: bool = False, petals: bool = False
) -> None:
    """Runs `python ARGUMENTS` to completion, under torchrun if it has several ranks."""
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={contender.ranks}"]
    arguments = (*(launcher if torchrun or contender.ranks > 1 else []), *arguments)
    with running(folder, *arguments, threads=contender.threads, petals=petals) as process:
        try:
            status = process.wait(_TIMEOUT)
        except subprocess.TimeoutExpired:
            status = None
    if status != 0:
        how = f"did not end within {_TIMEOUT:g} s" if status is None else f"ended with status {status}"
        last = "\n".join((folder / LOG).read_text(errors="replace").splitlines()[-_LOG_LINES_SHOWN:])
        raise ContenderError(f"{contender.name} {how}. Its last lines:\n{last}")


@contextmanager
def running(
    folder: Path, *arguments: str, threads: int = 1, output: Path | None = None, petals: bool = False
) -> Iterator[subprocess.Popen[bytes]]:
    """Runs `python ARGUMENTS`, and ends it in the end, with all that it started.

    Args:
        folder: for its temporary files and its log.
        *arguments: of Python.
        threads: of each process.
        output: file for its standard output instead of the log.
        petals: in the environment of Petals' own classes of models.
    """
    python = petals_python() if petals else sys.executable
    with (folder / LOG).open("ab") as log, (output or folder / LOG).open("ab") as written:
        process = subprocess.Popen(
            [python, *arguments],
            cwd=_ROOT,
            env={**os.environ, "OMP_NUM_THREADS": str(threads), "TMPDIR": str(folder)},
            stdin=subprocess.DEVNULL,
            stdout=written,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        end_session(process.pid)
