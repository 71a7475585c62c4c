"""`python -m benchmarks.generation`: generated tokens per second on a swarm, beside Petals' own `model.generate`.

That runs in threads, one prompt in each. All contenders use the same swarm, in the same round; a proxy in front of the
servers delays traffic in both directions. Texts have a fixed number of tokens, because no contender may stop earlier.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path

from benchmarks.contenders import Contender, HarnessWork, Outcome, note_agreement, run_round, with_ranks, write_task
from benchmarks.harness import Program, Report
from benchmarks.models import SIZES, SMALL, Model, make_model
from benchmarks.swarms import distant_swarm_of
from benchmarks.text import make_corpus

QUESTION = "How many tokens per second are generated on a swarm, beside Petals' own generate in threads?"
# how many times as fast as the fastest of theirs, by the round trip in milliseconds
BARS = {100: 2.0}
LOCAL = "transformers' generate, one process without a swarm"
_TASK = "stories"


@dataclass(frozen=True)
class Prompts(HarnessWork):
    """What is continued, and where.

    Attributes:
        prompts: the prompts.
        new_tokens: tokens of each text.
    """

    prompts: list[str]
    new_tokens: int

    def dist_eval(self, ranks: int) -> Contender:
        """Returns dist_eval as a contender, which may fill the servers' caches, as Petals' generate does."""

        def run() -> Outcome:
            return self._outcome(*self.by_dist_eval(ranks, [_TASK], "--session-share", 1))

        return Contender(with_ranks(ranks), run)

    def generate(self, name: str, threads: int, *, on_swarm: bool = True) -> Contender:
        """Returns the model's own `generate` as a contender."""

        def run() -> Outcome:
            found = self.by_alternative(
                "generate_threads:generate",
                on_swarm=on_swarm,
                prompts=self.prompts,
                new_tokens=self.new_tokens,
                in_flight=threads,
            )
            return self._outcome(*found)

        return Contender(name, run)

    def _outcome(self, seconds: float, texts: list[str]) -> Outcome:
        return Outcome(seconds, texts, units=len(texts) * self.new_tokens)


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
    form = {
        "output_type": "generate_until",
        "doc_to_text": "{{prompt}}",
        "doc_to_target": "",
        "generation_kwargs": {"until": [], "max_gen_toks": new_tokens},
        "metric_list": [{"metric": "exact_match"}],
    }
    write_task(folder, _TASK, {"test": file}, **form)
    return folder


def measure(options: argparse.Namespace, scratch_dir: Path) -> None:
    """Measures all contenders."""
    report = Report("generation", QUESTION, unit="tokens/s", options=options)
    sentences = make_corpus(2000).sentences
    model = make_model(scratch_dir, SIZES[options.base], sentences)
    _never_end(model)
    prompts = sentences[: options.prompts]
    tasks = make_task(scratch_dir / "tasks", prompts, options.tokens)
    with distant_swarm_of(model, scratch_dir) as (swarm, proxy):
        work = Prompts(model, tasks, swarm.initial_peers, scratch_dir, prompts, options.tokens)
        theirs = [work.generate(f"Petals' generate, {threads} threads", threads) for threads in options.threads]
        contenders = [work.generate(LOCAL, 1, on_swarm=False), *map(work.dist_eval, options.ranks), *theirs]
        for far in options.round_trips:
            proxy.set_round_trip(far / 1000)
            group = f"{options.base}, {far} ms"
            for _ in range(options.rounds):
                run_round(report, group, contenders)
            for ours in map(with_ranks, options.ranks):
                best = [(group, contender.name) for contender in theirs]
                report.compare(f"{group}: {ours} / the best of theirs", (group, ours), *best, bar=BARS.get(far))
    note_agreement(report, contenders)
    report.finish()


def _never_end(model: Model) -> None:
    """Lets a model go on for ever, so that all texts have as many tokens as are asked for."""
    path = model.base / "generation_config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**config, "eos_token_id": None}), encoding="utf-8")


PROGRAM = Program(
    "generation",
    QUESTION,
    measure,
    quick={"base": "64x4", "prompts": 6, "tokens": 4, "round_trips": [0], "ranks": [1], "threads": [6]},
)
PROGRAM.add("--base", str(SMALL), "size of the model", choices=SIZES)
PROGRAM.add("--prompts", 64, "number of prompts")
PROGRAM.add("--tokens", 32, "of each text")
PROGRAM.add("--round-trips", (0, 100), "milliseconds")
PROGRAM.add("--ranks", (1, 2), "numbers of ranks")
PROGRAM.add("--threads", (16, 64), "prompts at a time of Petals' generate")

if __name__ == "__main__":
    PROGRAM.main()
