"""`python -m benchmarks.generation`: generated tokens per second on a swarm, beside Petals' own `model.generate`.

That runs in threads, one prompt in each. All contenders use the same swarm, in the same round; a proxy in front of the
servers delays traffic in both directions. Texts have a fixed number of tokens, because no contender may stop earlier.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.alternatives.generate_threads import Result, Spec
from benchmarks.contenders import Contender, ContenderError, run_alternative, run_process
from benchmarks.hosting import distant_swarm_of
from benchmarks.models import SMALL, TINY, Model, make_model
from benchmarks.program import run_program
from benchmarks.text import make_corpus

QUESTION = "How many tokens per second are generated on a swarm, beside Petals' own generate in threads?"
HEADLINE = 100
"""Round-trip time in milliseconds to which the required bound applies."""

ROUND_TRIPS, RANKS, THREADS, BAR = (0, HEADLINE), (1, 2), (16, 64), 2.0
LOCAL = "transformers' generate, one process without a swarm"
_TASK = "stories"
_SIZES = {str(size): size for size in (TINY, SMALL)}


@dataclass(frozen=True)
class Stage:
    """Where contenders run.

    Attributes:
        model: the language model.
        tasks: folder of the task file.
        prompts: what is continued.
        new_tokens: tokens of each text.
        peers: addresses of the swarm.
        folder: for temporary files.
    """

    model: Model
    tasks: Path
    prompts: list[str]
    new_tokens: int
    peers: list[str]
    folder: Path

    def ours(self, contender: Contender) -> Result:
        """Runs dist_eval."""
        output = self.folder / f"output-{len(list(self.folder.iterdir()))}"
        arguments: list[Any] = ["-m", "dist_eval.harness", "--model", self.model.base, "--tasks", _TASK]
        arguments += ["--include-path", self.tasks, "--output", output, "--session-share", 1]  # as Petals' generate
        run_process(contender, self.folder, *map(str, arguments), "--initial-peers", *self.peers, torchrun=True)
        results = json.loads((output / "results.json").read_text(encoding="utf-8"))
        lines = (output / results["files"]["samples"][_TASK]).read_text(encoding="utf-8").splitlines()
        return Result(results["throughput"]["seconds"], [json.loads(line)["resps"][0][0] for line in lines])

    def theirs(self, contender: Contender, *, local: bool = False) -> Result:
        """Runs Petals' model, or one without a swarm."""
        spec = Spec(
            model=str(self.model.base),
            prompts=self.prompts,
            new_tokens=self.new_tokens,
            threads=contender.batch_size,
            initial_peers=[] if local else self.peers,
            dht_prefix=self.model.dht_prefix,
        )
        return Result(**run_alternative(contender, self.folder, spec, petals=not local))


def make_task(folder: Path, prompts: list[str], new_tokens: int) -> Path:
    """Writes a task that has each prompt continued.

    Args:
        folder: a folder to create.
        prompts: the prompts.
        new_tokens: tokens of each text.
    """
    folder.mkdir()
    file = folder / "documents.json"
    file.write_text("\n".join(json.dumps({"prompt": prompt}) for prompt in prompts), encoding="utf-8")
    task = {
        "task": _TASK,
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(file)}},
        "test_split": "test",
        "output_type": "generate_until",
        "doc_to_text": "{{prompt}}",
        "doc_to_target": "",
        "generation_kwargs": {"until": [], "max_gen_toks": new_tokens},
        "metric_list": [{"metric": "exact_match"}],
    }
    (folder / f"{_TASK}.yaml").write_text(json.dumps(task), encoding="utf-8")
    return folder


def measure(options: argparse.Namespace, scratch_dir: Path) -> None:
    """Measures all contenders.

    Args:
        options: the command line.
        scratch_dir: folder for temporary files.
    """
    if options.quick:
        options.rounds, options.prompts, options.tokens = 1, 6, 4
        options.round_trips, options.ranks, options.threads = [0], [1], [6]
    report = harness.Report("generation", QUESTION, unit="tokens/s", options=options)
    sentences = make_corpus(2000).sentences
    model = make_model(scratch_dir, TINY if options.quick else _SIZES[options.base], sentences)
    _never_end(model)
    prompts = sentences[: options.prompts]
    tasks = make_task(scratch_dir / "tasks", prompts, options.tokens)
    with distant_swarm_of(model, scratch_dir) as (swarm, proxy):
        stage = Stage(model, tasks, prompts, options.tokens, swarm.initial_peers, scratch_dir)
        for milliseconds in options.round_trips:
            proxy.set_round_trip(milliseconds / 1000)
            bar = BAR if milliseconds == HEADLINE else None
            _measure_cell(report, f"{options.base}, {milliseconds} ms", stage, bar, options)
    report.finish()


def _never_end(model: Model) -> None:
    """Lets a model go on for ever, so that all texts have as many tokens as are asked for."""
    path = model.base / "generation_config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**config, "eos_token_id": None}), encoding="utf-8")


def _measure_cell(
    report: harness.Report, group: str, stage: Stage, bar: float | None, options: argparse.Namespace
) -> None:
    ours = [Contender(f"dist_eval, {n} rank{'s' * (n > 1)}", "dist_eval", ranks=n) for n in options.ranks]
    theirs = [
        Contender(f"Petals' generate, {threads} threads", "generate_threads", batch_size=threads)
        for threads in options.threads
    ]
    local = Contender(LOCAL, "generate_threads", batch_size=1)
    for _ in range(options.rounds):
        found = {one.name: stage.ours(one) for one in ours}
        found.update({one.name: stage.theirs(one) for one in theirs})
        found[LOCAL] = stage.theirs(local, local=True)
        expected = found[LOCAL].texts
        for name, result in found.items():
            if len(result.texts) != len(expected):
                raise ContenderError(f"{name} has generated {len(result.texts)} of {len(expected)} texts.")
            equal = sum(one == other for one, other in zip(result.texts, expected, strict=True))
            if equal < len(expected):
                report.note(f"{group}: {len(expected) - equal} texts of {name} differ from those of the local model.")
            tokens = len(expected) * stage.new_tokens
            details = {"seconds": result.seconds, "tokens": tokens, "equal_texts": equal}
            report.add(group, name, tokens / result.seconds, details)
    for one in ours:
        claim = f"{group}: {one.name} / the best of theirs"
        report.compare(claim, (group, one.name), [(group, other.name) for other in theirs], bar=bar)


def main() -> None:
    """Runs the command line."""
    parser = harness.parser("generation", QUESTION, rounds=3)
    parser.add_argument("--base", choices=_SIZES, default=str(SMALL), help="size of the model (%(default)s)")
    parser.add_argument("--prompts", type=int, default=64, help="number of prompts (%(default)s)")
    parser.add_argument("--tokens", type=int, default=32, help="of each text (%(default)s)")
    for name, values, what in (
        ("--round-trips", ROUND_TRIPS, "milliseconds"),
        ("--ranks", RANKS, "numbers of ranks"),
        ("--threads", THREADS, "prompts at a time of Petals' generate"),
    ):
        parser.add_argument(name, nargs="+", type=int, default=values, help=what)
    options = parser.parse_args()
    run_program(lambda scratch_dir: measure(options, scratch_dir))


if __name__ == "__main__":
    main()
