"""What a tuning is asked to do, and its command line."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dist_eval.errors import ConfigError
from dist_eval.options.commandline import WHERE, Command
from dist_eval.options.config import RunConfig, flag, option
from dist_eval.tracking import TRACKERS

PROGRAM = "dist-eval tune"
METRICS = ("accuracy", "balanced_accuracy", "f1_macro", "f1_weighted", "mcc", "loss")
"""By which the best epoch can be chosen; of the loss less is better."""

PROJECT = "dist_eval-tuning"
"""Under which trackers show tunings."""


@dataclass(kw_only=True)
class TuningConfig(RunConfig):
    """The options of one tuning.

    Raises:
        ConfigError: on construction, when an option is out of range, missing, or contradicts another.
    """

    tuning_mode: str = option(
        "deep_ptune",
        "prompts in front of the text only, or added before each block, too",
        group="tuned",
        choices=("ptune", "deep_ptune"),
    )
    pre_seq_len: int = option(16, "prompt tokens", group="tuned", metavar="TOKENS")
    num_labels: int | None = option(None, "classes of the head (default: those that the data show)", group="tuned")

    eval_dataset: str | None = option(
        None, "data to evaluate on after each epoch (default with --eval-split: those of --dataset)", group="data"
    )
    eval_subset: str | None = option(None, "configuration of --eval-dataset", group="data")
    eval_split: str | None = option(None, "split of --eval-dataset", group="data")

    epochs: int = option(3, "how often the data are gone through", group="learning")
    batch_size: int = option(32, "examples of a batch, on all ranks together", group="learning", metavar="EXAMPLES")
    accumulation_steps: int = option(
        1, "batches whose gradients are added up for one update", group="learning", metavar="BATCHES"
    )
    learning_rate: float = option(1e-2, "highest learning rate of AdamW", group="learning", metavar="RATE")
    weight_decay: float = option(0.0, "weight decay of AdamW", group="learning", metavar="RATE")
    warmup: float = option(
        0.1, "share of the updates in which the rate rises, before it falls to 0", group="learning", metavar="FRACTION"
    )
    max_grad_norm: float = option(
        1.0, "longer gradients are shortened to this length (0: never)", group="learning", metavar="NORM"
    )
    seed: int = option(0, "of the first values and of the order of the examples", group="learning")
    best_metric: str = option("accuracy", "by which the best epoch is chosen", group="learning", choices=METRICS)
    device: str = option(
        "auto",
        "where embeddings, head and optimizer are (auto: a GPU if there is one)",
        group="learning",
        choices=("auto", "cpu", "cuda"),
    )
    precision: str = option(
        "auto",
        "of what is computed here, float16 with scaled gradients (auto: float16 on a GPU, else float32)",
        group="learning",
        choices=("auto", "float32", "float16", "bfloat16"),
    )

    save_every: int | None = option(
        None, "write what a resumed run goes on from after so many updates, too", group="output", metavar="UPDATES"
    )
    tracker: list[str] = option(
        [], "where to log besides: the library has to be installed", group="output", nargs="+", choices=TRACKERS
    )

    def __post_init__(self) -> None:
        self._require(self.model, "--model", "the base model to tune")
        self._require(self.dataset, "--dataset", "the data to learn from")
        super().__post_init__()
        for name in ("pre_seq_len", "epochs", "batch_size", "accumulation_steps"):
            self._check_range(name, 1)
        self._check_range("seed", 0)
        if self.num_labels is not None:
            self._check_range("num_labels", 2)
        if self.save_every is not None:
            self._check_range("save_every", 1)
        if not 0 < self.learning_rate < math.inf:
            raise ConfigError(f"--learning-rate must be more than 0, not {self.learning_rate}.")
        for name in ("weight_decay", "max_grad_norm"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ConfigError(f"{flag(name)} must be at least 0, not {getattr(self, name)}.")
        if not 0 <= self.warmup <= 1:
            raise ConfigError(f"--warmup must be between 0 and 1, not {self.warmup}.")
        if self.eval_subset and not (self.eval_dataset or self.eval_split):
            raise ConfigError("--eval-subset needs --eval-dataset or --eval-split.")

    @property
    def output_folder(self) -> Path:
        """The folder of the run: `--output`, or `runs/` and the dataset's name and the mode."""
        if self.output is not None:
            return Path(self.output)
        return Path("runs") / f"{Path(str(self.dataset)).stem}-{self.tuning_mode}"

    @property
    def examples_per_update(self) -> int:
        """Examples whose gradients make one update, on all ranks together."""
        return self.batch_size * self.accumulation_steps

    @property
    def evaluation_data(self) -> dict[str, Any] | None:
        """The options `dataset`, `subset` and `split` of the data to evaluate on; None if there are none."""
        if self.eval_dataset:
            return {"dataset": self.eval_dataset, "subset": self.eval_subset, "split": self.eval_split}
        if self.eval_split:
            return {"dataset": self.dataset, "subset": self.eval_subset or self.subset, "split": self.eval_split}
        return None


COMMAND = Command(
    program=PROGRAM,
    config=TuningConfig,
    description="Tunes soft prompts and a classification head for a base model that lives on a Petals swarm.",
    examples=f"""\
examples:
  {PROGRAM} --nproc-per-node 2 --model ./llama --dataset train.csv --eval-dataset validation.csv \\
      --swarm embedded --output runs/tuned
  {PROGRAM} --nproc-per-node 4 --model MODEL --dataset train.csv --text-column sentence \\
      --initial-peers /ip4/10.0.0.5/tcp/31337/p2p/QmPeerIdentity --tuning-mode ptune --epochs 5
""",
    usage=f"--model MODEL --dataset FILE\n{WHERE} [options]",
    nothing_asked=f"""\
dist_eval.tuning needs a base model, labelled data, and a swarm:
  {PROGRAM} --model MODEL --dataset FILE --initial-peers ADDRESS...
All options: --help""",
    groups={
        "what": ("what is learned from", None),
        "tuned": ("what is tuned", None),
        "learning": ("how it learns", None),
    },
)
