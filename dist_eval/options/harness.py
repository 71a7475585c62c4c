"""The options of `dist-eval harness`, and its command line."""

from __future__ import annotations

from dataclasses import dataclass

from dist_eval.errors import ConfigError
from dist_eval.options.commandline import WHERE, Command
from dist_eval.options.config import RunConfig
from dist_eval.options.groups import option

PROGRAM = "dist-eval harness"


@dataclass(kw_only=True)
class HarnessConfig(RunConfig):
    """The options of an evaluation on tasks of the lm-evaluation-harness.

    Raises:
        ConfigError: on construction, when an option is out of range, missing, or contradicts another.
    """

    tasks: list[str] = option(
        [], "tasks, groups or tags of the harness, or task files (YAML)", group="tasks", nargs="+", metavar="TASK"
    )
    include_path: list[str] = option([], "folders with further task files", group="tasks", nargs="+", metavar="FOLDER")
    num_fewshot: int | None = option(
        None,
        "examples in front of each question, except in tasks that want none (default: as each task says)",
        group="tasks",
        metavar="N",
        least=0,
        aliases=("few_shot",),
    )
    limit: float | None = option(
        None, "documents of each task: a number, or a share below 1 (default: all)", group="tasks", metavar="N"
    )
    apply_chat_template: bool = option(False, "put questions into the tokenizer's chat template", group="tasks")
    seed: int = option(0, "seed of texts that a task wants to be drawn at random", group="tasks", least=0)
    strict: bool = option(False, "a context that is too long is an error", group="tasks")
    bootstrap_iters: int = option(
        1000,
        "resamples for the harness' own standard errors of metrics that are no means, such as f1",
        group="metrics",
        metavar="N",
        least=0,
    )
    confidence: float = option(
        0.95, "confidence level of the metrics' intervals (0 to 1)", group="metrics", metavar="LEVEL"
    )
    report: str = option(
        "numbers",
        "what report.html shows of missed documents: their numbers and answers (numbers), also their texts (texts); or "
        "write no report (none)",
        group="output",
        choices=("numbers", "texts", "none"),
    )

    def __post_init__(self) -> None:
        self.tasks = [name for names in self.tasks for name in names.split(",") if name]
        self._require(self.model, "--model", "the language model to evaluate")
        self._require(self.tasks, "--tasks", "names of tasks, such as hellaswag")
        super().__post_init__()
        self._check_range("max_length", 2)  # a context and a continuation
        if self.limit is not None and not (0 < self.limit < 1 or (self.limit >= 1 and self.limit % 1 == 0)):
            raise ConfigError(f"--limit must be a whole number, or a share between 0 and 1, not {self.limit:g}.")
        if not 0 < self.confidence < 1:
            raise ConfigError(f"--confidence must be between 0 and 1, such as 0.95, not {self.confidence}.")

    @property
    def run_name(self) -> str:
        """The names of the tasks."""
        return "-".join(name.rpartition("/")[2].removesuffix(".yaml") for name in self.tasks[:3])


HARNESS = Command(
    program=PROGRAM,
    config=HarnessConfig,
    description="Evaluates a language model that lives on a Petals swarm on tasks of the lm-evaluation-harness, "
    "exactly, on any number of processes.",
    examples=f"""\
examples:
  {PROGRAM} --nproc-per-node 2 --tasks digits --model dist_eval/demo/base --swarm embedded
  {PROGRAM} --nproc-per-node 4 --tasks arc_easy,my_task --include-path my_tasks --num-fewshot 5 --limit 200 \\
      --model MODEL --initial-peers /ip4/10.0.0.5/tcp/31337/p2p/QmPeerIdentity --output runs/arc
""",
    usage=f"--tasks TASK... --model MODEL\n{WHERE} [options]",
    nothing_asked=f"""\
dist_eval.harness needs tasks, a language model, and a swarm:
  {PROGRAM} --tasks TASK... --model MODEL --initial-peers ADDRESS...
All options: --help""",
    groups={
        "what": ("what is evaluated", None),
        "tasks": ("on which tasks", None),
        "metrics": ("which metrics", None),
    },
)
