"""`python -m benchmarks.tasks`: multiple-choice tasks of the harness on a swarm, beside what people would write.

That is the harness' Hugging Face backend around Petals' own causal model, with batches of one request and of the size
that is fastest for it. All contenders use the same swarm, in the same round; one is a single process with the whole
model, without a swarm. Examples before the documents are the same for all of a task, as in MMLU; servers compute them
once.
"""

from __future__ import annotations

import argparse
import itertools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.contenders import Contender, HarnessWork, Outcome, note_agreement, run_round, with_ranks, write_task
from benchmarks.harness import Program, Report
from benchmarks.models import SIZES, SMALL, make_model
from benchmarks.swarms import distant_swarm_of
from benchmarks.text import SEED, make_corpus

QUESTION = "How fast are the harness' multiple-choice tasks on a swarm, beside its own backend around Petals' model?"
# how many times as fast as the fastest of theirs, by the round trip in milliseconds
BARS = {0: 3.0, 100: 8.0}
TASKS = ("letters", "endings")
LOCAL = "the harness' backend, one process without a swarm"
_CHOICES, _CLOSE, _POSITIONS = 4, 1e-3, 2048


@dataclass(frozen=True)
class Questions(HarnessWork):
    """Tasks, and where they are asked.

    Attributes:
        documents: of each task.
        shots: examples before each document.
    """

    documents: int
    shots: int

    def dist_eval(self, ranks: int) -> Contender:
        """Returns dist_eval as a contender."""

        def run() -> Outcome:
            options = ["--limit", self.documents, "--bootstrap-iters", 0, "--num-fewshot", self.shots]
            seconds, answers = self.by_dist_eval(ranks, TASKS, *options)
            return Outcome(seconds, [float(likelihood) for likelihood, _ in answers])

        return Contender(with_ranks(ranks), run)

    def harness_backend(self, name: str, batch_size: int, *, on_swarm: bool = True) -> Contender:
        """Returns the harness with its own backend as a contender."""

        def run() -> Outcome:
            seconds, answers = self.by_alternative(
                "harness_backend:run_tasks",
                on_swarm=on_swarm,
                tasks=list(TASKS),
                include_path=str(self.tasks),
                limit=self.documents,
                num_fewshot=self.shots,
                batch_size=batch_size,
            )
            return Outcome(seconds, answers)

        return Contender(name, run)


def make_tasks(folder: Path, sentences: list[str], documents: int, examples: int) -> Path:
    """Writes two tasks: endings of sentences as choices, and letters that name them, as in ARC and MMLU.

    Args:
        folder: a folder to create.
        sentences: sentences for the documents.
        documents: number of documents of each task.
        examples: number of further ones, to stand before them.
    """
    folder.mkdir()
    draw, rows = np.random.default_rng(SEED), []
    texts = [sentence.split() for sentence in sentences]
    texts = [words for words in texts if len(words) > _CHOICES]
    for number in range(documents + examples):
        own = texts[number % len(texts)]
        others = [texts[i] for i in draw.choice(len(texts), _CHOICES, replace=False)]
        endings = [" ".join(words[len(words) // 2 :]) for words in others]
        answer = int(draw.integers(_CHOICES))
        endings[answer] = " ".join(own[len(own) // 2 :])
        rows.append({"begin": " ".join(own[: len(own) // 2]), "endings": endings, "answer": answer})
    files = {"test": folder / "documents.json", "train": folder / "examples.json"}
    for file, part in zip(files.values(), (rows[:documents], rows[documents:]), strict=True):
        file.write_text("\n".join(map(json.dumps, part)), encoding="utf-8")
    letters = [chr(ord("A") + number) for number in range(_CHOICES)]
    listed = "\n".join(f"{letter}. {{{{endings[{number}]}}}}" for number, letter in enumerate(letters))
    forms: dict[str, Any] = {
        "letters": {"doc_to_text": f"{{{{begin}}}}\n{listed}\nAnswer:", "doc_to_choice": letters},
        "endings": {"doc_to_text": "{{begin}}", "doc_to_choice": "{{endings}}"},
    }
    for name, form in forms.items():
        common = {
            "fewshot_split": "train",
            "fewshot_config": {"sampler": "first_n"},
            "output_type": "multiple_choice",
            "doc_to_target": "answer",
            "metric_list": [{"metric": "acc"}],
        }
        write_task(folder, name, files, **common, **form)
    return folder


def measure(options: argparse.Namespace, scratch_dir: Path) -> None:
    """Measures all contenders."""
    report = Report("tasks", QUESTION, unit="requests/s", options=options)
    sentences = make_corpus(2000).sentences
    model = make_model(scratch_dir, SIZES[options.base], sentences, grouped=True, positions=_POSITIONS)
    tasks = make_tasks(scratch_dir / "tasks", sentences, options.documents, max(1, *options.shots))
    with distant_swarm_of(model, scratch_dir) as (swarm, proxy):
        for shots, far in itertools.product(options.shots, options.round_trips):
            proxy.set_round_trip(far / 1000)
            work = Questions(model, tasks, swarm.initial_peers, scratch_dir, options.documents, shots)
            local = work.harness_backend(LOCAL, max(options.batch_sizes), on_swarm=False)
            theirs = [
                work.harness_backend(f"the harness' backend around Petals' model, batch {size}", size)
                for size in options.batch_sizes
            ]
            contenders = [local, *map(work.dist_eval, options.ranks), *theirs]
            group = f"{options.base}, {shots} examples, {far} ms"
            for _ in range(options.rounds):
                run_round(report, group, contenders, tolerance=_CLOSE)
            for ours in map(with_ranks, options.ranks):
                best = [(group, contender.name) for contender in theirs]
                report.compare(f"{group}: {ours} / the best of theirs", (group, ours), *best, bar=BARS.get(far))
                report.compare(f"{group}: {ours} / one local process", (group, ours), (group, LOCAL))
    note_agreement(report, contenders)
    report.finish()


PROGRAM = Program(
    "tasks",
    QUESTION,
    measure,
    quick={"base": "64x4", "documents": 6, "round_trips": [0], "ranks": [1], "batch_sizes": [1, 8], "shots": [0]},
)
PROGRAM.add("--base", str(SMALL), "size of the model", choices=SIZES)
PROGRAM.add("--documents", 200, "of each of the two tasks")
PROGRAM.add("--round-trips", (0, 100), "milliseconds")
PROGRAM.add("--ranks", (1, 4), "numbers of ranks")
# none, as many as MMLU has, and as many as HellaSwag has on the usual leaderboards
PROGRAM.add("--shots", (0, 5, 10), "examples before each document")
PROGRAM.add("--batch-sizes", (1, 8, 32, 128), "requests in a batch of the harness' backend")

if __name__ == "__main__":
    PROGRAM.main()
