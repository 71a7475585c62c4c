"""`python -m benchmarks.tasks`: multiple-choice tasks of the harness on a swarm, beside what people would write.

That is the harness' Hugging Face backend around Petals' own causal model, with batches of one request and of the size
that is fastest for it. All contenders use the same swarm, in the same round; the last one is a single process with the
whole model, without a swarm. Examples before the documents are the same for all of a task, as in MMLU; servers compute
them once.
"""

from __future__ import annotations

import argparse
import itertools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import harness
from benchmarks.alternatives.harness_backend import Result, Spec
from benchmarks.contenders import Contender, ContenderError, run_alternative, run_process
from benchmarks.hosting import distant_swarm_of
from benchmarks.models import SMALL, TINY, Model, make_model
from benchmarks.program import run_program
from benchmarks.text import SEED, make_corpus

QUESTION = "How fast are the harness' multiple-choice tasks on a swarm, beside its own backend around Petals' model?"
ROUND_TRIPS, RANKS, BATCH_SIZES = (0, 100), (1, 4), (1, 8, 32, 128)
SHOTS = 0, 5, 10
"""None, as many as MMLU has, and as many as HellaSwag has on the usual leaderboards."""

BARS = {0: 3.0, 100: 8.0}
"""How many times as fast as the fastest of theirs, by the round trip in milliseconds."""

SIZES = {str(size): size for size in (TINY, SMALL)}
TASKS = ("letters", "endings")
LOCAL = "the harness' backend, one process without a swarm"
_CHOICES, _CLOSE, _POSITIONS = 4, 1e-3, 2048


@dataclass(frozen=True)
class Stage:
    """Where contenders run.

    Attributes:
        model: the language model.
        tasks: folder of the task files.
        documents: of each task.
        shots: examples before each document.
        peers: addresses of the swarm.
        folder: for temporary files.
    """

    model: Model
    tasks: Path
    documents: int
    shots: int
    peers: list[str]
    folder: Path

    def ours(self, contender: Contender) -> Result:
        """Runs dist_eval."""
        output = self.folder / f"output-{len(list(self.folder.iterdir()))}"
        arguments: list[Any] = ["-m", "dist_eval.harness", "--model", self.model.base, "--tasks", *TASKS]
        arguments += ["--include-path", self.tasks, "--limit", self.documents, "--bootstrap-iters", 0]
        arguments += ["--num-fewshot", self.shots]
        arguments += ["--output", output, "--initial-peers", *self.peers]
        run_process(contender, self.folder, *map(str, arguments), torchrun=True)
        results = json.loads((output / "results.json").read_text(encoding="utf-8"))
        answers = []
        for task in TASKS:
            for line in (output / results["files"]["samples"][task]).read_text(encoding="utf-8").splitlines():
                answers += [float(answer[0][0]) for answer in json.loads(line)["resps"]]
        return Result(results["throughput"]["seconds"], answers)

    def theirs(self, contender: Contender, *, local: bool = False) -> Result:
        """Runs the harness with its own backend."""
        spec = Spec(
            model=str(self.model.base),
            tasks=list(TASKS),
            include_path=str(self.tasks),
            limit=self.documents,
            num_fewshot=self.shots,
            initial_peers=[] if local else self.peers,
            dht_prefix=self.model.dht_prefix,
            batch_size=contender.batch_size,
        )
        return Result(**run_alternative(contender, self.folder, spec, petals=not local))


def make_tasks(folder: Path, sentences: list[str], documents: int, examples: int) -> Path:
    """Writes two tasks: endings of sentences as choices, and letters that name them, as in ARC and MMLU.

    Args:
        folder: a folder to create.
        sentences: of which documents are made.
        documents: number of documents of each task.
        examples: number of further ones, to stand before them.
    """
    folder.mkdir()
    draw, rows = np.random.default_rng(SEED), []
    words = [sentence.split() for sentence in sentences]
    words = [one for one in words if len(one) > _CHOICES]
    for number in range(documents + examples):
        own = words[number % len(words)]
        others = [words[i] for i in draw.choice(len(words), _CHOICES, replace=False)]
        endings = [" ".join(one[len(one) // 2 :]) for one in others]
        answer = int(draw.integers(_CHOICES))
        endings[answer] = " ".join(own[len(own) // 2 :])
        rows.append({"begin": " ".join(own[: len(own) // 2]), "endings": endings, "answer": answer})
    file = folder / "documents.json"
    file.write_text("\n".join(map(json.dumps, rows[:documents])), encoding="utf-8")
    before = folder / "examples.json"
    before.write_text("\n".join(map(json.dumps, rows[documents:])), encoding="utf-8")
    letters = [chr(ord("A") + number) for number in range(_CHOICES)]
    listed = "\n".join(f"{letter}. {{{{endings[{number}]}}}}" for number, letter in enumerate(letters))
    forms: dict[str, Any] = {
        "letters": {"doc_to_text": f"{{{{begin}}}}\n{listed}\nAnswer:", "doc_to_choice": letters},
        "endings": {"doc_to_text": "{{begin}}", "doc_to_choice": "{{endings}}"},
    }
    for name, form in forms.items():
        task = {
            "task": name,
            "dataset_path": "json",
            "dataset_kwargs": {"data_files": {"test": str(file), "train": str(before)}},
            "test_split": "test",
            "fewshot_split": "train",
            "fewshot_config": {"sampler": "first_n"},
            "output_type": "multiple_choice",
            "doc_to_target": "answer",
            "metric_list": [{"metric": "acc"}],
            **form,
        }
        (folder / f"{name}.yaml").write_text(json.dumps(task), encoding="utf-8")
    return folder


def measure(options: argparse.Namespace, scratch_dir: Path) -> None:
    """Measures all contenders.

    Args:
        options: the command line.
        scratch_dir: folder for temporary files.
    """
    if options.quick:
        options.documents, options.round_trips, options.ranks, options.batch_sizes = 6, [0], [1], [1, 8]
        options.shots = [0]
    report = harness.Report("tasks", QUESTION, unit="requests/s", options=options)
    sentences = make_corpus(2000).sentences
    model = make_model(
        scratch_dir, TINY if options.quick else SIZES[options.base], sentences, grouped=True, positions=_POSITIONS
    )
    tasks = make_tasks(scratch_dir / "tasks", sentences, options.documents, max(1, *options.shots))
    with distant_swarm_of(model, scratch_dir) as (swarm, proxy):
        for shots, milliseconds in itertools.product(options.shots, options.round_trips):
            stage = Stage(model, tasks, options.documents, shots, swarm.initial_peers, scratch_dir)
            proxy.set_round_trip(milliseconds / 1000)
            group = f"{options.base}, {shots} examples, {milliseconds} ms"
            _measure_cell(report, group, stage, BARS.get(milliseconds), options)
    report.finish()


def _measure_cell(
    report: harness.Report, group: str, stage: Stage, bar: float | None, options: argparse.Namespace
) -> None:
    ours = [Contender(f"dist_eval, {n} rank{'s' * (n > 1)}", "dist_eval", ranks=n) for n in options.ranks]
    theirs = [
        Contender(f"the harness' backend around Petals' model, batch {size}", "harness_backend", batch_size=size)
        for size in options.batch_sizes
    ]
    local = Contender(LOCAL, "harness_backend", batch_size=max(options.batch_sizes))
    for _ in range(options.rounds):
        found = {one.name: stage.ours(one) for one in ours}
        found.update({one.name: stage.theirs(one) for one in theirs})
        found[LOCAL] = stage.theirs(local, local=True)
        expected = np.asarray(found[LOCAL].answers)
        for name, result in found.items():
            if len(result.answers) != len(expected):
                raise ContenderError(f"{name} answered {len(result.answers)} of {len(expected)} requests.")
            difference = float(np.abs(np.asarray(result.answers) - expected).max())
            if difference > _CLOSE:
                report.note(f"{group}: {name} differs from the local model by up to {difference:.2g} nats.")
            details = {"seconds": result.seconds, "requests": len(expected), "largest_difference": difference}
            report.add(group, name, len(expected) / result.seconds, details)
    for one in ours:
        mine = group, one.name
        report.compare(
            f"{group}: {one.name} / the best of theirs", mine, [(group, other.name) for other in theirs], bar=bar
        )
        report.compare(f"{group}: {one.name} / one local process", mine, (group, LOCAL))


def main() -> None:
    """Runs the command line."""
    parser = harness.parser("tasks", QUESTION, rounds=3)
    parser.add_argument(
        "--base", choices=SIZES, default=str(SMALL), help=f"size of the model: the way counts for {TINY} (%(default)s)"
    )
    parser.add_argument("--documents", type=int, default=200, help="of each of the two tasks (default 200)")
    for name, values, what in (
        ("--round-trips", ROUND_TRIPS, "milliseconds"),
        ("--ranks", RANKS, "numbers of ranks"),
        ("--shots", SHOTS, "examples before each document"),
        ("--batch-sizes", BATCH_SIZES, "requests in a batch of the harness' backend"),
    ):
        parser.add_argument(name, nargs="+", type=int, default=values, help=what)
    options = parser.parse_args()
    run_program(lambda scratch_dir: measure(options, scratch_dir))


if __name__ == "__main__":
    main()
